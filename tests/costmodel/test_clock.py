"""Virtual time: what comes next, what clients remember, and a SimPy clock that hits every absolute time to the bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from costmodel.clock import Clock, VisitEnded
from costmodel.fleet.availability import RecordedIntervals
from costmodel.fleet.devices import devices, networks
from costmodel.fleet.dynamics import ClientDynamics
from costmodel.fleet.inputs import FleetInputs
from costmodel.network.links import Links
from costmodel.visits.work import Work
from tests.costmodel.worlds import FIRST_ENDS, INF, VISIT, conditions, ends, fleet_of


def _clock(clients: int = 2, **options: Any) -> Clock:
    return Clock(fleet_of(clients, devices=["phone-low"] * clients, networks=["lte"] * clients, **options))


def _by_hand(
    links: Links | None = None, battery: float | None = None, behaviour: ClientDynamics | None = None
) -> Clock:
    """Clients with the figures of `worlds.BY_HAND`."""
    device = dataclasses.replace(
        devices()["phone-low"], flops_per_second={"conv": 2.0}, step_seconds=0.02, train_watts=10.0, idle_watts=1.0
    )
    network = dataclasses.replace(
        networks()["wan"],
        down_bits_per_second=12_112.0,
        up_bits_per_second=6056.0,
        rtt_seconds=0.2,
        transmit_watts=2.0,  # beside the baseline of 1 W
        receive_watts=1.0,
    )
    inputs, hand = FleetInputs({"hand": device}, {"hand": network}), ["hand"] * 3
    return Clock(fleet_of(3, inputs, devices=hand, networks=hand, links=links, behaviour=behaviour, battery=battery))


def _begin(clock: Clock, client: int, work: Work = VISIT) -> None:
    clock.begin(work, clock.conditions([client], 0, client), client)


def _ended(clock: Clock) -> VisitEnded:
    ended = clock.next()
    assert isinstance(ended, VisitEnded), ended
    return ended


# The order of things.


def test_the_clock_stands_exactly_at_the_times_it_was_given() -> None:
    rng = np.random.default_rng(5)
    times = np.cumsum(rng.exponential(1.0, 2000)) * 1.1
    clock = _clock()
    # A control: adding delays, as SimPy does, misses some of these times.
    missed = [now + (time - now) != time for now, time in zip(times[:-1] / 3, times[1:], strict=True)]
    assert any(missed)
    for client in rng.permutation(2000):
        clock.at(times[client], 0, client)
    for client in range(2000):
        assert clock.next() == client
        assert clock.now == times[client]


def test_at_the_same_time_the_lowest_order_comes_first_then_the_oldest() -> None:
    clock = _clock()
    for order, item in ((7, "client 7"), (2, "client 2"), (0, "client 0"), (2, "client 2 again")):
        clock.at(1.5, order, item)
    assert [clock.next() for _ in range(4)] == ["client 0", "client 2", "client 2 again", "client 7"]


def test_advance_goes_to_a_time_exactly_and_keeps_what_is_due_then() -> None:
    clock = _clock()
    clock.at(0.3, 0, "due")
    clock.advance(0.1)
    assert clock.now == 0.1
    clock.advance(0.1)
    clock.advance(0.3)
    assert clock.now == 0.3
    assert clock.next() == "due"
    assert clock.now == 0.3


# Visits.


def test_a_visit_comes_out_of_next_when_it_ends() -> None:
    clock = _by_hand()
    clock.advance(100.0)
    _begin(clock, 1)
    ended = _ended(clock)
    assert (ended.order, ended.conditions.clients.tolist()) == (1, [1])
    assert ends(ended.timeline) == pytest.approx(tuple(100.0 + end for end in FIRST_ENDS))
    assert ended.timeline.joules[0] == pytest.approx(3.6 + 32.0 + 3.3)
    assert clock.now == ended.timeline.up_end[0]


def test_visits_that_begin_one_by_one_share_the_links() -> None:
    # Client 1 comes 0.5 s later. From 0.7 s on client 0 sends alone, from 1.2 s on they share: client 0's other half
    # takes 1 s, client 1's second half 0.5 s alone from 2.2 s on.
    clock = _by_hand(Links(down=12_112.0))
    _begin(clock, 0)
    clock.at(0.5, 0, "begin")
    assert clock.next() == "begin"
    _begin(clock, 1)
    down_ends = [float(_ended(clock).timeline.down_end[0]) for _ in range(2)]
    assert down_ends == pytest.approx([2.3, 2.8])


def test_a_visit_that_is_cut_is_charged_and_leaves_the_link_to_the_others() -> None:
    clock = _by_hand(Links(down=12_112.0))
    _begin(clock, 0)
    _begin(clock, 1)
    clock.advance(1.2)
    cut = clock.cut(0)
    # A quarter of the bits in half a second at half the rate.
    assert (cut.timeline.bytes_down[0], cut.timeline.joules_spent[0]) == (362, pytest.approx(2.4))
    assert ends(cut.timeline) == (INF, INF, INF)
    assert cut.timeline.lost[0] == INF
    ended = _ended(clock)
    # Three quarters are left for client 1 alone: 1.2 + 0.75 + 0.1 s.
    assert (ended.order, ended.timeline.down_end[0]) == (1, pytest.approx(2.05))
    with pytest.raises(LookupError, match="no event is scheduled"):
        clock.next()


def test_a_visit_that_is_cut_at_the_instant_of_its_end_has_ended_and_comes_once() -> None:
    clock = _by_hand()
    end = float(clock.solve([0.0], [VISIT], clock.conditions([1], 0)).up_end[0])
    clock.at(end, 0, "deadline")
    _begin(clock, 1)
    assert clock.next() == "deadline"
    assert clock.cut(1).timeline.up_end[0] == end
    with pytest.raises(LookupError, match="no event is scheduled"):
        clock.next()


# What clients remember.


def _visit(clock: Clock, start: float, client: int = 0) -> tuple[float, float]:
    """Visit a client as a round does: (seconds of its download, seconds of its upload)."""
    clock.advance(start)
    chosen = clock.conditions([client], 0)
    timeline = clock.solve([start], [VISIT], chosen)
    clock.passed(chosen, timeline)
    return float(timeline.down_end[0] - start), float(timeline.up_end[0] - timeline.compute_end[0])


def test_a_connection_is_set_up_once() -> None:
    clock = _by_hand()
    assert _visit(clock, 0.0) == pytest.approx((1.8, 1.1))
    assert _visit(clock, 1000.0) == pytest.approx((1.1, 1.1))
    # Another client has its own.
    assert _visit(clock, 2000.0, client=1) == pytest.approx((1.8, 1.1))


def test_a_window_is_kept_for_a_round_trip_and_a_fifth_of_a_second() -> None:
    # 5 MB over LTE: 1.142857 s at the 35 Mbit/s of a speed test, and half of 40 ms. An idle connection first waits for
    # windows of 121.12 to 968.96 kbit, which take 3.310, 6.619, 13.239 and 26.478 ms of 40 ms each: 110.354 ms.
    clock = _clock()

    def seconds_of_download(start: float) -> float:
        clock.advance(start)
        chosen = clock.conditions([0], 0)
        timeline = clock.solve([start], [Work(5_000_000, 0, 1e6)], chosen)
        clock.passed(chosen, timeline)
        return float(timeline.down_end[0]) - start

    assert seconds_of_download(0.0) == pytest.approx(0.14 + 0.110354 + 1.162857, abs=1e-6)
    end = 1.413211
    assert seconds_of_download(end + 0.2399) == pytest.approx(1.162857, abs=1e-6)
    end += 0.2399 + 1.162857
    assert seconds_of_download(end + 0.2401) == pytest.approx(0.110354 + 1.162857, abs=1e-6)


def test_a_lost_client_has_to_connect_again() -> None:
    clock = _by_hand()
    chosen = conditions(1, crash_after=2.5)
    clock.passed(chosen, clock.solve([0.0], [VISIT], chosen))
    assert clock.conditions([0], 0).last_down[0] == -INF
    assert _visit(clock, 10.0) == pytest.approx((1.8, 1.1))


def test_batteries_drain_from_visit_to_visit_and_while_waiting() -> None:
    clock = _by_hand(battery=50.0)
    chosen = clock.conditions([0, 1], 0)
    assert chosen.charge.tolist() == [50.0, 50.0]
    timeline = clock.solve([0.0, 0.0], [VISIT, VISIT], chosen)
    # 3.6 + 32 + 3.3 J, and client 1 idles at 1 W for 3.9 s.
    clock.passed(chosen, timeline, np.array([0.0, 3.9]))
    assert clock.conditions([0, 1, 2], 0).charge.tolist() == pytest.approx([11.1, 7.2, 50.0])
    assert clock.has_power(0)
    # 2.2 J to download, then 8.9 J last for 0.89 s of computing.
    clock.advance(100.0)
    chosen = clock.conditions([0], 0)
    timeline = clock.solve([100.0], [VISIT], chosen)
    clock.passed(chosen, timeline)
    assert timeline.lost[0] == pytest.approx(100.0 + 1.1 + 0.89)
    assert timeline.joules_spent[0] == pytest.approx(11.1)
    assert (clock.has_power(0), clock.has_power(1)) == (False, True)


def test_a_client_that_went_flat_never_has_power_again() -> None:
    """Neither what rounding leaves in its battery counts, nor what is too little for the bits of a message."""
    rng = np.random.default_rng(8)
    for start, joules in zip(rng.uniform(0, 1e6, 50).tolist(), rng.uniform(1, 38, 50).tolist(), strict=True):
        clock = _by_hand(battery=joules)
        chosen = clock.conditions([0], 0)
        clock.passed(chosen, clock.solve([start], [VISIT], chosen))
        assert not clock.has_power(0)
    clock = _by_hand(battery=10.0)
    chosen = dataclasses.replace(clock.conditions([0], 0), receive_joules_per_bit=np.array([1e-3]))
    clock.passed(chosen, clock.solve([0.0], [VISIT], chosen))
    assert not clock.has_power(0)


def test_a_clock_that_is_restored_goes_on_as_the_one_whose_state_it_has() -> None:
    one, other = _by_hand(battery=500.0), _by_hand(battery=500.0)
    _visit(one, 0.0)
    state = {name: column.copy() for name, column in one.state().items()}
    other.restore(one.now, state)
    assert other.now == one.now
    assert _visit(other, 7.0) == _visit(one, 7.0) == pytest.approx((1.1, 1.1))
    assert other.conditions([0], 0).charge.tolist() == one.conditions([0], 0).charge.tolist()
    # What was saved is not what goes on.
    assert state["spent_joules"][0] == pytest.approx(38.9)


# Who is there.


def test_clients_are_there_in_their_windows() -> None:
    clock = _by_hand(behaviour=ClientDynamics(RecordedIntervals([[(0.0, 5.0)], [(3.0, 9.0)], []], None)))
    is_there = clock.is_there
    assert is_there is not None
    assert [is_there(client) for client in range(3)] == [True, False, False]
    assert clock.first_available([0, 1]) == 0.0
    assert clock.first_available([1, 2]) == 3.0
    assert clock.first_available([2]) == INF
    clock.advance(6.0)
    assert [is_there(client) for client in range(3)] == [False, True, False]
    assert clock.first_available([0]) == INF
