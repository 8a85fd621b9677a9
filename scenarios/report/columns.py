"""How the amounts of one column of a table are written: one unit and one number of decimals for all of them.

The unit is that of the median, so that no column mixes seconds with minutes. Means have the decimals that their
intervals deserve: two digits of the interval of the column, and the same for the mean beside it. On a narrow terminal
whole columns are left out or put below, and no number loses its unit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from costmodel import units
from costmodel.units import Units

MOST_DECIMALS = 4
DIGITS, DIGITS_OF_INTERVAL = 3, 2
"""Significant digits of the median amount, and of the median half width where a column has intervals"""
TOO_LONG = 1e6
"""An amount of so many units has a larger one, though that of the median is below it"""
MISSING = "–"
ROUNDING = 1e-9
"""Of a column's largest amount: intervals that are narrower come from rounding, and have no digits of their own."""


@dataclass(frozen=True)
class Quantity:
    """What a column holds."""

    units: Units
    """The SI value of each unit, smallest first"""
    decimals: int | None = None
    """Of amounts without intervals; None: as many as their digits take"""
    least: float | None = 0.0
    """None: differences, which may be below 0"""
    most: float | None = None

    @property
    def of_differences(self) -> Quantity:
        """The same for differences of such amounts."""
        return replace(self, least=None, most=None)


SECONDS, BYTES = Quantity(units.SECONDS), Quantity(units.BYTES)
FLOPS, JOULES = Quantity(units.FLOPS), Quantity(units.JOULES)
GRAMS = Quantity(units.GRAMS)
PERCENT, POINTS = Quantity({"%": Decimal("0.01")}, 2, most=1.0), Quantity({"pp": Decimal("0.01")}, 2, least=None)
"""Shares in [0, 1], and differences of them in percentage points"""
COUNT = Quantity({"": 1})
MONEY = Quantity({"": 1})
"""In the currency of ``fleet.tiers.price``"""
OF_UNIT = {"s": SECONDS, "B": BYTES, "J": JOULES, "g": GRAMS, "money": MONEY, "": COUNT}
"""Unit of an amount (`coordinator.rounds.amounts.Amount`) -> what a column of it holds"""


@dataclass(frozen=True)
class Column:
    """The unit and the decimals of a column."""

    unit: str
    scale: float
    """SI value of the unit"""
    decimals: int
    least: float | None = None
    most: float | None = None
    """Bounds of amounts: an interval that goes beyond one is shown by its ends"""

    @classmethod
    def of(
        cls,
        quantity: Quantity,
        values: Iterable[float | None],
        halves: Iterable[float | None] = (),
        parts: Iterable[float | None] = (),
    ) -> Column:
        """The column of these SI amounts, of which some may be missing, and of the half widths of their intervals.

        ``parts``: of these amounts, which stand in other columns with the same unit and decimals.
        """
        known, widths = _sizes(values), _sizes(halves)
        widths = [size for size in widths if size > ROUNDING * max(known, default=0.0)]
        unit, scale = _unit(quantity.units, known)
        known += _sizes(parts)
        sizes = [size / scale for size in widths or known]
        if not sizes or (quantity.decimals is not None and not widths):
            return cls(unit, scale, quantity.decimals or 0, quantity.least, quantity.most)
        digits = DIGITS_OF_INTERVAL if widths else DIGITS
        decimals = max(_decimals(statistics.median_low(sizes), digits), _decimals(min(sizes), 1), 0)
        decimals = min(decimals, MOST_DECIMALS)
        while (
            decimals
            and quantity.decimals is None
            and all(f"{size / scale:.{decimals}f}".endswith("0") for size in (*known, *widths))
        ):
            decimals -= 1
        return cls(unit, scale, decimals, quantity.least, quantity.most)

    def number(self, value: float, sign: str = "") -> str:
        """An amount without its unit; ``sign``: "+" shows that of an amount above 0 as well."""
        shown = round(value / self.scale, self.decimals) + 0.0  # without the sign of zero
        if shown == 0 < value:
            return f"< {10.0**-self.decimals:.{self.decimals}f}"
        return f"{shown:{sign},.{self.decimals}f}"

    def text(self, value: float | None, half: float | None = None, missing: str = MISSING, sign: str = "") -> str:
        """``12.3 MB``, or ``12.3 ± 0.4 MB`` with half of an interval; ``12.3 (0 to 40.1) MB`` if it goes beyond what
        amounts can be."""
        if value is None or math.isnan(value):
            return missing
        if half is None:
            number = self.number(value, sign)
        else:
            mean = round(value / self.scale, self.decimals) + 0.0  # without the sign of zero
            number = f"{mean:{sign},.{self.decimals}f}"
            least, most = (-math.inf, math.inf) if sign else (_or(self.least, -math.inf), _or(self.most, math.inf))
            if least <= value <= most and (value - half < least or value + half > most):
                ends = (max(value - half, least), min(value + half, most))
                number += f" ({self.number(ends[0])} to {self.number(ends[1])})"
            else:
                number += f" ± {half / self.scale:,.{self.decimals}f}"
        return f"{number} {self.unit}".rstrip()


def _or(bound: float | None, other: float) -> float:
    return other if bound is None else bound


def cells(
    quantity: Quantity,
    values: Sequence[float | None],
    halves: Sequence[float | None] | None = None,
    missing: str = MISSING,
    sign: str = "",
) -> list[str]:
    """The texts of a whole column, as `Column.text` writes each."""
    widths = [None] * len(values) if halves is None else halves
    column = Column.of(quantity, values, widths)
    return [column.text(value, half, missing, sign) for value, half in zip(values, widths, strict=True)]


def _sizes(values: Iterable[float | None]) -> list[float]:
    """The amounts that are known and not 0, without signs."""
    return [abs(value) for value in values if value and math.isfinite(value)]


def _unit(scales: Units, sizes: Sequence[float]) -> tuple[str, float]:
    """(name, SI value) of the largest unit of which the median is at least one, or of one that no amount has too many
    of."""
    if not sizes:
        name = next((name for name, scale in scales.items() if scale == 1), next(iter(scales)))
        return name, float(scales[name])
    median = statistics.median_low(sizes)
    found, *larger = [(name, float(scale)) for name, scale in scales.items()]
    for name, scale in larger:
        if float(f"{median / scale:.{DIGITS}g}") >= 1 or max(sizes) / found[1] >= TOO_LONG:
            found = name, scale
    return found


def _decimals(size: float, digits: int) -> int:
    """Decimals with which a number has so many digits."""
    return digits - 1 - int(f"{size:.{digits - 1}e}".partition("e")[2])


# --- columns on narrow terminals ------------------------------------------------------------------------------------


def widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """The width of each column: its longest line."""
    return [max(len(line) for cell in column for line in cell.split("\n")) for column in zip(*rows, strict=True)]


def column_groups(needed: Sequence[int], width: int, gap: int) -> list[list[int]]:
    """Columns of the tables that follow each other: the first one in each, and as many others as fit ``width``.

    ``needed``: the width of each column, without the ``gap`` between two. A column that is too wide alone has a table
    of its own.
    """
    groups: list[list[int]] = []
    left = -1
    for index in range(1, len(needed)):
        if left < needed[index] + gap:
            groups.append([0])
            left = width - needed[0] if needed else width
        groups[-1].append(index)
        left -= needed[index] + gap
    return groups or [[0]]


def fitting(needed: Sequence[int], width: int, gap: int, dispensable: Sequence[int]) -> list[int]:
    """The columns that stay where not all fit ``width``; ``dispensable``: those that may go, the first one first."""
    stay = list(range(len(needed)))
    for index in dispensable:
        if sum(needed[each] for each in stay) + gap * (len(stay) - 1) <= width:
            break
        stay = [each for each in stay if each != index]
    return stay
