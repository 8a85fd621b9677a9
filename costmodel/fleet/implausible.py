"""Numbers without a unit that are a thousand times too small or too large for what they measure.

Nothing is changed: a note names the number and the unit that it may have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from costmodel.config import FleetConfig
from costmodel.fleet.devices import Device, Network
from costmodel.fleet.traces import Capacities, Cases, Machines, RateSeries, RecordedDays, Trace, Users
from costmodel.step_series import StepSeries


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
STEP = Plausible("s", 0.0, 1.0, "", "ms")
ROUND_TRIP = Plausible("s", 0.0, 5.0, "", "ms")
WATTS = Plausible("W", 1e-4, 5e3, "kW", "mW")
RADIO_WATTS = Plausible("W", 1e-6, 100.0, "", "mW")
JOULES_PER_BIT = Plausible("J/bit", 1e-14, 1e-3, "", "uJ/bit or nJ/bit")
MEMORY = Plausible("B", 16e3, 1e14, "GB or MB", "")
EFFICIENCY = Plausible("FLOP/J", 1e7, 1e13, "other units", "other units")
CLOCK = Plausible("Hz", 1e6, 1e11, "GHz or MHz", "")
GIGABYTE = Plausible("a GB", 1e-4, 1e5, "the price of a MB or a byte", "the price of a TB")
KILOWATT_HOUR = Plausible("a kWh", 1e-3, 1e4, "the price of a Wh or a joule", "the price of a MWh")
"""Both are wide, since a price may be in any currency."""


def doubt(what: str, number: float, plausible: Plausible) -> str:
    """``what`` with the number and its likely unit; '' if it may be right. Infinity stands for "no limit"."""
    if number == 0 or math.isinf(number) or plausible.least <= number <= plausible.most:
        return ""
    other = plausible.if_less if number < plausible.least else plausible.if_more
    return f"{what} {number:,g} {plausible.unit}" + (f"; {other} given?" if other else "")


def doubts_of_row(row: Device | Network) -> Iterator[str]:
    """The notes on a device or network of the user's."""
    if isinstance(row, Network):
        radio = ("transmit_watts", "receive_watts", "base_watts", "tail_watts", "promotion_watts")
        named = [
            ("down_bits_per_second", row.down_bits_per_second, RATE),
            ("up_bits_per_second", row.up_bits_per_second, RATE),
            ("rtt_seconds", row.rtt_seconds, ROUND_TRIP),
            *((key, getattr(row, key), RADIO_WATTS) for key in radio),
            ("transmit_joules_per_bit", row.transmit_joules_per_bit, JOULES_PER_BIT),
            ("receive_joules_per_bit", row.receive_joules_per_bit, JOULES_PER_BIT),
            ("tail_seconds", row.tail_seconds, SECONDS),
            ("promotion_seconds", row.promotion_seconds, SECONDS),
        ]
    else:
        named = [(f"flops_per_second.{kind}", rate, SPEED) for kind, rate in row.flops_per_second.items()]
        named += [("step_seconds", row.step_seconds, STEP), ("train_watts", row.train_watts, WATTS)]
        named += [("idle_watts", row.idle_watts, WATTS), ("memory_bytes", row.memory_bytes, MEMORY)]
        named.append(("clock_hz", row.clock_hz, CLOCK))
    texts = [text for key, number, plausible in named if (text := doubt(f"{row.name}: {key} =", number, plausible))]
    if isinstance(row, Device) and row.train_watts and not texts:
        per_watt = row.throughput("conv") / row.train_watts
        texts.append(doubt(f"{row.name}: FLOP/s (conv) over watts =", per_watt, EFFICIENCY))
    yield from filter(None, texts)
    if isinstance(row, Device) and row.idle_watts > row.train_watts:
        yield f"{row.name}: idle_watts: {row.idle_watts:g} W is more than train_watts, {row.train_watts:g} W"


def doubts_of_tables(fleet: FleetConfig) -> Iterator[str]:
    """The notes on prices of a scenario, and on rates of the links that clients and aggregators share."""
    tables = {"fleet.server": fleet.server, "fleet.gateways": fleet.gateways}
    tiers = {"fleet.tiers": fleet.tiers, "fleet.tiers.above": fleet.tiers.above} if fleet.tiers.count else {}
    named = [(f"{key}.{way}", getattr(table, way), RATE) for key, table in {**tables, **tiers}.items() for way in WAYS]
    named += [("fleet.rates", rate, RATE) for rate in fleet.rates or ()]
    named += [("fleet.price.gb", fleet.price.gb, GIGABYTE), ("fleet.price.kwh", fleet.price.kwh, KILOWATT_HOUR)]
    named += [(f"{key}.price", table.price, GIGABYTE) for key, table in tiers.items()]
    for key, number, plausible in named:
        if text := doubt(f"{key} =", number, plausible):
            yield text


WAYS = ("down", "up")


def doubts_of_trace(trace: Trace) -> Iterator[str]:
    """The notes on a recording, by column of the file."""
    if isinstance(trace, RateSeries):
        yield doubt_of_series("rate:", trace.bits_per_second, RATE)
    if isinstance(trace, RecordedDays):
        yield doubt_of_series("column down_bits_per_second:", trace.down, RATE)
        yield doubt_of_series("column up_bits_per_second:", trace.up, RATE)
        yield doubt_of_series("column flops_per_second:", trace.flops_per_second or (), SPEED)
        return
    columns: list[tuple[str, ArrayLike, Plausible]] = []
    if isinstance(trace, Machines):
        columns.append(("flops_per_second", trace.flops_per_second, SPEED))
        columns += [("down_bits_per_second", trace.down, RATE), ("up_bits_per_second", trace.up, RATE)]
        columns.append(("rtt_seconds", () if trace.rtt_seconds is None else trace.rtt_seconds, ROUND_TRIP))
    elif isinstance(trace, Capacities):
        columns.append(("communication_kbps", trace.bits_per_second, RATE))
    elif isinstance(trace, Users):
        columns += [("down_kbps_mean", trace.down, RATE), ("up_kbps_mean", trace.up, RATE)]
    elif isinstance(trace, Cases):
        columns.append(("kbps_mean", np.concatenate([mean for mean, _ in trace.cases.values()]), RATE))
    for name, numbers, plausible in columns:
        values = np.asarray(numbers, np.float64)
        least, most = values.min(initial=math.inf), values.max(initial=0.0)
        yield doubt(f"column {name}: as little as", float(least), plausible) if least < plausible.least else ""
        yield doubt(f"column {name}: as much as", float(most), plausible) if most > plausible.most else ""


def doubt_of_series(what: str, series: Iterable[StepSeries], plausible: Plausible) -> str:
    """The note on figures over time, of which a single one may well be small; '' if they may be right."""
    numbers = [number for each in series for number in each.values if number]
    most, least = max(numbers, default=0.0), min(numbers, default=0.0)
    if least > plausible.most:
        return doubt(f"{what} at least", least, plausible)
    return doubt(f"{what} at most", most, plausible) if most < plausible.least else ""
