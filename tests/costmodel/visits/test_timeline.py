"""A batch of visits by hand: phases, shared links, cuts, and what all of it costs."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from costmodel.clock import Clock
from costmodel.config import Transport
from costmodel.fleet.availability import RecordedIntervals
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.dynamics import PAUSE, ClientDynamics
from costmodel.network.links import Links
from costmodel.visits.timeline import Timeline, solve
from costmodel.visits.work import Work, Works, nominal_bytes, nominal_bytes_plain, nominal_flops
from tests.costmodel.worlds import (
    DOWN_RATE,
    FIRST_ENDS,
    INF,
    LATER_ENDS,
    SEEDS,
    UP_RATE,
    VISIT,
    conditions,
    connected,
    ends,
    fleet_of,
    random_world,
)


def _solve(
    works: Work | list[Work], who: Conditions, links: Links | None = None, until: float = INF, start: float = 0.0
) -> Timeline:
    works = works if isinstance(works, list) else [works]
    return solve([start] * len(works), Works.of(works), who, links or Links(), until=until)


# Phases.


def test_a_first_visit_connects_downloads_computes_and_uploads() -> None:
    timeline = _solve(VISIT, conditions())
    assert ends(timeline) == pytest.approx(FIRST_ENDS)
    assert (timeline.bytes_down[0], timeline.bytes_up[0], timeline.flops[0]) == (1448, 724, 6.0)
    assert timeline.computed[0] == pytest.approx(3.2)
    assert (timeline.lost[0], timeline.contention_seconds[0], timeline.paused_seconds[0]) == (
        INF,
        0.0,
        pytest.approx(0.0),
    )


def test_what_else_a_visit_takes() -> None:
    # A connection that is in use need not be set up; keys take two round trips more.
    assert ends(_solve(VISIT, connected())) == pytest.approx(LATER_ENDS)
    curve = Links(transport=Transport("curve"))
    assert ends(_solve(VISIT, conditions(), curve)) == pytest.approx(tuple(end + 0.4 for end in FIRST_ENDS))
    # 66 bytes of every frame are headers: 14 480 bytes at 12 112 bit/s are 9.56 s, or 10 s with them.
    assert _solve(Work(14_480, 0, 0.0), connected()).down_end[0] == pytest.approx(10.0 + 0.1)
    # Jitter slows steps and their overhead alike; no bytes take no time, not even a round trip.
    assert _solve(VISIT, connected(slowdown=1.5)).computed[0] == pytest.approx(4.8)
    assert ends(_solve(Work(0, 0, 6.0), conditions(), start=7.0)) == (7.0, 10.0, 10.0)
    nobody = _solve([], conditions(0))
    assert all(column.shape == (0,) for column in nobody.columns.values())


def test_a_codec_takes_its_seconds_of_the_device_between_the_messages() -> None:
    # 0.25 s on the reference host and a device four times as slow: 1 s more, at the 10 W of computing.
    coded = dataclasses.replace(VISIT, codec_seconds=0.25)
    plain, timeline = _solve(VISIT, connected()), _solve(coded, connected())
    assert ends(timeline) == pytest.approx((1.1, 5.3, 6.4))
    assert (timeline.computed[0], timeline.flops[0]) == (pytest.approx(4.2), 6.0)
    assert timeline.joules_spent[0] - plain.joules_spent[0] == pytest.approx(10.0)
    # Jitter slows all of it alike; half of the computing has done half of the FLOPs.
    assert _solve(coded, connected(slowdown=1.5)).computed[0] == pytest.approx(6.3)
    assert _solve(coded, connected(), until=1.1 + 2.1).flops[0] == pytest.approx(3.0)
    # A visit that computes nothing else takes the time, too; without a codec the device's slowdown is nothing.
    assert ends(_solve(Work(0, 0, 0.0, codec_seconds=2.0), conditions())) == (0.0, 8.0, 8.0)
    slow = vars(_solve(VISIT, connected(codec_slowdown=1e9)))
    assert all(slow[name].tobytes() == column.tobytes() for name, column in plain.columns.items())


def test_a_connection_that_is_not_used_for_long_is_set_up_again() -> None:
    links = Links(transport=Transport(reconnect=3.0))
    # Unused for 2.9 s: as before. For 3.1 s: 3.5 round trips of 0.2 s before the download.
    used = {"last_down": -2.9, "last_up": -2.9}
    assert ends(_solve(VISIT, conditions(**(used | {"last_down": -9.0})), links))[0] == pytest.approx(1.1)
    assert ends(_solve(VISIT, conditions(last_down=-3.1, last_up=-3.1), links))[0] == pytest.approx(0.7 + 1.1)
    # 3.2 s of computing: the upload connects too; with 2.9 s of it, it does not.
    assert ends(_solve(VISIT, connected(), links)) == pytest.approx((1.1, 4.3, 4.3 + 0.7 + 1.1))
    assert ends(_solve(VISIT, connected(slowdown=0.9), links)) == pytest.approx((1.1, 3.98, 5.08))
    # The window down is that of the connection which the upload has replaced.
    who = dataclasses.replace(connected(loss=1e-12), threshold=np.array([[20.0, 30.0]]))
    kept, renewed = _solve(VISIT, who), _solve(VISIT, who, links)
    assert kept.threshold_down[0] < INF
    assert renewed.threshold_down[0] == INF


def test_a_radio_that_sleeps_takes_its_promotion_before_each_message() -> None:
    # 0.26 s at 1.21 W beside the baseline of 1 W; download at 2 W, computing at 10 W, upload at 3 W.
    radio = {"promotion_seconds": 0.26, "promotion_watts": 2.21, "awake_seconds": 3.0, "last_down": -9.0}
    links = Links(transport=Transport(promotion=True))
    awake, asleep = (_solve(VISIT, connected(**radio, last_up=last), links) for last in (-2.9, -3.1))
    assert ends(awake) == pytest.approx((1.1, 4.3, 4.3 + 0.26 + 1.1))
    assert ends(asleep) == pytest.approx((1.36, 4.56, 4.56 + 0.26 + 1.1))
    assert awake.joules_spent[0] == pytest.approx(2 * 1.1 + 32 + 0.26 * 2.21 + 3 * 1.1)
    assert asleep.joules_spent[0] == pytest.approx(2 * 1.1 + 32 + 0.26 * 2.21 * 2 + 3 * 1.1)
    # It sleeps no sooner than after its tail, here longer than the computing.
    assert ends(_solve(VISIT, connected(**(radio | {"awake_seconds": 3.3})), links)) == pytest.approx(LATER_ENDS)
    # 0.3 J are empty 0.3 / 2.21 s after the promotion has begun; 0.8 J pay for it and 0.1127 s of the download.
    for charge, lost in ((0.3, 0.3 / 2.21), (0.8, 0.26 + (0.8 - 0.26 * 2.21) / 2)):
        flat = _solve(VISIT, connected(**radio, last_up=-9.0, charge=charge), links)
        assert (flat.lost[0], flat.joules_spent[0]) == pytest.approx((lost, charge))
        assert flat.bytes_down[0] == math.floor(max(lost - 0.26, 0.0) * 1448)


def test_an_idle_connection_starts_slowly_unless_told_otherwise() -> None:
    # 5 MB at 20 Mbit/s and 30 ms: windows of 121.12, 242.24, 484.48 kbit leave the link idle for 23.944 + 17.888 +
    # 5.776 ms; 5 MB of whole frames take 5e6 x 8 x 1514 / 1448 / 20e6 = 2.091160 s; and 15 ms on the way.
    work, line = Work(5_000_000, 0, 0.0), {"down": 20e6, "rtt": 0.03}
    idle, busy = conditions(**line, last_down=-60.0), conditions(**line, last_down=-0.22)
    assert _solve(work, idle).down_end[0] == pytest.approx(2.091160 + 0.047608 + 0.015, abs=1e-6)
    # Last used no longer ago than a round trip and 0.2 s: the window is still as wide as it was.
    assert _solve(work, busy).down_end[0] == pytest.approx(2.091160 + 0.015, abs=1e-6)
    assert _solve(work, conditions(**line, last_down=-0.24)).down_end[0] == _solve(work, idle).down_end[0]
    assert _solve(work, idle, Links(transport=Transport(slow_start=False))).down_end[0] == pytest.approx(2.10616)


# Shared links.


def test_visits_share_the_servers_link_in_both_directions() -> None:
    # Two downloads of 12 112 bits over as many bit/s: 2 s + 0.1 s; then 3.2 s; two uploads of 6056 bits: 2.1 s.
    timeline = _solve([VISIT, VISIT], connected(2), Links(DOWN_RATE, UP_RATE))
    assert [ends(timeline, visit) for visit in (0, 1)] == [pytest.approx((2.1, 5.3, 7.4))] * 2
    # Alone each message would have taken a second less.
    assert timeline.contention_seconds.tolist() == pytest.approx([2.0, 2.0])


def test_a_site_shares_its_own_link_below_the_servers() -> None:
    # Clients 0 and 1 share site 0's 12 112 bit/s; client 2 at site 1 has its own rate; the server has room for both.
    links = Links(2 * DOWN_RATE, INF, site_down=(DOWN_RATE, INF), site_up=(INF, UP_RATE / 2))
    timeline = _solve([VISIT] * 3, connected(3, access_link=[0, 0, 1]), links)
    assert timeline.down_end.tolist() == pytest.approx([2.1, 2.1, 1.1])
    # Uploads: nobody is in the way at site 0, site 1 has half of client 2's rate.
    assert (timeline.up_end - timeline.compute_end).tolist() == pytest.approx([1.1, 1.1, 2.1])


def test_an_upload_takes_air_from_a_download_of_the_same_site() -> None:
    works = [Work(0, 724, 0.0), Work(2896, 0, 0.0)]
    clients = connected(2, rtt=0.0)
    alone = _solve(works, clients, Links())
    assert alone.end.tolist() == pytest.approx([1.0, 2.0])
    air = _solve(works, clients, Links(site_down=(INF,), site_up=(INF,), airtime="time"))
    # Both are on the air for half of the time until 2 s, when the upload ends; the download has 12 112 bits left.
    assert air.end.tolist() == pytest.approx([2.0, 3.0])
    assert air.contention_seconds.tolist() == pytest.approx([1.0, 1.0])
    apart = _solve(works, connected(2, rtt=0.0, access_link=[0, 1]), Links(INF, INF, (INF,) * 2, (INF,) * 2, "time"))
    assert apart.end.tolist() == alone.end.tolist()


# What a cut visit has spent.


@pytest.mark.parametrize(
    ("until", "reached", "bytes_down", "flops", "bytes_up", "joules"),
    [
        # Nothing happens before the start.
        (0.0, 0, 0, 0.0, 0, 0.0),
        # The connection is being set up: 2 W x 0.5 s.
        (0.5, 0, 0, 0.0, 0, 1.0),
        # Half of the download, half of the second that it takes at the link: 2 W x 1.2 s.
        (1.2, 0, 724, 0.0, 0, 2.4),
        # All is sent, but the last byte is still on its way.
        (1.75, 0, 1448, 0.0, 0, 3.5),
        # 1.6 s of the 3.2 s of computing, half of the FLOPs, 10 W.
        (3.4, 1, 1448, 3.0, 0, 3.6 + 16.0),
        # A quarter of a second of the upload, 3 W.
        (5.25, 2, 1448, 6.0, 181, 3.6 + 32.0 + 0.75),
        (9.0, 3, 1448, 6.0, 724, 3.6 + 32.0 + 3.3),
    ],
)
def test_a_visit_that_is_cut_is_charged_what_it_spent(
    until: float, reached: int, bytes_down: int, flops: float, bytes_up: int, joules: float
) -> None:
    cut = _solve(VISIT, conditions(), until=until)
    assert ends(cut) == pytest.approx(FIRST_ENDS[:reached] + (INF,) * (3 - reached))
    assert (cut.bytes_down[0], cut.bytes_up[0]) == (bytes_down, bytes_up)
    assert (cut.flops[0], cut.joules_spent[0]) == pytest.approx((flops, joules))
    # A visit that was cut has no cost as a whole, is not lost, and does not wait.
    assert math.isfinite(cut.joules[0]) == (reached == 3)
    assert cut.lost[0] == INF
    assert cut.seconds(until)[0] == pytest.approx(min(until, FIRST_ENDS[2]))
    assert cut.waiting_joules(10.0, conditions())[0] == pytest.approx(3.9 if reached == 3 else 0.0)


@pytest.mark.parametrize("seed", [*range(0, 64, 7), *range(192, 256, 15)])
def test_a_cut_changes_nothing_before_it(seed: int) -> None:
    """What ends by the cut ends as if there were none; cost only grows with a later cut, up to that of no cut."""
    world = random_world(seed)
    clients = range(len(world.fleet))
    arguments = world.starts, Works.of(world.works), world.fleet.conditions(clients, 0), world.fleet.links
    whole = solve(*arguments, world.fleet.behaviour)
    before = np.zeros(len(whole))
    for until in (1.1, 2.9, 8.0, 20.0, 1e6):
        cut = solve(*arguments, world.fleet.behaviour, until)
        for name in ("down_end", "compute_end", "up_end", "lost"):
            uncut = getattr(whole, name)
            assert getattr(cut, name).tolist() == np.where(uncut <= until, uncut, INF).tolist(), name
        assert (cut.joules_spent >= before - 1e-9).all()
        assert (cut.joules_spent <= whole.joules_spent + 1e-9).all()
        assert (cut.flops <= whole.flops + 1e-6).all()
        before = cut.joules_spent


# Energy.


@pytest.mark.parametrize(
    ("work", "tail_seconds", "awake"),
    [
        # Once after each transfer, as computing for 3.2 s lets the radio fall asleep in between.
        (VISIT, 2.0, 2.0 + 2.0),
        # The upload begins within the tail of the download, and cuts it short.
        (VISIT, 11.6, 3.2 + 11.6),
        (dataclasses.replace(VISIT, bytes_up=0), 11.6, 11.6),
        (dataclasses.replace(VISIT, bytes_down=0), 11.6, 11.6),
        # A single byte wakes it.
        (dataclasses.replace(VISIT, bytes_up=1), 11.6, 3.2 + 11.6),
        (Work(1, 0, 6.0), 11.6, 11.6),
        # What is never woken need not fall asleep.
        (Work(0, 0, 6.0), 11.6, 0.0),
    ],
)
def test_the_radio_stays_awake_after_a_transfer_until_the_next(work: Work, tail_seconds: float, awake: float) -> None:
    long_ago = {"last_down": -60.0, "last_up": -60.0}
    plain = _solve(work, connected(**long_ago))
    tailed = _solve(work, connected(tail_watts=1.06, tail_seconds=tail_seconds, **long_ago))
    assert tailed.joules[0] - plain.joules[0] == pytest.approx(1.06 * awake)


@pytest.mark.parametrize("seed", [*range(0, 64, 9), *range(320, 384, 16)])
def test_joules_are_the_integral_of_the_power_that_is_drawn(seed: int) -> None:
    """The trace is built from the timeline's instants alone, for every client: what it does, at its watts."""
    world = random_world(seed & ~0b1000_0001)  # nobody leaves, no link fails: an instant tells what a client is doing
    who = world.fleet.conditions(range(len(world.fleet)), 0)
    who = dataclasses.replace(who, receive_joules_per_bit=0 * who.rtt, transmit_joules_per_bit=0 * who.rtt)
    timeline = solve(world.starts, Works.of(world.works), who, world.fleet.links, world.fleet.behaviour, 60.0)
    horizon = 100.0
    waiting = timeline.waiting_joules(horizon, who)
    for visit in range(len(timeline)):
        trace = _power_trace(timeline, visit, who, world.works[visit], min(60.0, float(timeline.lost[visit])), horizon)
        instants = sorted({time for begin, end, _ in trace for time in (begin, end)})
        middles = [(begin + end) / 2 for begin, end in pairwise(instants)]
        drawn = [sum(watts for begin, end, watts in trace if begin <= middle < end) for middle in middles]
        joules = float(np.dot(drawn, np.diff(instants)))
        assert timeline.joules_spent[visit] + waiting[visit] == pytest.approx(joules)


def _power_trace(
    timeline: Timeline, visit: int, who: Conditions, work: Work, cut: float, horizon: float
) -> list[tuple[float, float, float]]:
    """(begin, end, watts) of all that one client does; what overlaps adds up."""
    start = float(timeline.start[visit])
    down_end, compute_end, up_end = ends(timeline, visit)
    tail, tail_seconds = float(who.tail_watts[visit]), float(who.tail_seconds[visit])
    promoted, promotion = float(who.promotion_seconds[visit]), float(who.promotion_watts[visit])

    def message(begin: float, end: float, watts: float, wakes: bool) -> list[tuple[float, float, float]]:
        flows = min(begin + promoted, end) if wakes else begin
        return [(begin, flows, promotion), (flows, end, watts)]

    trace = message(start, min(down_end, cut), float(who.receive_watts[visit]), work.bytes_down > 0)
    if down_end < INF:
        trace.append((down_end, min(compute_end, cut), float(who.train_watts[visit])))
        if work.bytes_down:
            sleeps = min(compute_end, cut) if work.bytes_up else INF
            trace.append((down_end, min(down_end + tail_seconds, sleeps), tail))
    if compute_end < INF:
        slept = not work.bytes_down or compute_end - down_end > who.awake_seconds[visit]
        trace += message(
            compute_end, min(up_end, cut), float(who.transmit_watts[visit]), bool(slept) and work.bytes_up > 0
        )
    if up_end < INF:
        trace.append((up_end, horizon, float(who.idle_watts[visit])))
        if work.bytes_up:
            trace.append((up_end, up_end + tail_seconds, tail))
    return trace


# --- nominal costs: FedBR's Eq. 2 and Eq. 3, term by term -------------------------------------------------------------


def test_compute_of_eq_2_and_traffic_of_eq_3() -> None:
    assert nominal_flops(alpha=0, blocks=6, samples=100, flops_per_sample=3.0) == 300.0
    # alpha = 3, M = 6: 1 + 3 * 4 / 12 = 2.
    assert nominal_flops(alpha=3, blocks=6, samples=100, flops_per_sample=3.0) == 600.0
    # tau = 4, alpha = 3, M = 6: 1 + 1/4 + 3/4 * 1/2 = 1.625.
    assert nominal_bytes(alpha=3, blocks=6, tau=4, model_nbytes=1000) == 1625.0
    # tau = 3, alpha = 2, M = 6: 1 + 1/3 + 2/3 * 1/3 = 14/9.
    assert nominal_bytes(alpha=2, blocks=6, tau=3, model_nbytes=1000) == pytest.approx(1555.5556)
    for tau in (0, 1):  # a full model each way costs what every other method pays
        assert nominal_bytes(alpha=3, blocks=6, tau=tau, model_nbytes=1000) == nominal_bytes_plain(1000) == 2000.0


# --- joules by what a client does -------------------------------------------------------------------------------------

# A visit receives for 1.1 s at 2 W, computes for 3.2 s at 10 W and sends for 1.1 s at 3 W; idle, a device draws 1 W.
# The radio has been asleep since the message before it.
TAILS: dict[str, Any] = {"tail_watts": 0.5, "tail_seconds": 2.0, "last_down": -9.0, "last_up": -9.0}
BY_BIT: dict[str, Any] = {"receive_joules_per_bit": 1e-3, "transmit_joules_per_bit": 2e-3}
PARTS = ("idle_joules", "compute_joules", "receive_joules", "send_joules")


def _parts(timeline: Timeline) -> list[float]:
    return [float(getattr(timeline, name)[0]) for name in PARTS]


def _alone(who: Conditions, until: float = INF, behaviour: ClientDynamics | None = None) -> Timeline:
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
    timeline = _alone(connected(**figures), until)
    assert _parts(timeline) == pytest.approx([idle, compute, receive, send])
    assert timeline.joules_spent[0] == pytest.approx(idle + compute + receive + send)


def test_a_client_that_goes_away_and_comes_back_is_idle_meanwhile_and_after_its_visit() -> None:
    away = ClientDynamics(RecordedIntervals([[(-1.0, 2.0), (5.0, 100.0)]], None), PAUSE)
    timeline = _alone(connected(), behaviour=away)
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
