"""The cost model alone at large numbers of clients, with a made-up fleet and one fixed visit.

Nothing is trained and no data is read. Virtual results follow from the arguments; wall seconds and bytes of memory are
this machine's. Memory is that of the process as the system sees it, in the same pass: tracing allocations would take
several times as long as the round.

With an unlimited server link visits do not affect each other, so a round is solved in parts, with bit-identical
results and the memory of one part.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import psutil
from numpy.typing import NDArray

from coordinator.records.round_record import bottleneck
from coordinator.rounds.policy import POLICIES, RoundPolicy
from coordinator.rounds.selection import sample_cohort
from costmodel.clock import Clock
from costmodel.config import FleetConfig, ServerLink
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.fleet import Fleet
from costmodel.garbage import without_garbage_collection
from costmodel.network.links import Links
from costmodel.units import format_bytes, format_flops, format_rate, format_seconds, seconds
from costmodel.visits.timeline import Timeline
from costmodel.visits.work import Work, Works
from edge.protocol.rng import keyed_generator
from edge.protocol.spelling import nearest
from scenarios.config.errors import ScenarioError
from scenarios.report import terminal

Doubles = NDArray[np.float64]
Clients = NDArray[np.intp]

VISIT = Work(bytes_down=1_000_000, bytes_up=1_000_000, flops=20e9, steps=50)
DEVICES = {
    "phone-mid": 0.3,
    "phone-high": 0.2,
    "phone-low": 0.2,
    "laptop-cpu": 0.15,
    "raspberry-pi-4": 0.1,
    "jetson-nano": 0.05,
}
"""Shares of the fleet. They, those of the networks, and the variations below are made up for heterogeneity."""
NETWORKS = {"wifi-4": 0.4, "mobile-world": 0.2, "lte": 0.15, "broadband": 0.15, "5g": 0.1}
FLEET = FleetConfig(
    devices=DEVICES,
    networks=NETWORKS,
    compute_sigma=0.3,
    down_sigma="network",
    up_sigma="network",
    jitter=0.1,
    server=ServerLink(math.inf, math.inf, math.inf),
)
CONTENDED = 0.05
"""Capacity of a contended link, as a fraction of the demand of a cohort of average clients."""
PART = 1 << 13
"""Visits that are solved together with an unlimited link."""
LEAST_VISITS = 30_000
STATUS = Path("/proc/self/status")
PERCENTILES = {"p5": 5, "p50": 50, "p95": 95, "p99": 99, "max": 100}


@dataclass(frozen=True)
class StressRound:
    seconds: float
    """Virtual, from beginning to end"""
    wall_seconds: float
    """Wall time of drawing conditions, solving visits and recording them"""
    cpu_seconds: float
    """The same in CPU time of this process, which other load on the machine hardly affects"""
    visits: int
    counted: int
    held: int
    """Visits with contention on the server's link"""
    critical: int
    """The client that the round waited for last"""
    bottleneck: str
    """The bottleneck of its visit"""


def stress(
    clients: int,
    cohort: int,
    policy: str,
    contended: bool,
    *,
    seed: int = 0,
    rounds: int = 1,
    visits: int | None = None,
    deadline: float | None = None,
) -> dict[str, Any]:
    """What ``stress --json`` prints.

    ``cohort`` clients take part in each of ``rounds``. With an asynchronous policy, ``cohort`` visits are under way at
    a time until ``visits`` have ended (by default three per place, at least `LEAST_VISITS`). ``deadline``: seconds, for
    the policy of this name alone. ScenarioError for invalid numbers and unknown policies.
    """
    if policy not in POLICIES:
        raise ScenarioError(f"--policy: no policy {policy!r}; {nearest(policy, POLICIES)}")
    for name, number in (("clients", clients), ("cohort", cohort), ("rounds", rounds), ("visits", visits)):
        if number is not None and number < 1:
            raise ScenarioError(f"--{name}: must be at least 1, not {number}")
    if deadline is not None and policy != "deadline":
        raise ScenarioError(f"--deadline: policy {policy!r} has none; add --policy deadline")
    if deadline is not None and not 0 < deadline < math.inf:
        raise ScenarioError(f"--deadline: must be more than 0 s, not {deadline:g} s")
    if cohort > clients:
        raise ScenarioError(f"--cohort: must be at most the number of clients, {clients}, not {cohort}")
    rules = RoundPolicy(policy, cohort) if deadline is None else RoundPolicy(policy, cohort, deadline=deadline)
    memory = ResidentMemory()
    fleet = _fleet(clients, cohort, contended, seed)
    result: dict[str, Any] = {
        "clients": clients,
        "cohort": cohort,
        "policy": policy,
        "deadline_seconds": rules.deadline if policy == "deadline" else None,
        "contended": contended,
        "seed": seed,
        "visit": asdict(VISIT),
        "server_down_bits_per_second": fleet.links.down if contended else None,
        "server_up_bits_per_second": fleet.links.up if contended else None,
    }
    if rules.is_asynchronous:
        with without_garbage_collection():
            return result | _stream(fleet, rules, seed, visits or max(3 * cohort, LEAST_VISITS))
    clock = Clock(fleet)
    building = memory.peak_bytes()
    made, lengths = zip(*(_round(clock, rules, seed, number) for number in range(rounds)), strict=True)
    wall = sum(each.wall_seconds for each in made)
    result |= {
        "virtual_seconds": math.fsum(each.seconds for each in made),
        "visit_seconds": _percentiles(np.concatenate(lengths)),
        "wall_seconds": wall,
        "cpu_seconds": sum(each.cpu_seconds for each in made),
        "flows_per_second": 2 * sum(each.visits for each in made) / wall,  # a download and an upload each
        "rounds": [asdict(each) for each in made],
    }
    columns, playing = [*vars(clock.fleet).values(), *clock.state().values()], memory.peak_bytes()
    return result | {
        "fleet_bytes": sum(column.nbytes for column in columns if isinstance(column, np.ndarray)),
        "fleet_peak_bytes": building,
        "round_peak_bytes": playing,
        "peak_bytes_per_client": playing / clients,
    }


def deadline_seconds(text: str) -> float:
    """The seconds of the option ``--deadline``, with its unit; ScenarioError for anything else."""
    try:
        return seconds(text)
    except ValueError as error:
        raise ScenarioError(f"--deadline: {error}") from None


def _fleet(clients: int, cohort: int, contended: bool, seed: int) -> Fleet:
    fleet = Fleet.build(clients, FLEET, streams=partial(keyed_generator, seed))
    if not contended:
        return fleet
    down, up = (CONTENDED * cohort * float(rates.mean()) for rates in (fleet.down, fleet.up))
    return replace(fleet, links=Links(down, up))


# --- synchronous rounds -----------------------------------------------------------------------------------------------


def _round(clock: Clock, rules: RoundPolicy, seed: int, number: int) -> tuple[StressRound, Doubles]:
    """A whole round, and the seconds of each visit if it were not interrupted."""
    chosen = np.arange(len(clock.fleet))
    if rules.cohort < len(chosen):
        chosen = np.array(sample_cohort(seed, number, range(len(chosen)), rules.cohort), np.intp)
    started, cpu_started = time.perf_counter(), time.process_time()
    begun, end = clock.now, math.inf
    lengths = np.empty(chosen.size)
    if rules.policy != "sync":
        for place, _, timeline in _timed(clock, chosen, number):
            lengths[place] = timeline.end - begun
        end = closing(rules, lengths + begun, begun)
    counted, held, last, critical, what = 0, 0, -math.inf, -1, ""
    for place, conditions, timeline in _timed(clock, chosen, number, end):
        ends = np.minimum(timeline.end, end)
        if rules.policy == "sync":
            lengths[place] = ends - begun
        counted += int((timeline.up_end <= end).sum())
        held += int((timeline.contention_seconds > 0).sum())
        slowest = int(np.argmax(ends))
        if ends[slowest] > last:
            last, critical = float(ends[slowest]), int(conditions.clients[slowest])
            what = bottleneck(timeline, slowest, last, 0.0)
        clock.passed(conditions, timeline)
    clock.advance(last)
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu_started
    return StressRound(last - begun, wall, cpu, chosen.size, counted, held, critical, what), lengths


def closing(rules: RoundPolicy, ends: Doubles, begun: float) -> float:
    """The end of a round whose visits end at ``ends``; absolute seconds."""
    if rules.policy == "over_select" and ends.size > rules.participants:
        return float(np.partition(ends, rules.participants - 1)[rules.participants - 1])
    last = float(ends.max())
    return min(last, begun + rules.deadline) if rules.policy == "deadline" else last


def _timed(
    clock: Clock, chosen: Clients, number: int, until: float = math.inf
) -> Iterator[tuple[slice, Conditions, Timeline]]:
    """The visits of a round in parts: (slice of ``chosen``, conditions, timeline)."""
    part = chosen.size if clock.fleet.links.down < math.inf else PART
    for first in range(0, chosen.size, part):
        place = slice(first, min(first + part, chosen.size))
        clients = chosen[place]
        conditions, count = clock.conditions(clients, number), clients.size
        works = Works(
            np.full(count, VISIT.bytes_down, np.int64),
            np.full(count, VISIT.bytes_up, np.int64),
            np.full(count, VISIT.flops, np.float64),
            np.full(count, VISIT.steps, np.int64),
            np.full(count, VISIT.codec_seconds, np.float64),
        )
        yield place, conditions, clock.solve(np.full(count, clock.now), works, conditions, until)


def _percentiles(values: NDArray[Any]) -> dict[str, float]:
    amounts = np.percentile(values, list(PERCENTILES.values()))
    return dict(zip(PERCENTILES, map(float, amounts), strict=True))


# --- visits one by one ------------------------------------------------------------------------------------------------


def _stream(fleet: Fleet, rules: RoundPolicy, seed: int, visits: int) -> dict[str, Any]:
    """Keep a cohort of visits under way until ``visits`` have ended; a server step takes one or more of them."""
    clock, rng = Clock(fleet), keyed_generator(seed, "cohort")
    idle = rng.permutation(len(fleet)).tolist()
    per_step = rules.updates_per_step
    began_at: dict[int, int] = {}
    staleness = np.empty(visits, np.int64)
    lengths = np.empty(visits)
    started, cpu_started = time.perf_counter(), time.process_time()
    for ended in range(-rules.participants, visits):
        # The first passes of the loop only start visits.
        if ended >= 0:
            item = clock.next()
            clock.passed(item.conditions, item.timeline)
            staleness[ended] = ended // per_step - began_at.pop(item.order)
            lengths[ended] = item.timeline.end[0] - item.timeline.start[0]
            idle.append(item.order)
        at = int(rng.integers(len(idle)))
        idle[at], idle[-1] = idle[-1], idle[at]
        client = idle.pop()
        began_at[client] = max(ended + 1, 0) // per_step
        number = ended + rules.participants
        clock.begin(VISIT, clock.conditions([client], began_at[client], number), client)
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu_started
    return {
        "virtual_seconds": clock.now,
        "visit_seconds": _percentiles(lengths),
        "staleness": _percentiles(staleness),
        "server_steps": visits // per_step,
        "visits": visits,
        "simpy_events": clock.events,
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "events_per_second": clock.events / wall,
        "visits_per_second": visits / wall,
    }


# --- memory -----------------------------------------------------------------------------------------------------------


class ResidentMemory:
    """The memory of this process as the system sees it: its peak above what was resident at the beginning.

    The system's record of the peak is read and never reset, so that ``time`` and a batch system read the true one.
    A process that has had a higher peak before hides one that is lower: it tells what is resident then. Memory that was
    free within the process at the beginning is used again unseen. So a process of its own shows most.
    """

    def __init__(self) -> None:
        self._before = psutil.Process().memory_info().rss
        self._peak_before = self._peak()
        self._growth = 0

    def peak_bytes(self) -> int:
        """Largest growth since the beginning."""
        peak = self._peak()
        if peak <= self._peak_before:
            peak = psutil.Process().memory_info().rss
        self._growth = max(peak - self._before, self._growth)
        return self._growth

    def _peak(self) -> int:
        if STATUS.exists():
            for line in STATUS.read_text().splitlines():
                name, _, amount = line.partition(":")
                if name == "VmHWM":
                    return 1024 * int(amount.split()[0])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


# --- output -------------------------------------------------------------------------------------------------------


def show(result: dict[str, Any], stream: IO[str] | None = None) -> None:
    terminal.print_facts(rows(result), stream, width=80)


def rows(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    visit = result["visit"]
    devices, networks = (
        ", ".join(f"{share:.0%} {name}" for name, share in shares.items()) for shares in (DEVICES, NETWORKS)
    )
    yield "fleet", f"{result['clients']:,} clients, {devices}; {networks}"
    yield (
        "each visit",
        f"{format_bytes(visit['bytes_down'])} down, {format_bytes(visit['bytes_up'])} up, "
        f"{format_flops(visit['flops'])} in {visit['steps']} steps",
    )
    rates = result["server_down_bits_per_second"], result["server_up_bits_per_second"]
    yield "server", f"{format_rate(rates[0])} down, {format_rate(rates[1])} up" if rates[0] else "never a bottleneck"
    is_asynchronous = RoundPolicy(result["policy"]).is_asynchronous
    at_a_time = "visits at a time" if is_asynchronous else "clients a round"
    deadline = result["deadline_seconds"]
    until = "" if deadline is None else f" of at most {format_seconds(deadline)}"
    yield "policy", f"{result['policy']}, {result['cohort']:,} {at_a_time}{until}"
    virtual, wall = (format_seconds(result[key]) for key in ("virtual_seconds", "wall_seconds"))
    if is_asynchronous:
        yield "visits", f"{result['visits']:,} ended, {virtual} of virtual time"
        yield "server steps", f"{result['server_steps']:,}"
        yield "staleness", _spread(result["staleness"], lambda steps: f"{steps:.0f}")
        yield (
            "wall time",
            f"{wall}, {result['events_per_second']:,.0f} of {result['simpy_events']:,} SimPy events per second, "
            f"{result['visits_per_second']:,.0f} visits per second",
        )
    else:
        last = result["rounds"][-1]
        yield "rounds", f"{len(result['rounds'])}, {virtual} of virtual time"
        counts = f"{last['visits']:,} visits, {last['counted']:,} counted, {last['held']:,} slowed by contention"
        yield "last round", counts
        yield "critical", f"client {last['critical']}; bottleneck: {last['bottleneck']}"
        yield "wall time", f"{wall}, {result['flows_per_second']:,.0f} flows per second"
        building, kept, playing = (
            format_bytes(result[key]) for key in ("fleet_peak_bytes", "fleet_bytes", "round_peak_bytes")
        )
        yield (
            "memory",
            f"{result['peak_bytes_per_client']:,.0f} B per client at most: {building} to build the fleet, "
            f"{kept} to hold it, {playing} with a round",
        )
    yield "visits took", _spread(result["visit_seconds"], format_seconds)


def _spread(found: dict[str, float], text: Callable[[float], str]) -> str:
    return ", ".join(f"{name} {text(value)}" for name, value in found.items())
