"""Clients that leave, pause, crash and run out of power, by hand; and what their visits cost until then."""

from __future__ import annotations

import math

import numpy as np
import pytest

from costmodel.fleet.availability import RecordedIntervals, Renewal
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.dynamics import ABORT, PAUSE, ClientDynamics
from costmodel.fleet.speed import ComputeSpeed, ForegroundLoad, RecordedSpeed
from costmodel.network.bandwidth import DOWN, Replay, WithOutages
from costmodel.network.links import Links
from costmodel.step_series import StepSeries
from costmodel.visits.timeline import Timeline, solve
from costmodel.visits.work import Work, Works
from tests.costmodel.worlds import INF, LATER_ENDS, VISIT, connected, ends, fleet_of, random_world, streams

# A visit over an open connection: download until 1.1 s, computing for 3.2 s until 4.3 s, upload until 5.4 s.


def _solve(
    who: Conditions, behaviour: ClientDynamics | None = None, work: Work = VISIT, start: float = 0.0
) -> Timeline:
    return solve([start] * len(who), Works.of([work] * len(who)), who, Links(), behaviour)


def _there(*windows: tuple[float, float], on_loss: str = ABORT) -> ClientDynamics:
    """Client 0 is there in these windows, each of which comes once; from -1 s on its connection is an old one."""
    return ClientDynamics(RecordedIntervals([windows], None), on_loss)


# Clients that leave.


@pytest.mark.parametrize(
    ("leaves", "reached", "bytes_down", "flops", "bytes_up", "joules"),
    [
        (0.5, 0, 724, 0.0, 0, 1.0),
        (2.7, 1, 1448, 3.0, 0, 2.2 + 16.0),
        (4.8, 2, 1448, 6.0, 362, 2.2 + 32.0 + 1.5),
        # It has heard nothing back, but its upload has arrived.
        (5.4001, 3, 1448, 6.0, 724, 2.2 + 32.0 + 3.3),
    ],
)
def test_a_client_that_leaves_aborts_its_visit_and_what_it_spent_is_charged(
    leaves: float, reached: int, bytes_down: int, flops: float, bytes_up: int, joules: float
) -> None:
    timeline = _solve(connected(), _there((-1.0, leaves), (leaves + 1.0, 100.0)))
    assert ends(timeline) == pytest.approx(LATER_ENDS[:reached] + (INF,) * (3 - reached))
    assert timeline.lost[0] == (INF if reached == 3 else leaves)
    assert (timeline.bytes_down[0], timeline.bytes_up[0]) == (bytes_down, bytes_up)
    assert (timeline.flops[0], timeline.joules_spent[0]) == pytest.approx((flops, joules))
    # The server hears at once that it lost the client.
    assert timeline.end[0] == pytest.approx(min(leaves, 5.4))


def test_a_device_that_throttles_computes_longer_and_draws_its_power_for_as_long() -> None:
    # Computing from 1.1 s on: 2 s at full speed, the other 1.2 s of 3.2 s at half of it, until 5.5 s.
    behaviour = ClientDynamics(speed=ComputeSpeed(throttle_after=2.0, throttle_to=0.5))
    timeline = _solve(connected(), behaviour)
    assert ends(timeline) == pytest.approx((1.1, 5.5, 6.6))
    assert (timeline.computed[0], timeline.joules_spent[0]) == pytest.approx((4.4, 2.2 + 44.0 + 3.3))
    # With 2.2 + 32 J its battery is empty 3.2 s after the beginning: 2 s and half of 1.2 s of 3.2 s are done.
    flat = _solve(connected(charge=34.2), behaviour)
    assert (flat.lost[0], flat.flops[0]) == pytest.approx((4.3, 6.0 * 2.6 / 3.2))


# Clients that pause.


def test_a_paused_download_goes_on_when_its_client_is_back() -> None:
    timeline = _solve(connected(), _there((-1.0, 0.25), (2.25, 100.0), on_loss=PAUSE))
    # 2 s later than LATER_ENDS; the radio is off meanwhile, and the device draws its baseline of 1 W.
    assert ends(timeline) == pytest.approx((3.1, 6.3, 7.4))
    assert timeline.paused_seconds[0] == pytest.approx(2.0)
    assert timeline.joules[0] == pytest.approx(2.2 + 32.0 + 3.3 + 2.0)


# Links that vary.


@pytest.mark.parametrize(("zero_waits", "down_end"), [(True, 0.5 + 1.0 + 0.5 + 0.1), (False, 0.5 + 1.2 + 0.5 + 0.1)])
def test_what_is_sent_into_a_silence_waits_and_what_is_sent_into_an_outage_is_sent_again(
    zero_waits: bool, down_end: float
) -> None:
    # Nothing passes from 0.5 to 1.5 s. A timer of 0.2 + 0.2 s tries again after 0.4 and 1.2 s of an outage.
    series = StepSeries((0.0, 0.5, 1.5), (1.0, 0.0, 1.0), 100.0, zero_waits=zero_waits)
    behaviour = ClientDynamics(variation=Replay([series], [series], np.array([0])))
    assert _solve(connected(), behaviour).down_end[0] == pytest.approx(down_end)
    assert behaviour.has_outage(0, DOWN, 1.0) != zero_waits
    # Outages beside them, none of which has begun.
    rare = WithOutages(behaviour.variation, np.full(1, 1e-9), np.ones(1), lambda *key: np.random.default_rng(0))
    assert ClientDynamics(variation=rare).has_outage(0, DOWN, 1.0) != zero_waits


# Crashes.


def test_a_crash_counts_seconds_at_work_and_not_those_away() -> None:
    who = connected(crash_after=2.0)
    assert _solve(who).lost[0] == 2.0
    assert _solve(who, _there((-1.0, 1.5), (4.0, 100.0), on_loss=PAUSE)).lost[0] == 4.5
    assert _solve(connected(crash_after=5.5)).lost[0] == INF


def test_clients_crash_after_the_mean_time_that_was_asked_for() -> None:
    fleet = fleet_of(4000, devices={"phone-mid": 1}, networks={"lte": 1}, crashes_per_hour=3600 / 250)
    work = Work(0, 0, 1e6 * fleet.flops_per_second[0])
    lost = solve(np.zeros(4000), Works.of([work] * 4000), fleet.conditions(range(4000), 0), fleet.links).lost
    # Exponential: the standard error of the mean of 4000 is 250 / sqrt(4000) = 4 s.
    assert lost.mean() == pytest.approx(250.0, abs=16.0)
    # A share of e^-1 lasts longer than the mean, one of e^-2 longer than twice; standard errors 0.008, 0.005.
    assert np.mean(lost > 250.0) == pytest.approx(math.exp(-1), abs=0.03)
    assert np.mean(lost > 500.0) == pytest.approx(math.exp(-2), abs=0.02)
    # Another round, other crashes.
    assert (fleet.conditions(range(4000), 1).crash_after != fleet.conditions(range(4000), 0).crash_after).all()


# Batteries.


@pytest.mark.parametrize(
    ("charge", "dies", "reached"),
    [
        # Download at 2 W until 1.1 s, 2.2 J; computing at 10 W until 4.3 s, 32 J more; upload at 3 W, 3.3 J more.
        (1.0, 0.5, 0),
        (2.2 + 8.0, 1.9, 1),
        (34.2 + 1.5, 4.8, 2),
        (37.6, INF, 3),
    ],
)
def test_a_visit_ends_when_the_battery_is_empty(charge: float, dies: float, reached: int) -> None:
    timeline = _solve(connected(charge=charge))
    assert timeline.lost[0] == pytest.approx(dies)
    assert ends(timeline) == pytest.approx(LATER_ENDS[:reached] + (INF,) * (3 - reached))
    assert timeline.joules_spent[0] == pytest.approx(min(charge, 37.5))


def test_over_a_rate_dependent_radio_the_joules_for_the_bits_of_a_message_are_put_by_first() -> None:
    by_the_bit = {"receive_joules_per_bit": 1e-3, "receive_watts": 2.0}
    # 12.112 J for the bits, and 2 W x 1.1 s.
    assert _solve(connected(charge=14.4, **by_the_bit)).down_end[0] == pytest.approx(1.1)
    # 1 J is left for half a second, in which half of the bits are sent.
    short = _solve(connected(charge=13.112, **by_the_bit))
    assert (short.lost[0], short.bytes_down[0], short.joules_spent[0]) == pytest.approx((0.5, 724, 1.0 + 6.056))
    # Who cannot pay for the bits does not begin to send them.
    none = _solve(connected(charge=12.0, **by_the_bit))
    assert (none.lost[0], none.bytes_down[0], none.joules_spent[0]) == (0.0, 0, 0.0)


@pytest.mark.parametrize("seed", range(16, 32))
def test_no_client_spends_more_than_its_battery_holds_but_for_tail_and_absence(seed: int) -> None:
    """A radio that falls asleep only after the visit may still draw power then, and so does a device that is away."""
    world = random_world(seed)
    who = world.fleet.conditions(range(len(world.fleet)), 0)
    timeline = solve(world.starts, Works.of(world.works), who, world.fleet.links, world.fleet.behaviour)
    tails = 2 * who.tail_watts * who.tail_seconds
    away = who.idle_watts * timeline.paused_seconds
    assert (timeline.joules_spent <= 30.0 + tails + away + 1e-6).all()


# --- computing at a speed that changes --------------------------------------------------------------------------------

HOT = ComputeSpeed(throttle_after=4.0, throttle_to=0.5)
# Half of the speed from 3 s to 5 s of every 10 s.
BUSY = RecordedSpeed([StepSeries((0.0, 3.0, 5.0), (1.0, 0.5, 1.0), 10.0)], np.array([0, 0]))


def test_a_device_throttles_after_a_while() -> None:
    # 4 s at full speed, then the other 6 s at half of it.
    assert HOT.end(0, 100.0, 10.0, None) == (116.0, 16.0)
    assert HOT.end(0, 100.0, 4.0, None) == (104.0, 4.0)
    assert HOT.done(0, 100.0, 110.0, None) == 7.0


def test_a_device_cools_down_while_it_is_away() -> None:
    # From 3 s to 5 s it is away; it is hot at 9 s, with 7 s done; 3 s more take 6 s.
    presence = RecordedIntervals([[(-1.0, 3.0), (5.0, 100.0)]], None).interval
    assert HOT.end(0, 0.0, 10.0, presence) == (15.0, 13.0)
    assert HOT.done(0, 0.0, 11.0, presence) == 8.0


def test_factors_multiply_and_repeat() -> None:
    # 3 s, then 1 s at half speed; hot from 4 s on: 1 s at a quarter; then at half until 13 s; 2 s at a quarter.
    speed = ComputeSpeed((BUSY,), 4.0, 0.5)
    assert speed.end(0, 0.0, 3.0 + 0.5 + 0.25 + 4.0 + 0.5 + 0.25, None) == (15.5, 15.5)
    assert ComputeSpeed((BUSY,)).end(1, 10.0, 4.5, None) == (15.5, 5.5)


def test_the_user_of_a_device_slows_it_down_for_as_long_as_the_keys_say() -> None:
    load = ForegroundLoad(Renewal(10.0, 30.0, 0.0, streams, "foreground load"), 0.25)
    factor, change = load.factor(3, 0.0)
    lengths = []
    for _ in range(6):
        now, (before, (factor, change)) = change, (factor, load.factor(3, change))
        lengths.append((factor, change - now))
        assert {before, factor} == {0.25, 1.0}
    assert np.array(sorted(lengths[:2])) == pytest.approx(np.array([(0.25, 10.0), (1.0, 30.0)]))
    assert change < INF
    # It has draws of its own, which are not those of availability.
    assert Renewal(10.0, 30.0, 0.0, streams).interval(3, 0.0)[1] != load.factor(3, 0.0)[1]
