"""The joules of a visit by what its client did, by hand: waiting, computing, receiving and sending; whole and cut."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel.clock import Clock
from costmodel.fleet.availability import RecordedIntervals
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.dynamics import PAUSE, ClientDynamics
from costmodel.network.links import Links
from costmodel.visits.timeline import Timeline, solve
from costmodel.visits.work import Work, Works
from tests.costmodel.worlds import INF, SEEDS, VISIT, connected, fleet_of, random_world

# A visit receives for 1.1 s at 2 W, computes for 3.2 s at 10 W and sends for 1.1 s at 3 W; idle, a device draws 1 W.
# The radio has been asleep since the message before it.
TAILS: dict[str, Any] = {"tail_watts": 0.5, "tail_seconds": 2.0, "last_down": -9.0, "last_up": -9.0}
BY_BIT: dict[str, Any] = {"receive_joules_per_bit": 1e-3, "transmit_joules_per_bit": 2e-3}
PARTS = ("idle_joules", "compute_joules", "receive_joules", "send_joules")


def _parts(timeline: Timeline) -> list[float]:
    return [float(getattr(timeline, name)[0]) for name in PARTS]


def _solve(who: Conditions, until: float = INF, behaviour: ClientDynamics | None = None) -> Timeline:
    return solve([0.0], Works.of([VISIT]), who, Links(), behaviour, until)


@pytest.mark.parametrize(
    ("figures", "until", "idle", "compute", "receive", "send"),
    [
        ({}, INF, 0.0, 32.0, 2.2, 3.3),
        # 12 112 bits down and 6056 up
        (BY_BIT, INF, 0.0, 32.0, 2.2 + 12.112, 3.3 + 12.112),
        # The radio is awake for two of the 3.2 s between its messages, and for two after them.
        (TAILS, INF, 0.0, 32.0, 2.2 + 1.0, 3.3 + 1.0),
        ({}, 0.5, 0.0, 0.0, 1.0, 0.0),
        ({}, 2.1, 0.0, 10.0, 2.2, 0.0),
        ({}, 4.8, 0.0, 32.0, 2.2, 1.5),
        # 32 J are left to compute with when the battery has paid for the download.
        ({"charge": 12.2}, INF, 0.0, 10.0, 2.2, 0.0),
    ],
)
def test_the_joules_of_a_visit_are_those_of_its_phases(
    figures: dict[str, Any], until: float, idle: float, compute: float, receive: float, send: float
) -> None:
    timeline = _solve(connected(**figures), until)
    assert _parts(timeline) == pytest.approx([idle, compute, receive, send])
    assert timeline.joules_spent[0] == pytest.approx(idle + compute + receive + send)


def test_a_client_that_goes_away_and_comes_back_is_idle_meanwhile_and_after_its_visit() -> None:
    away = ClientDynamics(RecordedIntervals([[(-1.0, 2.0), (5.0, 100.0)]], None), PAUSE)
    timeline = _solve(connected(), behaviour=away)
    assert _parts(timeline) == pytest.approx([3.0, 32.0, 2.2, 3.3])
    # The visit ends after 8.4 s; a round of 10 s takes 1.6 J more.
    assert timeline.waiting_joules(10.0, connected())[0] == pytest.approx(1.6)


def test_a_visit_that_begins_within_the_tail_of_the_one_before_does_not_pay_for_what_it_cuts() -> None:
    # An LTE radio stays awake for 11.6 s at 1.06 W. Rounds of 1.9 s, each 0.4 s after the one before, then one after
    # 8 s and one after 20 s: each tail lasts until the next message, and the last one to its end.
    gaps = (0.4, 0.4, 8.0, 20.0)
    tails = {}
    for is_batch in (True, False):
        spent = []
        for watts in (1.06, 0.0):
            fleet = fleet_of(1, radio_energy="rate", networks={"lte": 1}, devices={"phone-mid": 1})
            clock = Clock(fleet)
            for round, gap in enumerate((0.0, *gaps)):
                clock.advance(clock.now + gap)
                who = replace(clock.conditions([0], round), tail_watts=np.array([watts]))
                work = Work(100_000, 100_000, 1e9, 5)
                if is_batch:
                    timeline = clock.solve([clock.now], [work], who)
                    clock.advance(float(timeline.up_end[0]))
                else:
                    clock.begin(work, who, round)
                    timeline = clock.next().timeline
                clock.passed(who, timeline)
                spent.append(float(timeline.joules_spent[0]))
        between = 1.06 * float(timeline.compute_end[0] - timeline.down_end[0])
        tails[is_batch] = np.subtract(spent[:5], spent[5:]) - between
    assert tails[True] == pytest.approx([1.06 * seconds for seconds in (11.6, 0.4, 0.4, 8.0, 11.6)])
    assert tails[False].tolist() == tails[True].tolist()


@pytest.mark.parametrize("seed", range(0, SEEDS, 5))
def test_whatever_happens_to_visits_the_four_parts_are_their_joules(seed: int) -> None:
    world = random_world(seed)
    clock = Clock(world.fleet)
    timeline = clock.solve(world.starts, world.works, clock.conditions(range(len(world.fleet)), 0), 20.0)
    parts = np.stack([getattr(timeline, name) for name in PARTS])
    assert (parts >= 0).all()
    assert parts.sum(axis=0) == pytest.approx(timeline.joules_spent, rel=1e-12, abs=1e-12)
