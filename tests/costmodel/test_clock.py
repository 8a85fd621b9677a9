"""Virtual time: a visit's phases by hand, cuts, and a SimPy clock that hits every absolute time to the bit."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from costmodel.clock import Clock, solve
from costmodel.fleet import Conditions, Fleet
from costmodel.work import Work

# 1000 bytes down at 8 kbit/s and 0.2 s round trip: 1.1 s; 6 FLOP at 2 FLOP/s: 3 s; 500 bytes up at 4 kbit/s: 1.1 s.
VISIT = Work(bytes_down=1000, bytes_up=500, flops=6.0)
ENDS = (1.1, 4.1, 5.2)


def _conditions(clients: int = 1) -> Conditions:
    def each(value: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.full(clients, value)

    return Conditions(
        flops_per_second=each(2.0),
        down=each(8000.0),
        up=each(4000.0),
        rtt=each(0.2),
        train_watts=each(10.0),
        idle_watts=each(1.0),
        transmit_watts=each(3.0),
        receive_watts=each(2.0),
    )


def _clock() -> Clock:
    rng = np.random.default_rng(0)
    return Clock(Fleet.build(2, ["phone-low"] * 2, ["lte"] * 2, server_down=16_000, server_up=math.inf, rng=rng))


def test_a_visit_downloads_computes_and_uploads() -> None:
    timeline = solve([0.0], [VISIT], _conditions(), math.inf, math.inf)
    ends = (timeline.down_end[0], timeline.compute_end[0], timeline.up_end[0])
    assert ends == pytest.approx(ENDS)
    assert (timeline.bytes_down[0], timeline.bytes_up[0], timeline.flops[0]) == (1000, 500, 6.0)
    # 2 W x 1.1 s + 10 W x 3 s + 3 W x 1.1 s
    assert timeline.joules[0] == timeline.joules_spent[0] == pytest.approx(35.5)
    # 1 W for the 4.8 s until 10 s.
    assert timeline.waiting_joules(10.0, _conditions())[0] == pytest.approx(4.8)
    assert timeline.waiting_joules(5.0, _conditions())[0] == 0.0


def test_no_bytes_take_no_time_not_even_a_round_trip() -> None:
    timeline = solve([7.0], [Work(0, 0, 6.0)], _conditions(), 1.0, 1.0)
    assert (timeline.down_end[0], timeline.compute_end[0], timeline.up_end[0]) == (7.0, 10.0, 10.0)


def test_visits_share_the_servers_link_in_both_directions() -> None:
    # Two downloads of 8000 bits share 8 kbit/s: 2 s + 0.1 s; uploads of 4000 bits share 4 kbit/s: 2 s + 0.1 s.
    timeline = solve([0.0, 0.0], [VISIT, VISIT], _conditions(2), 8000.0, 4000.0)
    assert timeline.down_end.tolist() == pytest.approx([2.1, 2.1])
    assert timeline.up_end.tolist() == pytest.approx([7.2, 7.2])


def test_a_visit_is_the_same_to_the_bit_whoever_else_is_in_the_batch_while_the_link_is_wide_enough() -> None:
    work = [Work(1000 + 77 * client, 300 * client, 1.7 * client) for client in range(5)]
    starts = [0.1 * client for client in range(5)]
    batch = solve(starts, work, _conditions(5), 40_000.0, 20_000.0)
    for client in range(5):
        single = solve([starts[client]], [work[client]], _conditions(), 40_000.0, 20_000.0)
        assert single.up_end[0] == batch.up_end[client]
        assert single.joules[0] == batch.joules[client]


@pytest.mark.parametrize(
    ("until", "ends", "bytes_down", "flops", "bytes_up", "joules"),
    [
        # Half of the download: 4000 bits, 2 W x 0.5 s.
        (0.5, (math.inf, math.inf, math.inf), 500, 0.0, 0, 1.0),
        # All is sent, but the last byte is still on its way.
        (1.05, (math.inf, math.inf, math.inf), 1000, 0.0, 0, 2.1),
        # 1 s of computing at 2 FLOP/s and 10 W.
        (2.1, (1.1, math.inf, math.inf), 1000, 2.0, 0, 12.2),
        # 0.5 s of the upload: 2000 bits, 3 W.
        (4.6, (1.1, 4.1, math.inf), 1000, 6.0, 250, 33.7),
        (6.0, ENDS, 1000, 6.0, 500, 35.5),
        # Nothing happens before the start.
        (0.0, (math.inf, math.inf, math.inf), 0, 0.0, 0, 0.0),
    ],
)
def test_a_visit_that_is_cut_is_charged_what_it_spent(
    until: float, ends: tuple[float, ...], bytes_down: int, flops: float, bytes_up: int, joules: float
) -> None:
    cut = solve([0.0], [VISIT], _conditions(), math.inf, math.inf, until)
    assert (cut.down_end[0], cut.compute_end[0], cut.up_end[0]) == pytest.approx(ends)
    assert (cut.bytes_down[0], cut.bytes_up[0]) == (bytes_down, bytes_up)
    assert (cut.flops[0], cut.joules_spent[0]) == pytest.approx((flops, joules))
    assert math.isfinite(cut.joules[0]) == math.isfinite(ends[2])
    assert cut.waiting_joules(100.0, _conditions())[0] == pytest.approx(94.8 if math.isfinite(ends[2]) else 0.0)


def test_a_visit_that_would_start_after_the_cut_spends_nothing() -> None:
    cut = solve([9.0], [Work(0, 0, 6.0)], _conditions(), math.inf, math.inf, until=5.0)
    assert (cut.down_end[0], cut.flops[0], cut.joules_spent[0]) == (math.inf, 0.0, 0.0)


def test_an_empty_batch_is_solved() -> None:
    timeline = solve([], [], _conditions(0), 1.0, 1.0)
    assert all(getattr(timeline, field.name).shape == (0,) for field in dataclasses.fields(timeline))


def test_the_clock_solves_behind_its_fleets_link_without_moving() -> None:
    clock = _clock()
    # 16 kbit/s for two downloads at 8 kbit/s: both at full rate.
    assert clock.solve([0.0, 0.0], [VISIT, VISIT], _conditions(2)).up_end.tolist() == pytest.approx([5.2, 5.2])
    assert clock.now == 0.0


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


def test_things_put_in_while_time_moves_come_in_order() -> None:
    clock = _clock()
    clock.at(0.3, 0, "second")
    clock.at(0.1, 0, "first")
    assert clock.next() == "first"
    clock.at(0.2, 0, "between")
    assert [clock.next(), clock.next()] == ["between", "second"]
    assert clock.now == 0.3


def test_at_the_same_time_the_lowest_order_comes_first_then_the_oldest() -> None:
    clock = _clock()
    for order, item in ((7, "client 7"), (2, "client 2"), (0, "client 0"), (2, "client 2 again")):
        clock.at(1.5, order, item)
    assert [clock.next() for _ in range(4)] == ["client 0", "client 2", "client 2 again", "client 7"]


def test_nothing_left_is_a_lookup_error() -> None:
    clock = _clock()
    with pytest.raises(LookupError):
        clock.next()
    clock.at(1.0, 0, None)
    assert clock.next() is None
    with pytest.raises(LookupError):
        clock.next()
    assert clock.now == 1.0


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


def test_time_neither_runs_backwards_nor_past_what_is_due() -> None:
    clock = _clock()
    clock.advance(2.0)
    with pytest.raises(AssertionError):
        clock.at(1.0, 0, "past")
    with pytest.raises(AssertionError):
        clock.advance(1.0)
    clock.at(3.0, 0, "due")
    with pytest.raises(AssertionError, match="'due' was due before"):
        clock.advance(4.0)
