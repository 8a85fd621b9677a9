"""The amounts that a run spends: a row each, from which tables, figures, files, costs and budgets have them.

All are running totals, of which less is better. A new one is a row here, and a column or field that counts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from costmodel import units

Scope = Literal["clients", "tiers", "devices"]


@dataclass(frozen=True)
class Amount:
    """One amount."""

    key: str
    """Its name in results and CSV files"""
    field: str
    """Of `scenarios.run.progress.ProgressPoint`, which has it by round"""
    unit: str
    """``s``, ``B`` or ``J``; ``money``; empty for a count"""
    parse: Callable[[units.Quantity], float]
    """Its value of a number or a text with a unit, such as "2 GB"; ValueError"""
    heading: str
    """In tables"""
    title: str
    """Of a figure's panel"""
    axis: str
    """Label of a figure's axis, without its unit"""
    name: str
    """As users write costs and budgets of decisions"""
    kind: str
    """As runs are told what they have to reach"""
    budget: str
    """The key of a scenario that limits it; empty: none does"""
    scope: Scope = "clients"
    """tiers: where aggregators or prices are; devices: of the client that has spent the most, which visits tell"""

    def at(self, point: Any) -> float:
        """The amount that was spent by the end of a round; NaN where it does not exist."""
        spent = getattr(point, self.field)
        return math.nan if spent is None else float(spent)

    def total(self, trail: Sequence[Any]) -> float:
        """The amount that the whole run has spent; NaN where it does not exist."""
        return self.at(trail[-1]) if trail else 0.0

    @property
    def written_unit(self) -> str:
        """The unit behind a number, which money and counts have not."""
        return self.unit if self.unit in ("s", "B", "J") else ""

    def shown(self, amount: float) -> str:
        """The amount with its unit, as a user writes it."""
        return {"s": units.format_seconds, "B": units.format_bytes, "J": units.format_joules}.get(
            self.unit, "{:g}".format
        )(amount)


ROUNDS = Amount(
    *("rounds", "rounds", "", float, "rounds", "Against rounds", "rounds"),
    *("rounds", "rounds", "rounds.max"),
)
VIRTUAL_SECONDS = Amount(
    *("virtual_seconds", "virtual_seconds", "s", units.seconds, "virtual time", "Against virtual time", "virtual time"),
    *("seconds", "time", "budget.virtual_seconds"),
)
BYTES = Amount(
    *("bytes", "nbytes", "B", units.nbytes, "bytes", "Against bytes moved", "bytes down and up, real"),
    *("bytes", "bytes", "budget.bytes"),
)
NOMINAL_BYTES = Amount(
    *("nominal_bytes", "nominal_nbytes", "B", units.nbytes, "nominal", "Against nominal bytes", "nominal bytes"),
    *("nominal_bytes", "nominal", ""),
)
ENERGY = Amount(
    *("joules", "joules", "J", units.joules, "energy", "Against energy", "energy of clients"),
    *("joules", "joules", "budget.joules"),
)
WAN_BYTES = Amount(
    *("wan_bytes", "wan_nbytes", "B", units.nbytes, "WAN bytes", "Against WAN bytes"),
    *("bytes above aggregators, down and up", "wan_bytes", "wan_bytes", "budget.wan_bytes", "tiers"),
)
PRICE = Amount(
    *("price", "price", "money", float, "price", "Against price", "price of WAN bytes"),
    *("price", "price", "budget.price", "tiers"),
)
DEVICE_ENERGY = Amount(
    *("joules_per_device", "device_joules", "J", units.joules, "energy of a device", "Against the energy of a device"),
    *("energy of the client that has spent the most", "joules_per_device", "joules_per_device"),
    *("budget.client.joules", "devices"),
)
DEVICE_BYTES = Amount(
    *("bytes_per_device", "device_nbytes", "B", units.nbytes, "bytes of a device", "Against the bytes of a device"),
    *("bytes of the client that has sent and received the most", "bytes_per_device", "bytes_per_device"),
    *("budget.client.bytes", "devices"),
)
AMOUNTS = (
    *(VIRTUAL_SECONDS, BYTES, NOMINAL_BYTES, ENERGY, ROUNDS),
    *(WAN_BYTES, PRICE, DEVICE_ENERGY, DEVICE_BYTES),
)
BY_KEY: Mapping[str, Amount] = {amount.key: amount for amount in AMOUNTS}
BY_KIND: Mapping[str, Amount] = {amount.kind: amount for amount in AMOUNTS}
BY_NAME: Mapping[str, Amount] = {amount.name: amount for amount in AMOUNTS if amount.budget}
"""Those that decisions weigh"""


def of(scope: Scope) -> tuple[Amount, ...]:
    """The amounts of a scope."""
    return tuple(amount for amount in AMOUNTS if amount.scope == scope)
