"""What is named as the bottleneck of a round is what shortens it when it is faster, in worlds by hand and at random."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.records.bottleneck import FASTER, bottleneck
from costmodel.clock import Clock
from costmodel.fleet.conditions import Conditions
from costmodel.network.links import Links
from costmodel.visits.timeline import Timeline
from costmodel.visits.work import Work
from tests.costmodel.worlds import conditions, connected, fleet_of

INF = math.inf
PARTS = {
    "own link": "own",
    "server link": "server",
    "gateway": "access",
    "LAN": "access",
    "compute": "compute",
    "round trips": "trips",
}


@dataclass(frozen=True)
class Round:
    """Visits that begin together, and the links that they share."""

    who: Conditions
    links: Links
    works: tuple[Work, ...]

    @property
    def clock(self) -> Clock:
        return Clock(fleet_of(len(self.who), links=self.links))

    def faster(self, part: str, factor: float) -> float:
        """When the last visit ends if a part of the fleet is so many times as fast."""
        timeline = self.clock.solve_if_faster(part, factor, np.zeros(len(self.who)), self.works, self.who)
        return float(timeline.end.max())

    @property
    def timeline(self) -> Timeline:
        return self.clock.solve(np.zeros(len(self.who)), self.works, self.who)

    @property
    def named(self) -> str:
        clock, starts = self.clock, np.zeros(len(self.who))
        solve = partial(_solved, clock, starts, self)
        return bottleneck(self.timeline, self.links.access, None, solve)


def _solved(clock: Clock, starts: Any, visits: Round, part: str) -> Timeline:
    return clock.solve_if_faster(part, FASTER, starts, visits.works, visits.who)


def _cameras(**links: Any) -> Round:
    """Four routers with two cameras each, whose own links could carry 40 Mbit/s."""
    who = connected(8, down=40e6, up=40e6, rtt=0.02, access_link=[0, 0, 1, 1, 2, 2, 3, 3], flops_per_second=1e12)
    shared: dict[str, Any] = {"down": 1e9, "up": 1e9, "site_down": (4.6e6,) * 4, "site_up": (4.6e6,) * 4} | links
    return Round(who, Links(**shared), (Work(1_448_000, 1_448_000, 1e10, 10),) * 8)


def test_narrow_gateways_behind_a_wide_server_are_the_bottleneck() -> None:
    # 1,448,000 bytes are 12,112,000 bits on the wire; two share 4.6 Mbit/s: 5.27 s down and 5.27 s up.
    cameras = _cameras()
    assert cameras.named == "gateway"
    assert cameras.timeline.end.max() == pytest.approx(2 * 2 * 12.112 / 4.6 + 0.01 + 0.2 + 0.02, abs=0.02)
    assert cameras.faster("server", 10) == cameras.faster("server", 1)
    assert cameras.faster("own", 10) == pytest.approx(cameras.faster("own", 1), abs=0.01)
    assert cameras.faster("access", 10) < 0.2 * cameras.faster("access", 1)


@pytest.mark.parametrize(
    ("links", "name"),
    [
        ({"down": 6e6, "up": 6e6}, "server link"),  # all eight share it: 0.75 Mbit/s each
        ({"site_down": (INF,) * 4, "site_up": (INF,) * 4}, "own link"),
        ({"site_down": (INF,) * 4, "site_up": (INF,) * 4, "airtime": "time", "access": "air"}, "air"),
        ({"access": "LAN"}, "LAN"),
    ],
)
def test_the_link_that_sets_the_rate_is_named(links: dict[str, Any], name: str) -> None:
    assert _cameras(**links).named == name


def test_a_round_that_ends_with_its_time_names_the_deadline() -> None:
    cameras = _cameras()
    assert bottleneck(cameras.timeline, "gateway", lambda ends: min(float(ends.max()), 1.0)) == "deadline"
    # Twice as fast, all would be in time: then it is the gateways'.
    assert bottleneck(cameras.timeline, "gateway", lambda ends: min(float(ends.max()), 10.0)) == "gateway"


def test_what_a_round_takes_beside_its_visits_may_be_the_most() -> None:
    timeline = _cameras().timeline
    assert bottleneck(timeline, "gateway", waited=60.0) == "waiting"
    assert bottleneck(timeline, "gateway", handling=60.0) == "server"
    assert bottleneck(timeline, "LAN", above={"WAN": 30.0, "server link": 2.0}) == "WAN"
    assert bottleneck(timeline, "LAN", above={"WAN": 2.0, "server link": 30.0}) == "server link"


@st.composite
def _rounds(draw: st.DrawFn) -> Round:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 32)))

    def rates(low: float, high: float, count: int) -> Any:
        return np.exp(rng.uniform(math.log(low), math.log(high), count))

    clients, sites = int(rng.integers(1, 12)), int(rng.integers(0, 4))
    who = (connected if rng.random() < 0.5 else conditions)(
        clients,
        down=rates(2e6, 4e7, clients),
        up=rates(1e6, 2e7, clients),
        rtt=rates(0.01, 0.3, clients),
        flops_per_second=rates(1e9, 2e10, clients),
        step_seconds=0.01,
        access_link=rng.integers(0, max(sites, 1), clients),
    )
    shared = [float(rate) if rng.random() < 0.8 else INF for rate in rates(3e6, 2e8, 2 + 2 * sites)]
    links = Links(shared[0], shared[1], tuple(shared[2 : 2 + sites]), tuple(shared[2 + sites :]))
    works = [
        Work(int(down), int(up), float(flops), 10)
        for down, up, flops in zip(
            rates(1e4, 1e7, clients), rates(1e4, 1e7, clients), rates(1e9, 1e11, clients), strict=True
        )
    ]
    return Round(who, links, tuple(works))


def _saved(visits: Round) -> Iterator[tuple[str, float]]:
    for name, part in PARTS.items():
        if name != "LAN" and (name != "gateway" or visits.links.site_down):
            yield name, visits.faster(part, 1.0) - visits.faster(part, FASTER)


@pytest.mark.long
@settings(max_examples=60, deadline=None, derandomize=True)
@given(_rounds())
def test_the_named_one_shortens_a_random_round_and_others_do_less(visits: Round) -> None:
    saved = dict(_saved(visits))
    name, end = visits.named, visits.faster("own", 1.0)
    assert saved[name] > 0
    # A message may get in another's way at other times than it did, by a little.
    assert max(saved.values()) <= saved[name] + 0.04 * end, saved
