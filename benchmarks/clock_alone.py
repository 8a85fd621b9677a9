"""The clock alone at large numbers of clients, with a made-up fleet and one fixed visit.

``python -m benchmarks.clock_alone ARGUMENTS``: the JSON of `clock_alone`'s arguments, in a process whose memory is its
own. There are no workers, no coordinator and no ledger, which ``fedbr stress`` has; nothing is trained, and
no data is read. Virtual results follow from the arguments; wall seconds and bytes of memory are this machine's. Memory
is that of the process as the system sees it, in the same pass: tracing allocations would take several times as long as
the round.

With an unlimited server link visits do not affect each other, so a round is solved in parts, with bit-identical
results and the memory of one part. Below gateways that aggregate, each part is the visits of some of them, whose links
share nothing with the others'.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.records.bottleneck import bottleneck
from coordinator.rounds.policy import RoundPolicy
from coordinator.rounds.selection import sample_cohort
from costmodel.clock import Clock
from costmodel.config import FleetConfig, ServerLink, TierConfig
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.fleet import Fleet
from costmodel.garbage import without_garbage_collection
from costmodel.network.links import Links
from costmodel.tiers import TierClock
from costmodel.visits.timeline import Timeline
from costmodel.visits.work import Work, Works
from edge.protocol.rng import keyed_generator
from scenarios.studies.stress import ResidentMemory

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


@dataclass(frozen=True)
class GatewayRound:
    """A round with gateways; its seconds are of the gateway that it waited for last, and add up to the round's."""

    gateways: int
    """Those with clients in the round"""
    wan_bytes_down: int
    wan_bytes_up: int
    held_wan: int
    """Messages of gateways with contention on the server's link"""
    wan_down_seconds: float
    lan_seconds: float
    """Of its clients' visits, from the first beginning to the last end"""
    gateway_seconds: float
    """Of its aggregation"""
    wan_up_seconds: float
    server_seconds: float
    """Of the server's aggregation"""


def clock_alone(
    clients: int,
    cohort: int,
    policy: str = "sync",
    contended: bool = False,
    *,
    seed: int = 0,
    rounds: int = 1,
    visits: int | None = None,
    gateways: int = 0,
) -> dict[str, Any]:
    """Virtual results, and what they took here.

    ``cohort`` clients take part in each of ``rounds``. With an asynchronous policy, ``cohort`` visits are under way at
    a time until ``visits`` have ended (by default three per place, at least `LEAST_VISITS`). ``gateways``: aggregators
    that the clients belong to in turn; 0: none.
    """
    rules = RoundPolicy(policy, cohort)
    memory = ResidentMemory()
    fleet = _fleet(clients, cohort, contended, seed, gateways)
    server = fleet.config.server if gateways else fleet.links
    result: dict[str, Any] = {
        "clients": clients,
        "cohort": cohort,
        "policy": policy,
        "contended": contended,
        "seed": seed,
        "visit": asdict(VISIT),
        "server_down_bits_per_second": server.down if contended else None,
        "server_up_bits_per_second": server.up if contended else None,
    }
    if rules.is_asynchronous:
        with without_garbage_collection():
            return result | _stream(fleet, rules, seed, visits or max(3 * cohort, LEAST_VISITS))
    clock = Clock(fleet)
    tier = TierClock.build(fleet.config, streams=fleet.streams) if gateways else None
    building = memory.peak_bytes()
    if tier is None:
        made, lengths = zip(*(_round(clock, rules, seed, number) for number in range(rounds)), strict=True)
    else:
        playing_below = (_round_below(clock, tier, rules, seed, number) for number in range(rounds))
        made, lengths, of_gateways = zip(*playing_below, strict=True)
        lans = tuple(links[0] if contended else None for links in (fleet.links.site_down, fleet.links.site_up))
        result |= dict(zip(("lan_down_bits_per_second", "lan_up_bits_per_second"), lans, strict=True))
        result["gateways"] = [asdict(each) for each in of_gateways]
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


def _fleet(clients: int, cohort: int, contended: bool, seed: int, gateways: int = 0) -> Fleet:
    streams = partial(keyed_generator, seed)
    fleet = Fleet.build(clients, FLEET, streams=streams)
    down, up = (CONTENDED * cohort * float(rates.mean()) for rates in (fleet.down, fleet.up))
    if not gateways:
        return replace(fleet, links=Links(down, up)) if contended else fleet
    # Only links are shared out here: how long gateways and server take to add up is as in a scenario by default.
    server = ServerLink(math.inf, math.inf)
    lans = (down / gateways, up / gateways) if contended else (math.inf, math.inf)
    config = replace(FLEET, server=server, tiers=TierConfig(gateways, down=lans[0], up=lans[1]))
    if contended:
        wan = TierClock.build(config, streams=streams).fleet(0)
        rates = (CONTENDED * gateways * float(each.mean()) for each in (wan.down, wan.up))
        config = replace(config, server=ServerLink(*rates))
    return replace(fleet, config=config, links=Links.of(config))


# --- synchronous rounds -----------------------------------------------------------------------------------------------


def _round(clock: Clock, rules: RoundPolicy, seed: int, number: int) -> tuple[StressRound, Doubles]:
    """A whole round, and the seconds of each visit if it were not interrupted."""
    chosen = _chosen(clock, rules, seed, number)
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
            what = bottleneck(timeline.only(np.array([slowest])), clock.fleet.links.access)
        clock.passed(conditions, timeline)
    clock.advance(last)
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu_started
    return StressRound(last - begun, wall, cpu, chosen.size, counted, held, critical, what), lengths


def _round_below(
    clock: Clock, tier: TierClock, rules: RoundPolicy, seed: int, number: int
) -> tuple[StressRound, Doubles, GatewayRound]:
    """A whole round in which gateways get the model, let their clients train, and send the mean of these to the server;
    the seconds of each visit; and what is counted of gateways."""
    chosen = _chosen(clock, rules, seed, number)
    started, cpu_started = time.perf_counter(), time.process_time()
    begun, links, gateways = clock.now, clock.fleet.links, tier.sizes[0]
    members = np.bincount(chosen % gateways, minlength=gateways)
    down = tier.down(0, np.full(gateways, begun), members > 0, VISIT.bytes_down, number)
    lengths, last, held = np.empty(chosen.size), np.full(gateways, -math.inf), 0
    of_last: dict[int, tuple[int, str]] = {}
    for place in _below_some(chosen % gateways, members):
        starts = down.end[chosen[place] % gateways]
        conditions, timeline = _solved(clock, chosen[place], number, starts)
        lengths[place] = timeline.end - starts
        held += int((timeline.contention_seconds > 0).sum())
        clock.passed(conditions, timeline)
        order = np.lexsort((timeline.end, conditions.access_link))
        slowest = order[np.append(np.diff(conditions.access_link[order]) > 0, True)]  # of each gateway
        last[conditions.access_link[slowest]] = timeline.end[slowest]
        for visit in slowest.tolist():
            what = bottleneck(timeline.only(np.array([visit])), links.access)
            of_last[int(conditions.access_link[visit])] = int(conditions.clients[visit]), what
    ready = last + members * (VISIT.bytes_up / links.aggregate_bytes_per_second + links.seconds_per_visit)
    up = tier.up(0, ready, members > 0, VISIT.bytes_up, number)
    critical = int(np.argmax(np.where(members > 0, up.end, -math.inf)))
    whole_up = int(up.nbytes.sum())
    added_up = tier.aggregation_seconds(0, whole_up, int((members > 0).sum()))
    end = float(up.end[critical]) + added_up
    clock.advance(end)
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu_started
    milestones = (begun, down.end[critical], last[critical], ready[critical], up.end[critical])
    to_gateway, below, added, to_server = np.diff(np.array(milestones, np.float64)).tolist()
    held_wan = int((down.contention_seconds > 0).sum() + (up.contention_seconds > 0).sum())
    counts = int((members > 0).sum()), int(down.nbytes.sum()), whole_up, held_wan
    of_gateways = GatewayRound(*counts, to_gateway, below, added, to_server, added_up)
    made = StressRound(end - begun, wall, cpu, chosen.size, chosen.size, held, *of_last[critical])
    return made, lengths, of_gateways


def _chosen(clock: Clock, rules: RoundPolicy, seed: int, number: int) -> Clients:
    clients = len(clock.fleet)
    if rules.cohort >= clients:
        return np.arange(clients)
    return np.array(sample_cohort(seed, number, range(clients), rules.cohort), np.intp)


def _below_some(gateway_of: Clients, members: Clients) -> Iterator[Clients]:
    """The places of the visits of some gateways at a time, of at least `PART` visits while there are as many."""
    by_gateway = np.argsort(gateway_of, kind="stable")
    first = 0
    for last in np.cumsum(members).tolist():
        if last - first >= PART or first < last == gateway_of.size:
            yield by_gateway[first:last]
            first = last


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
        yield place, *_solved(clock, clients, number, np.full(clients.size, clock.now), until)


def _solved(
    clock: Clock, clients: Clients, number: int, starts: Doubles, until: float = math.inf
) -> tuple[Conditions, Timeline]:
    """The visits of these clients alone."""
    conditions, count = clock.conditions(clients, number), clients.size
    works = Works(
        np.full(count, VISIT.bytes_down, np.int64),
        np.full(count, VISIT.bytes_up, np.int64),
        np.full(count, VISIT.flops, np.float64),
        np.full(count, VISIT.steps, np.int64),
        np.full(count, VISIT.codec_seconds, np.float64),
    )
    return conditions, clock.solve(starts, works, conditions, until)


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


if __name__ == "__main__":
    print(json.dumps(clock_alone(**json.loads(sys.argv[1]))))
