"""Numbers without a unit that are a thousand times too small or too large for what they measure.

Nothing is changed: a note names the number and the unit that it may have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from costmodel.fleet.devices import Device, Network


class Plausible(NamedTuple):
    """The range of a quantity, and what numbers outside of it may be in; empty if nobody can guess."""

    unit: str
    least: float
    most: float
    if_less: str
    if_more: str


RATE = Plausible("bit/s", 1e3, 1e12, "Mbit/s", "")
SPEED = Plausible("FLOP/s", 1e5, 1e16, "GFLOP/s", "")
SECONDS = Plausible("s", 0.0, 60.0, "", "ms")
WATTS = Plausible("W", 1e-4, 5e3, "kW", "mW")


def doubt(what: str, number: float, plausible: Plausible) -> str:
    """``what`` with the number and its likely unit; '' if it may be right."""
    if number == 0 or plausible.least <= number <= plausible.most:
        return ""
    other = plausible.if_less if number < plausible.least else plausible.if_more
    return f"{what} {number:,g} {plausible.unit}" + (f"; {other} given?" if other else "")


def doubts_of_row(row: Device | Network) -> Iterator[str]:
    """The notes on a device or network of the user's."""
    if isinstance(row, Network):
        named = [
            ("down_bits_per_second", row.down_bits_per_second, RATE),
            ("up_bits_per_second", row.up_bits_per_second, RATE),
            ("rtt_seconds", row.rtt_seconds, SECONDS),
        ]
    else:
        named = [(f"flops_per_second.{kind}", rate, SPEED) for kind, rate in row.flops_per_second.items()]
        named += [("step_seconds", row.step_seconds, SECONDS), ("train_watts", row.train_watts, WATTS)]
        named.append(("idle_watts", row.idle_watts, WATTS))
    for key, number, plausible in named:
        if text := doubt(f"{row.name}: {key} =", number, plausible):
            yield text
    if isinstance(row, Device) and row.idle_watts > row.train_watts:
        yield f"{row.name}: idle_watts: {row.idle_watts:g} W is more than train_watts, {row.train_watts:g} W"
