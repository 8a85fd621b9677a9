"""The lines that the parts of ``benchmarks/gpu.py`` give, and their table. Never torch; it measures nothing."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

NO_GPU = "not measured: no GPU"
HEADINGS = ("what", "median", "least .. most", "ratio", "to", "memory", "notes")
MIB = 1 << 20


@dataclass(frozen=True)
class Row:
    """One line of the table of a part."""

    what: str
    seconds: tuple[float, ...] = ()
    """Each repetition's; empty: nothing was timed"""
    ratio: float | None = None
    """Median of the ratios of repetitions to those of ``to`` in the same turn"""
    to: str = ""
    nbytes: int | None = None
    """Memory, as ``note`` or the head of the part says"""
    note: str = ""
    failed: bool = False

    @property
    def median(self) -> float | None:
        """Seconds."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def cells(self) -> tuple[str, ...]:
        """As `HEADINGS`."""
        median = "" if self.median is None else shown(self.median)
        spread = f"{shown(min(self.seconds))} .. {shown(max(self.seconds))}" if self.seconds else ""
        ratio = "" if self.ratio is None else f"{self.ratio:.3f}"
        memory = "" if self.nbytes is None else f"{self.nbytes / MIB:.0f} MiB"
        note = f"FAILED: {self.note}" if self.failed else self.note
        return (self.what, median, spread, ratio, self.to, memory, note)

    @property
    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"median": self.median}


def row(record: Mapping[str, Any]) -> Row:
    """The row that a part printed as JSON."""
    return Row(**{**record, "seconds": tuple(record.get("seconds", ()))})


def shown(seconds: float) -> str:
    """Three digits, in milliseconds below one second."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def in_turns(seconds: Mapping[str, Sequence[float]], bases: Mapping[str, str]) -> list[Row]:
    """Rows of variants that were measured in turns; ``bases``: variant -> the one that it is held against."""
    rows = []
    for what, taken in seconds.items():
        base = bases.get(what, "")
        pairs = zip(taken, seconds.get(base, ()), strict=False)
        ratios = [own / other for own, other in pairs] if base else []
        rows.append(Row(what, tuple(taken), statistics.median(ratios) if ratios else None, base if ratios else ""))
    return rows


def markdown(title: str, head: str, rows: Iterable[Row]) -> str:
    """One part as a heading, a sentence and a table."""
    lines = [f"## {title}", "", head, "", line(HEADINGS), line(["---"] * len(HEADINGS))]
    return "\n".join([*lines, *(line(each.cells) for each in rows), ""])


def line(cells: Iterable[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cell.replace('|', '/').replace(chr(10), ' ') for cell in cells)} |"
