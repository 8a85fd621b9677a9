"""Visits that exchange messages in each step: a chain by hand, what they share, and what a cut leaves of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel.clock import Clock
from costmodel.network.links import Links
from costmodel.visits.exchange import fair_shares
from costmodel.visits.server_queue import queue_seconds
from costmodel.visits.timeline import Timeline, solve
from costmodel.visits.work import StepExchange, Work, Works
from tests.costmodel.worlds import INF, connected, fleet_of

RATES: dict[str, Any] = {"down": 12_112.0, "up": 3_028.0}
STEPS = StepExchange(trips=100, bytes_down=1448, bytes_up=724, server_seconds=2.0)
ALONE = Work(1448, 724, 6.0, exchange=STEPS)
"""No messages but those of the steps"""


def _solve(works: list[Work], links: Links | None = None, until: float = INF, **columns: Any) -> Timeline:
    who = connected(len(works), **columns)
    return solve([0.0] * len(works), Works.of(works), who, links or Links(), until=until)


def test_steps_are_a_chain_of_computing_bytes_round_trips_and_the_server() -> None:
    silent = replace(
        ALONE, exchange=replace(STEPS, bytes_down=0, bytes_up=0, server_seconds=0.0), bytes_down=0, bytes_up=0
    )
    # 6 FLOPs are 3 s of the device; 100 round trips of 60 ms are 6 s of silence.
    assert _solve([silent], rtt=0.06).up_end[0] == pytest.approx(3 + 6)
    # 1448 bytes are 12 112 bits with headers, and 724 are 6 056: 1 s and 2 s; the server takes 2 s.
    timeline = _solve([ALONE], rtt=0.06, **RATES)
    assert timeline.up_end[0] == pytest.approx(3 + 6 + 1 + 2 + 2)
    assert (timeline.bytes_down[0], timeline.bytes_up[0], timeline.flops[0]) == (1448, 724, 6.0)


def test_messages_before_and_after_the_steps_are_sent_as_ever() -> None:
    plain, both = Work(1448, 724, 6.0), Work(2 * 1448, 2 * 724, 6.0, exchange=STEPS)
    before, after = _solve([plain], rtt=0.06), _solve([both], rtt=0.06)
    steps = _solve([ALONE], rtt=0.06).up_end[0] - 3
    assert after.down_end[0] == pytest.approx(before.down_end[0])
    assert after.up_end[0] == pytest.approx(before.up_end[0] + steps)


def test_a_device_computes_sends_receives_and_waits_at_watts_of_its_own() -> None:
    timeline = _solve(
        [ALONE], rtt=0.06, **RATES, train_watts=10.0, idle_watts=1.0, receive_watts=3.0,
        transmit_watts=5.0, receive_joules_per_bit=0.0, transmit_joules_per_bit=0.001,
    )  # fmt: skip
    assert timeline.compute_joules[0] == pytest.approx(10 * 3)
    assert timeline.receive_joules[0] == pytest.approx(3 * 1)
    assert timeline.send_joules[0] == pytest.approx(5 * 2 + 0.001 * 6056)
    assert timeline.idle_joules[0] == pytest.approx(1 * (6 + 2))
    assert timeline.joules_spent[0] == pytest.approx(30 + 3 + 16.056 + 8)


def test_steps_queue_for_the_servers_device() -> None:
    # Alone a step takes 110 ms, of which the server computes 20. Of four, each finds three others waiting for
    # W / (110 + W) and served for 20 / (110 + W) of the time: W = 3 (20 W + 20 x 20 / 2) / (110 + W), which is 10 ms.
    # Eleven need 22 s of the device.
    four, eleven = (_solve([ALONE] * count, rtt=0.06, down=1e15, up=1e15) for count in (4, 11))
    assert four.up_end.tolist() == pytest.approx([3 + 6 + 2 + 1] * 4)
    assert eleven.up_end.tolist() == pytest.approx([22.0] * 11)
    assert eleven.exchange is not None and four.exchange is not None
    assert (eleven.exchange.served[0], eleven.exchange.queued[0]) == pytest.approx((2.0, 11.0))
    assert four.exchange.queued.tolist() == pytest.approx([1.0] * 4)


def test_a_visit_that_has_made_its_steps_leaves_the_device_to_the_others() -> None:
    # Served alone all the time: both wait until the first has had its 10 turns of 1 s, after 20 s; then 10 are left.
    waits = queue_seconds(np.zeros(2), np.ones(2), np.array([10.0, 20.0]))
    assert waits.tolist() == pytest.approx([10.0, 10.0])
    stays = queue_seconds(np.zeros(2), np.ones(2), np.array([10.0, 20.0]), leave=False)
    assert stays.tolist() == pytest.approx([10.0, 20.0])


def test_links_are_shared_by_all_that_are_under_way() -> None:
    """Two visits of 12 s ask for 505 bit/s upwards each."""
    columns = {"rtt": 0.06, **RATES}
    alone, work = 3 + 6 + 1 + 2, replace(ALONE, exchange=replace(STEPS, server_seconds=0.0))
    wide, narrow = (_solve([work] * 2, Links(up=capacity), **columns) for capacity in (1010.0, 605.6))
    assert wide.up_end.tolist() == pytest.approx([alone] * 2)
    assert narrow.up_end.tolist() == pytest.approx([2 * 6056 / 605.6] * 2)
    # 20 s instead of 12: for 8 s others have the server's link, and its own is at work for 2.
    assert (narrow.own_up[0], narrow.server_up[0], narrow.contention_seconds[0]) == pytest.approx((2, 8, 8))
    assert narrow.server_down.tolist() == [0.0] * 2


def test_what_sets_the_pace_of_steps_is_the_devices_own_share_and_its_link() -> None:
    timeline = _solve([ALONE], rtt=0.06, **RATES)
    assert timeline.computed[0] == pytest.approx(3)
    assert (timeline.own_down[0], timeline.own_up[0]) == pytest.approx((1, 2))


def test_losses_let_a_window_of_segments_through_each_round_trip() -> None:
    # sqrt(1.5 / 0.015) = 10 segments of 12 112 bits in 0.5 s: 242 240 bit/s on links of any rate.
    steps = StepExchange(1, 0, 144_800, 0.0)
    lossy = _solve([Work(0, 144_800, 0.0, exchange=steps)], rtt=0.5, down=1e9, up=1e9, loss=0.015)
    assert lossy.up_end[0] == pytest.approx(0.5 + 100 * 12_112 / 242_240)


def test_shares_are_max_min_fair() -> None:
    assert fair_shares(np.array([1.0, 4.0, 9.0]), 9.0).tolist() == [1.0, 4.0, 4.0]
    assert fair_shares(np.array([1.0, 4.0, 9.0]), 20.0).tolist() == [1.0, 4.0, 9.0]


def test_a_cut_leaves_the_steps_that_were_made_and_charges_for_them() -> None:
    timeline = _solve([ALONE], until=7.0, rtt=0.06, **RATES)
    assert not np.isfinite(timeline.up_end[0])
    assert (timeline.bytes_down[0], timeline.bytes_up[0]) == (724, 362)  # half of 14 s
    assert timeline.flops[0] == pytest.approx(3.0)


def test_a_visit_that_begins_shares_with_those_that_are_under_way() -> None:
    """Alone each takes 11 s, of which 2 s are the server's; the last of eleven needs an eleventh of it."""
    clock = Clock(fleet_of(11))
    for order in range(11):
        clock.begin(ALONE, connected(11, rtt=0.06, down=1e15, up=1e15).only(np.arange(11) == order), order)
    ends = [clock.next().timeline.up_end[0] for _ in range(11)]
    assert ends[0] == pytest.approx(11.0) and ends[3] == pytest.approx(12.0)
    assert ends[-1] == pytest.approx(22.0)


def test_visits_that_begin_at_once_share_with_each_other() -> None:
    clock, each = Clock(fleet_of(11)), connected(11, rtt=0.06, down=1e15, up=1e15)
    visits = [(ALONE, each.only(np.arange(11) == order)) for order in range(11)]
    for order, (work, conditions) in enumerate(visits):
        clock.begin(work, conditions, order, visits[order + 1 :])
    assert [clock.next().timeline.up_end[0] for _ in range(11)] == pytest.approx([22.0] * 11)


def test_one_by_one_a_visit_takes_what_it_takes_in_a_batch() -> None:
    who, clock = connected(1, rtt=0.06), Clock(fleet_of(1))
    clock.begin(ALONE, who, 0)
    ended = clock.next()
    assert ended.timeline.up_end[0] == _solve([ALONE], rtt=0.06).up_end[0]
    assert ended.timeline.joules_spent[0] == _solve([ALONE], rtt=0.06).joules_spent[0]
