"""One visit, part by part: the times it names, and that playing visits one by one is the batch, to the bit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from costmodel.clock import Clock, VisitEnded
from costmodel.config import Transport
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.dynamics import ClientDynamics
from costmodel.network.fair_link import Served
from costmodel.network.links import Links
from costmodel.visits.live_visit import COMPUTE, DOWNLOAD, FINISHED, UPLOAD, LiveVisit
from costmodel.visits.timeline import Timeline
from costmodel.visits.work import Work
from tests.costmodel.worlds import (
    FIRST_ENDS,
    INF,
    VISIT,
    World,
    conditions,
    differences,
    ends,
    fleet_of,
    joined,
    random_world,
)
from tests.crossed import every

WORLDS = 512


def _flight(work: Work = VISIT, **columns: float) -> LiveVisit:
    return LiveVisit(work, conditions(**columns), Links(), ClientDynamics(), 0.0)


def _download(flight: LiveVisit) -> None:
    flight.message.next_part(0.7, 12_112.0)
    flight.part_sent(Served(1.7, 12_112.0, 0.0, 0.0))


def test_a_flight_names_the_time_of_each_of_its_parts() -> None:
    flight = _flight()
    # The connection is set up first.
    assert flight.begin() == pytest.approx((0.7, INF))
    assert (flight.part, flight.flows, flight.rate(0.7)) == (DOWNLOAD, True, (12_112.0, INF))
    # The link says when all has been sent; half a round trip later it is there.
    assert flight.message.next_part(0.7, 12_112.0) == (12_112.0, 12_112.0)
    assert flight.part_sent(Served(1.7, 12_112.0, 0.0, 0.0)) == pytest.approx((1.8, True))
    assert flight.go_on(1.8) == pytest.approx((5.0, INF))
    assert (flight.part, flight.flows) == (COMPUTE, False)
    assert flight.go_on(5.0) == (5.0, INF)
    assert (flight.part, flight.flows, flight.rate(5.0)) == (UPLOAD, True, (6056.0, INF))
    assert flight.message.next_part(5.0, 6056.0) == (6056.0, 6056.0)
    assert flight.part_sent(Served(6.0, 6056.0, 0.0, 0.0)) == pytest.approx((6.1, True))
    assert flight.go_on(6.1) == (6.1, INF)
    assert (flight.part, flight.is_over) == (FINISHED, True)
    assert ends(flight.timeline()) == pytest.approx(FIRST_ENDS)


def test_a_flight_that_crashes_names_the_instant_in_every_part() -> None:
    flight = _flight(crash_after=4.0)
    assert flight.begin() == pytest.approx((0.7, 4.0))
    _download(flight)
    # It would compute until 5 s.
    assert flight.go_on(1.8) == pytest.approx((5.0, 4.0))
    assert flight.broken(4.0) == 4.0
    assert flight.is_over
    timeline = flight.timeline()
    assert ends(timeline) == (1.8, INF, INF)
    assert timeline.lost[0] == 4.0


def _alone(clock: Clock, seed: int) -> list[Conditions]:
    """The conditions of a visit to each client, some of which were visited before and have lost segments."""
    rng, alone = np.random.default_rng(seed), []
    for client in range(len(clock.fleet)):
        used = np.array([rng.choice([-INF, -0.05, -1.0])])
        threshold = np.where(rng.random((1, 2)) < 0.5, INF, rng.uniform(2, 200, (1, 2)))
        drawn = clock.conditions([client], 0, visit=client)
        alone.append(
            replace(
                drawn,
                last_down=used,
                last_up=used,
                threshold=threshold if clock.fleet.loses_segments else drawn.threshold,
            )
        )
    return alone


def _play(clock: Clock, seed: int, world: World | None = None) -> tuple[dict[int, VisitEnded], list[str]]:
    """(each visit of a random world played one by one, what differs from the same visits solved as a batch).

    Visits begin at three instants; those of one instant are put in in random order.
    """
    world = world or random_world(seed)
    alone = _alone(clock, seed)
    batch = clock.solve(world.starts, world.works, joined(alone))
    order = np.random.default_rng(seed).permutation(len(world.fleet)).tolist()
    for client in order:
        clock.at(world.starts[client], len(world.fleet) + client, client)
    ended: dict[int, VisitEnded] = {}
    together: list[int] = []
    while len(ended) < len(world.fleet):
        item = clock.next()
        if isinstance(item, VisitEnded):
            ended[item.order] = item
            continue
        together.append(item)
        if sum(start == clock.now for start in world.starts) == len(together):
            for client in np.random.default_rng(seed).permutation(together).tolist():
                clock.begin(world.works[client], alone[client], client)
            together = []
    different = [
        f"{name} of visit {visit} in world {seed}"
        for visit, one in ended.items()
        for name in differences(batch, visit, one.timeline)
    ]
    return ended, different


def _outcomes(ended: Mapping[int, VisitEnded]) -> Counter[str]:
    """How many visits ended, were lost, paused for long, or lost time on shared links."""
    timelines = [one.timeline for one in ended.values()]
    return Counter(
        done=sum(math.isfinite(one.up_end[0]) for one in timelines),
        lost=sum(math.isfinite(one.lost[0]) for one in timelines),
        paused=sum(bool(one.paused_seconds[0] > 1.0) for one in timelines),
        shared=sum(bool(one.contention_seconds[0] > 0.1) for one in timelines),
    )


@pytest.mark.parametrize("first", every(3, range(0, WORLDS, 64)))
def test_visits_one_by_one_are_the_batch_to_the_bit(first: int) -> None:
    """In every combination of leaving, pausing, varying links, sites, batteries and crashes, whoever begins first."""
    outcomes = Counter[str]()
    for seed in range(first, first + 64):
        ended, different = _play(Clock(random_world(seed).fleet), seed)
        assert different == []
        outcomes += _outcomes(ended)
    # A control: all of it happens in these worlds, often.
    assert all(outcomes[name] > 20 for name in ("done", "lost", "paused", "shared")), outcomes


@pytest.mark.parametrize("airtime", ["time", "packets"])
def test_visits_one_by_one_are_the_batch_to_the_bit_where_sites_share_air(airtime: str) -> None:
    outcomes = Counter[str]()
    for seed in range(0, 256, 23):
        world = random_world(seed, airtime)
        ended, different = _play(Clock(world.fleet), seed, world)
        assert different == []
        outcomes += _outcomes(ended)
    assert all(outcomes[name] > 20 for name in ("done", "lost", "shared")), outcomes


def test_visits_one_by_one_are_the_batch_to_the_bit_where_a_direction_holds_up_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes = Counter[str]()
    for seed in range(0, WORLDS, 23):
        world = random_world(seed, is_duplex=True)
        ended, different = _play(Clock(world.fleet), seed, world)
        assert different == []
        with monkeypatch.context() as patch:
            patch.setattr("costmodel.network.links.LEAST_QUEUE_SECONDS", INF)
            apart, _ = _play(Clock(world.fleet), seed, world)
        outcomes += _outcomes(ended)
        later = [bool(ended[order].timeline.end[0] != apart[order].timeline.end[0]) for order in ended]
        outcomes += Counter({"held up": later.count(True), "not held up": later.count(False)})
    assert all(outcomes[name] > 20 for name in ("done", "lost", "held up", "not held up")), outcomes


@pytest.mark.parametrize("is_duplex", [False, True])
def test_visits_one_by_one_are_the_batch_to_the_bit_where_the_rates_of_sites_change(is_duplex: bool) -> None:
    outcomes = Counter[str]()
    for seed in range(8, WORLDS, 23 if is_duplex else 11):
        if not seed >> 3 & 1:  # without sites
            continue
        world = random_world(seed, is_duplex=is_duplex, sites_vary=True)
        ended, different = _play(Clock(world.fleet), seed, world)
        assert different == []
        constant = replace(world.fleet, links=replace(world.fleet.links, site_variation=None))
        at_constant, _ = _play(Clock(constant), seed, replace(world, fleet=constant))
        outcomes += _outcomes(ended)
        others = [bool(ended[order].timeline.end[0] != at_constant[order].timeline.end[0]) for order in ended]
        outcomes["other than at constant rates"] += others.count(True)
    assert all(outcomes[name] > 20 for name in ("done", "lost", "shared", "other than at constant rates")), outcomes


@pytest.mark.parametrize(("is_duplex", "seeds"), [(False, (97, 189, 281, 304)), (True, (97, 281, 465))])
def test_visits_one_by_one_are_the_batch_to_the_bit_where_windows_share_links(
    is_duplex: bool, seeds: tuple[int, ...]
) -> None:
    """Behind sites and without, in outages, and where a direction holds up the other."""
    outcomes = Counter[str]()
    for seed in seeds:
        world = random_world(seed, is_duplex=is_duplex, sites_vary=is_duplex, sharing="windows")
        ended, different = _play(Clock(world.fleet), seed, world)
        assert different == []
        outcomes += _outcomes(ended)
    assert all(outcomes[name] > 2 for name in ("done", "lost", "shared")), outcomes


@pytest.mark.parametrize("until", [0.4, 0.8, 1.5, 2.5])
@pytest.mark.parametrize(
    ("seed", "airtime", "is_duplex"),
    [(32, "time", False), (224, "time", False), (67, None, False), (108, None, False), (72, None, True)],
)
def test_a_batch_is_cut_as_visits_are_cut_one_by_one(
    seed: int, airtime: str | None, is_duplex: bool, until: float
) -> None:
    """Where sites share air, where segments are lost, and where a direction holds up the other."""
    world = random_world(seed, airtime, is_duplex=is_duplex)
    clock = Clock(world.fleet)
    alone = _alone(clock, seed)
    batch = clock.solve([0.0] * len(alone), world.works, joined(alone), until)
    for client, visit in enumerate(alone):
        clock.begin(world.works[client], visit, client)
    clock.at(until, 0, "deadline")
    ended: dict[int, VisitEnded] = {}
    while (item := clock.next()) != "deadline":
        ended[item.order] = item
    for client in range(len(alone)):
        one = ended.get(client) or clock.cut(client)
        assert differences(batch, client, one.timeline) == []


# --- links without limit, over which messages are sent as a whole -----------------------------------------------------

CLIENTS = 12
LONG_VISIT = Work(bytes_down=700_000, bytes_up=300_000, flops=3e9, steps=5)
WIDE = Links(1e30, 1e30)


def _clock(links: Links) -> Clock:
    """Some clients crash, and some batteries become empty in the middle of a message."""
    fleet = fleet_of(
        CLIENTS,
        links=replace(links, transport=Transport(noise=0.1)),
        devices={"phone-mid": 1},
        networks={"lte": 1, "wifi-4": 1},
        compute_spread=2,
        bandwidth_spread=8,
        jitter=0.1,
        crashes_per_hour=360.0,
        battery=4.0,
    )
    clock = Clock(fleet)
    for client in range(CLIENTS):
        clock.begin(LONG_VISIT, clock.conditions([client], 0, visit=client), client)
    return clock


def _ended(links: Links, cut: float) -> dict[int, Timeline]:
    """The timelines of visits that end by ``cut``, and of the others until then."""
    clock = _clock(links)
    ended: dict[int, Timeline] = {}
    while len(ended) < CLIENTS and (item := clock.next(cut)) is not None:
        ended[item.order] = item.timeline
    clock.advance(max(clock.now, min(cut, 1e3)))
    return ended | {order: clock.cut(order).timeline for order in range(CLIENTS) if order not in ended}


@pytest.mark.parametrize("cut", [0.02, 0.26, 1.0, 3.5, math.inf])
def test_each_visit_is_that_over_wide_links_to_the_bit_wherever_it_is_cut(cut: float) -> None:
    whole, by_part = _ended(Links(), cut), _ended(WIDE, cut)

    for order, timeline in whole.items():
        for name in timeline.columns:
            assert np.array_equal(getattr(timeline, name), getattr(by_part[order], name)), (order, name)
