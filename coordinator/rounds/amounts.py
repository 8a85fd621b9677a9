"""The amounts that a run spends: a row each, from which tables, figures, files, costs and budgets have them.

All are running totals, of which less is better. A new one is a row here, and a column or field that counts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from costmodel import units
from edge.protocol.better import LOWER, Better

Scope = Literal["clients", "some", "devices"]
FORMATS = {"s": units.format_seconds, "B": units.format_bytes, "J": units.format_joules, "g": units.format_grams}
"""SI unit -> the text of an amount"""


@dataclass(frozen=True)
class Amount:
    """One amount."""

    key: str
    """Its name in results and CSV files"""
    field: str
    """Of `scenarios.run.progress.ProgressPoint`, which has it by round"""
    unit: str
    """``s``, ``B``, ``J`` or ``g``; ``money``; empty for a count"""
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
    columns: tuple[str, ...] = ()
    """Of the ledger's table ``rounds``, whose sum it is; none where other tables or rows tell"""
    budget: str = ""
    """The key of a scenario's budget that limits it; empty: none does"""
    scope: Scope = "clients"
    """some: where aggregators, prices, a carbon intensity or differential privacy are; devices: of the client that has
    spent the most, which visits tell"""
    otherwise: str = ""
    """The field that counts in runs where the amount does not exist; empty: it is 0 there"""
    better: Better = LOWER

    def at(self, point: Any) -> float:
        """The amount that was spent by the end of a round; NaN where it does not exist."""
        spent = getattr(point, self.field)
        return math.nan if spent is None else float(spent)

    def spent(self, point: Any) -> float:
        """The amount by the end of a round, as limits and costs count it: also where it does not exist."""
        amount = self.at(point)
        if not math.isnan(amount):
            return amount
        return float(getattr(point, self.otherwise)) if self.otherwise else 0.0

    def total(self, trail: Sequence[Any]) -> float:
        """The amount that the whole run has spent; NaN where it does not exist."""
        return self.at(trail[-1]) if trail else 0.0

    @property
    def written_unit(self) -> str:
        """The unit behind a number, which money and counts have not."""
        return self.unit if self.unit in FORMATS else ""

    def shown(self, amount: float) -> str:
        """The amount with its unit, as a user writes it."""
        return FORMATS.get(self.unit, "{:g}".format)(amount)


ROUNDS = Amount(
    key="rounds",
    field="rounds",
    unit="",
    parse=float,
    heading="rounds",
    title="Against rounds",
    axis="rounds",
    name="rounds",
    kind="rounds",
)
VIRTUAL_SECONDS = Amount(
    key="virtual_seconds",
    field="virtual_seconds",
    unit="s",
    parse=units.seconds,
    heading="virtual time",
    title="Against virtual time",
    axis="virtual time",
    name="seconds",
    kind="time",
    budget="budget.virtual_seconds",
)
BYTES = Amount(
    key="bytes",
    field="nbytes",
    columns=("bytes_down", "bytes_up"),
    unit="B",
    parse=units.nbytes,
    heading="bytes",
    title="Against bytes moved",
    axis="bytes down and up, real",
    name="bytes",
    kind="bytes",
    budget="budget.bytes",
)
NOMINAL_BYTES = Amount(
    key="nominal_bytes",
    field="nominal_nbytes",
    columns=("nominal_bytes",),
    unit="B",
    parse=units.nbytes,
    heading="nominal",
    title="Against nominal bytes",
    axis="nominal bytes",
    name="nominal_bytes",
    kind="nominal",
)
ENERGY = Amount(
    key="joules",
    field="joules",
    columns=("joules",),
    unit="J",
    parse=units.joules,
    heading="energy",
    title="Against energy",
    axis="energy of clients",
    name="joules",
    kind="joules",
    budget="budget.joules",
)
WAN_BYTES = Amount(
    key="wan_bytes",
    field="wan_nbytes",
    unit="B",
    parse=units.nbytes,
    heading="WAN bytes",
    title="Against WAN bytes",
    axis="bytes above aggregators, down and up",
    name="wan_bytes",
    kind="wan_bytes",
    budget="budget.wan_bytes",
    scope="some",
    otherwise="nbytes",  # without aggregators all bytes go the whole way to the server
)
PRICE = Amount(
    key="price",
    field="price",
    unit="money",
    parse=float,
    heading="price",
    title="Against price",
    axis="price of WAN bytes",
    name="price",
    kind="price",
    budget="budget.price",
    scope="some",
)
CO2E = Amount(
    key="co2e_grams",
    field="co2e_grams",
    unit="g",
    parse=units.grams,
    heading="CO2e",
    title="Against CO2e",
    axis="CO2e of the energy of clients",
    name="co2e_grams",
    kind="co2e_grams",
    scope="some",
)
EPSILON = Amount(
    key="epsilon",
    field="epsilon",
    unit="",
    parse=float,
    heading="epsilon",
    title="Against epsilon",
    axis="epsilon of differential privacy",
    name="epsilon",
    kind="epsilon",
    budget="budget.epsilon",
    scope="some",
)
DEVICE_ENERGY = Amount(
    key="joules_per_device",
    field="device_joules",
    unit="J",
    parse=units.joules,
    heading="energy of a device",
    title="Against the energy of a device",
    axis="energy of the client that has spent the most",
    name="joules_per_device",
    kind="joules_per_device",
    budget="budget.client.joules",
    scope="devices",
)
DEVICE_BYTES = Amount(
    key="bytes_per_device",
    field="device_nbytes",
    unit="B",
    parse=units.nbytes,
    heading="bytes of a device",
    title="Against the bytes of a device",
    axis="bytes of the client that has sent and received the most",
    name="bytes_per_device",
    kind="bytes_per_device",
    budget="budget.client.bytes",
    scope="devices",
)
AMOUNTS = (
    *(VIRTUAL_SECONDS, BYTES, NOMINAL_BYTES, ENERGY, ROUNDS),
    *(WAN_BYTES, PRICE, CO2E, EPSILON, DEVICE_ENERGY, DEVICE_BYTES),
)
BY_KEY: Mapping[str, Amount] = {amount.key: amount for amount in AMOUNTS}
BY_KIND: Mapping[str, Amount] = {amount.kind: amount for amount in AMOUNTS}
BY_NAME: Mapping[str, Amount] = {amount.name: amount for amount in AMOUNTS}


def of(scope: Scope) -> tuple[Amount, ...]:
    """The amounts of a scope."""
    return tuple(amount for amount in AMOUNTS if amount.scope == scope)
