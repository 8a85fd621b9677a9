"""Shared links: closed forms by hand, oracles of their own, and what max-min fairness promises."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.network.fair_link import FairLink, Served
from costmodel.network.senders import Path
from costmodel.network.transfers import TransferTimes, transfer_batch
from tests.costmodel.oracle import exact_finish, fair_rates, random_case, replanned

Flow = tuple[int, int, int]
"""start in seconds, bits, cap in bit/s"""

flows_ = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60), st.integers(1, 12)), min_size=1, max_size=7)
seeds_ = st.integers(0, 10**9)
story = settings(max_examples=60, deadline=None, derandomize=True)


def _share(flows: Sequence[Flow], capacity: float, until: float = math.inf) -> TransferTimes:
    start, bits, cap = zip(*flows, strict=True)
    return transfer_batch(start, bits, cap, capacity, until)


def _finish(flows: Sequence[Flow], capacity: float, until: float = math.inf) -> list[float]:
    finish: list[float] = _share(flows, capacity, until).finish.tolist()
    return finish


def _sent(flows: Sequence[Flow], capacity: float, until: float) -> list[float]:
    sent: list[float] = _share(flows, capacity, until).sent.tolist()
    return sent


def _rates(
    cap: Sequence[float], capacity: float, site: Sequence[int] = (), site_capacity: Sequence[float] = ()
) -> list[float]:
    """Of flows that are all there at once: what each sends in one second, with more to send than that."""
    link = FairLink(capacity, site_capacity)
    for flow, each in enumerate(cap):
        link.join(0.0, flow, 1e6, each, site[flow] if site else 0)
    return [link.remove(1.0, flow).sent for flow in range(len(cap))]


def _agree(one: TransferTimes, other: TransferTimes) -> None:
    for name in ("finish", "sent", "contention_seconds", "paused"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-9, abs=1e-9), name


# Closed forms, by hand.


@pytest.mark.parametrize(
    ("flows", "capacity", "finish"),
    [
        # One second's worth of bits at the rates below: all end together after it.
        ([(0, 5, 5), (0, 15, 15), (0, 30, 40), (0, 30, 60)], 80, [1.0, 1.0, 1.0, 1.0]),
        # One flow takes its bits by the lower of cap and link.
        ([(2, 50, 10)], 80, [7.0]),
        ([(2, 50, 10)], 5, [12.0]),
        # 8 flows of 50 bits on 80 bit/s take as long as one after the other: 8 * 50 / 80 = 5 s.
        ([(0, 50, 50)] * 8, 80, [5.0] * 8),
        # 10 each until 2 s, when the first (20 bits) ends; the second then has 40 of 60 bits left, at its cap 20.
        ([(0, 20, 20), (0, 60, 20)], 20, [2.0, 4.0]),
        # The first sends 40 bits alone until 4 s, then 5 bit/s beside the second, which ends its 10 bits at 6 s;
        # 100 - 40 - 10 = 50 bits are left, at 10 bit/s: 11 s.
        ([(0, 100, 10), (4, 10, 10)], 10, [11.0, 6.0]),
        # From 1 s on the second takes its cap 2 for 3 s: the first sends 10 + 3 * 8 = 34 by 4 s, and 16 more at 10.
        ([(0, 50, 10), (1, 6, 2)], 10, pytest.approx([5.6, 4.0], rel=1e-12)),
        # A link that is free again serves at the cap.
        ([(0, 10, 10), (0, 10, 10), (7, 10, 10)], 10, [2.0, 2.0, 8.0]),
    ],
)
def test_flows_on_one_link_end_as_reckoned_by_hand(flows: list[Flow], capacity: float, finish: list[float]) -> None:
    assert _finish(flows, capacity) == finish


def test_rates_are_fair_on_the_servers_link_and_on_those_of_sites() -> None:
    # Caps 5, 15, 40, 60 on 80: the first two fit below the level, the others share the remaining 60.
    assert _rates([5, 15, 40, 60], 80) == [5.0, 15.0, 30.0, 30.0]
    # Two flows share the 10 of site 0; of the server's 100 the other 90 go to site 1, which could take 200.
    assert _rates([50, 50, 70, 70], 100, [0, 0, 1, 1], [10, 200]) == [5.0, 5.0, 45.0, 45.0]
    # Behind wide sites 90 / 3 each, and not 45 for the site of one.
    assert _rates([50, 50, 50], 90, [0, 0, 1], [80, 80]) == [30.0, 30.0, 30.0]


def test_nothing_to_send_ends_at_the_start_and_a_flow_that_never_starts_never_ends() -> None:
    assert _finish([(3, 0, 1), (0, 5, 1)], 1) == [3.0, 5.0]
    shared = transfer_batch([math.inf, 0.0], [5.0, 5.0], [1.0, 1.0], 1.0)
    assert shared.finish.tolist() == [math.inf, 5.0]
    assert shared.sent.tolist() == [0.0, 5.0]
    assert transfer_batch([], [], [], 1.0).finish.tolist() == []


def test_a_site_is_bound_only_while_its_own_link_is_the_narrower() -> None:
    # Site 0 gives 10 to each of its two flows until 1 s; then 6 of site 1 leave the server 30 / 8 each; from 2 s, when
    # those have sent their 3.75, it is 10 each again for the 20 - 10 - 3.75 bits that are left: 2.625 s.
    start, bits = [0.0] * 2 + [1.0] * 6, [20.0] * 2 + [3.75] * 6
    shared = transfer_batch(
        start, bits, [40.0] * 8, 30.0, access_link=[0] * 2 + [1] * 6, access_capacity=[20.0, math.inf]
    )
    assert shared.finish.tolist() == pytest.approx([2.625] * 2 + [2.0] * 6, rel=1e-12)


# The books: sent, held, paused, cut.


def test_until_cuts_exactly() -> None:
    # As above: at 5 s the first has sent 40 + 5 bits, the second 5 of its 10.
    flows = [(0, 100, 10), (4, 10, 10), (5, 10, 10), (9, 0, 10)]
    assert _finish(flows, 10, until=5) == [math.inf] * 4
    assert _sent(flows, 10, until=5) == [45.0, 5.0, 0.0, 0.0]
    # An end at `until` itself still counts.
    assert _finish(flows[:2], 10, until=6) == [math.inf, 6.0]
    assert _sent(flows[:2], 10, until=6) == [50.0, 10.0]
    # Flows that fit are cut by the same rule.
    assert _finish(flows[:2], 100, until=5) == [math.inf, 5.0]
    assert _sent(flows[:2], 100, until=5) == [50.0, 10.0]


def test_a_flow_that_is_cut_off_leaves_its_share_to_the_others() -> None:
    # 5 each until 4 s, when the second leaves with 20 of its bits sent; the first has 60 of 80 left, at 10: 10 s.
    shared = transfer_batch([0, 0], [80, 80], [10, 10], 10, [math.inf, 4.0])
    assert shared.finish.tolist() == [10.0, math.inf]
    assert shared.sent.tolist() == [80.0, 20.0]
    # It lost 2 of its 4 s; the other 2 of 10.
    assert shared.contention_seconds.tolist() == [2.0, 2.0]


def test_seconds_held_are_those_beyond_what_the_bits_take_at_the_cap() -> None:
    # 10 each of 20 for 2 s; alone, 20 bits at 20 take 1 s. The second then runs at its cap and loses no more.
    assert _share([(0, 20, 20), (0, 60, 20), (0, 0, 5)], 20).contention_seconds.tolist() == [1.0, 1.0, 0.0]
    assert _share([(0, 20, 20), (0, 60, 20)], 40).contention_seconds.tolist() == [0.0, 0.0]


def test_a_change_of_cap_counts_from_its_instant_on() -> None:
    link = FairLink(100.0)
    link.join(0.0, 7, 100.0, 10.0)
    assert link.next_finish() == 10.0
    link.change(4.0, 7, 30.0)
    # 60 of 100 bits are left, at 30.
    assert link.next_finish() == 6.0
    assert link.finished(5.0) == []
    assert link.finished(6.0) == [(7, Served(6.0, 100.0, 0.0, 0.0))]
    assert link.next_finish() == math.inf


def test_seconds_held_are_counted_by_the_cap_of_the_time() -> None:
    link = FairLink(10.0)
    link.join(0.0, 0, 100.0, 10.0)
    link.join(0.0, 1, 100.0, 40.0)
    # 5 each: by 2 s flow 0 has lost 1 s of 2 at cap 10; by 4 s another 1.5 of 2, at cap 20.
    link.change(2.0, 0, 20.0)
    assert link.remove(4.0, 0) == Served(4.0, 20.0, 2.5, 0.0, access_seconds=0.0, server_seconds=4.0)
    # Flow 1 sends 20 of its 100 by then, at cap 40 in half a second.
    assert link.remove(4.0, 1) == Served(4.0, 20.0, 3.5, 0.0, access_seconds=0.0, server_seconds=4.0)


def test_a_paused_flow_sends_nothing_and_holds_nobody_back() -> None:
    link = FairLink(10.0)
    link.join(0.0, 0, 30.0, 10.0)
    link.join(1.0, 1, 20.0, 0.0)
    link.change(2.0, 0, 0.0)
    assert link.next_finish() == math.inf
    link.change(2.0, 1, 10.0)
    assert link.next_finish() == 4.0
    assert link.finished(4.0) == [(1, Served(4.0, 20.0, 0.0, 1.0))]
    link.change(5.0, 0, 10.0)
    assert link.finished(6.0) == [(0, Served(6.0, 30.0, 0.0, 3.0))]


def test_caps_that_vary_are_asked_for_while_the_flow_is_there() -> None:
    asked = []

    def varying(flow: int, now: float) -> tuple[float, float]:
        asked.append((flow, now))
        # On for a second, off for a second.
        return (10.0, now + 1) if now % 2 == 0 else (0.0, now + 1)

    shared = transfer_batch([0.0, 3.0], [20.0, 99.0], None, 10.0, [math.inf, 4.5], varying=varying)
    # Flow 0 sends 10 by 1 s, 10 more from 2 to 3 s; flow 1 starts while paused, and sends 5 from 4 s on.
    assert shared.finish.tolist() == [3.0, math.inf]
    assert shared.sent.tolist() == [20.0, 5.0]
    assert shared.paused.tolist() == [1.0, 1.0]
    assert asked == [(0, 0.0), (0, 1.0), (0, 2.0), (1, 3.0), (1, 4.0)]


# To the bit.


def test_a_flow_that_is_never_held_back_ends_as_if_alone_to_the_bit() -> None:
    start, bits, cap = [0.1, 0.2, 0.3], [0.7, 50.0, 50.0], [0.1, 9.0, 9.0]
    shared = transfer_batch(start, bits, cap, 10.0)
    assert shared.finish[0] == 0.1 + 0.7 / 0.1
    assert shared.contention_seconds[0] == 0.0
    assert shared.finish[1] > 0.2 + 50 / 9
    assert shared.contention_seconds[1] > 0


def test_each_second_of_a_flow_is_of_the_link_that_sets_its_rate() -> None:
    # Flow 0 runs at its cap of 4 behind site 0 (10) until 1 s, then shares the site with flow 1 at 5 .. its cap of 4
    # stays; flow 1 has 6 of 8. From 2 s flow 2 (site 1, cap 40) leaves the server (12) 4 each: 1 is held by the server.
    link = FairLink(12.0, (10.0, 40.0))
    link.join(0.0, 0, 100.0, 4.0)
    link.join(1.0, 1, 100.0, 8.0)
    link.join(2.0, 2, 100.0, 40.0, 1)
    assert link.remove(5.0, 0)[2:6] == (0.0, 0.0, 0.0, 0.0)
    assert link.remove(5.0, 1)[2:6] == (0.25 + 1.5, 0.0, 1.0, 3.0)
    assert link.remove(5.0, 2)[2:6] == (3.0 * 0.9, 0.0, 0.0, 3.0)


# Against oracles.


@settings(max_examples=100, deadline=None, derandomize=True)
@given(flows=flows_, capacity=st.integers(1, 30))
def test_it_agrees_with_exact_arithmetic(flows: list[Flow], capacity: int) -> None:
    assert _finish(flows, capacity) == pytest.approx(exact_finish(flows, capacity), rel=1e-9)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=seeds_, flows=st.integers(1, 25), sites=st.sampled_from([0, 1, 2, 5]), changes=st.sampled_from([0, 3, 8]))
def test_it_agrees_with_planning_anew_at_every_event(seed: int, flows: int, sites: int, changes: int) -> None:
    case = random_case(np.random.default_rng(seed), flows, sites, changes)
    _agree(case.shared(), replanned(case))


@story
@given(seed=seeds_, flows=st.integers(1, 40), sites=st.sampled_from([0, 2, 7]))
def test_the_rates_are_max_min_fair(seed: int, flows: int, sites: int) -> None:
    case = random_case(np.random.default_rng(seed), flows, sites, changes=0)
    cap = np.array([steps[0][1] for steps in case.steps])
    rates = np.array(_rates(cap.tolist(), case.capacity, case.site.tolist(), case.site_capacity))
    assert rates == pytest.approx(fair_rates(cap, case.site, case.capacity, case.site_capacity), rel=1e-9)
    assert (rates <= cap * (1 + 1e-12)).all()
    links = [(np.ones(flows, bool), case.capacity)]
    links += [(case.site == site, room) for site, room in enumerate(case.site_capacity)]
    assert all(rates[on].sum() <= room * (1 + 1e-9) for on, room in links)
    # Bertsekas and Gallager: fair if each flow is at its cap or on a full link on which no other is faster.
    for flow in range(flows):
        bottlenecks = [
            on[flow] and rates[on].sum() >= room * (1 - 1e-9) and rates[flow] >= rates[on].max() * (1 - 1e-9)
            for on, room in links
        ]
        assert rates[flow] >= cap[flow] * (1 - 1e-9) or any(bottlenecks)


# --- loops for special cases, beside the general one ------------------------------------------------------------------

NAMES = ("finish", "sent", "contention_seconds", "paused", "own_seconds", "access_seconds", "server_seconds")


def _both(rng: np.random.Generator, flows: int, *, coarse: bool, cut: bool) -> tuple[TransferTimes, TransferTimes]:
    """A random batch: as it is, and with caps that could vary but do not, which the general loop solves."""
    # Coarse numbers make flows start, end and be cut at the same instants.
    start = rng.integers(0, 4, flows) / 4.0 if coarse else 3.0 * rng.random(flows)
    bits = rng.choice([1e5, 4e5, 2e6], flows) if coarse else rng.lognormal(13.0, 1.0, flows)
    cap = rng.choice([1e6, 2e6, 8e6], flows) if coarse else rng.lognormal(14.0, 1.0, flows)
    rtt = rng.choice([0.0, 0.03, 0.25], flows)
    until = np.where(rng.random(flows) < 0.3, start + rng.integers(1, 9, flows) / 4.0, math.inf) if cut else math.inf
    capacity = float(rng.choice([0.05, 0.3, 0.9])) * float(cap.sum())
    caps = cap.tolist()
    quick = transfer_batch(start, bits, cap, capacity, until, rtt=rtt)
    general = transfer_batch(
        start, bits, None, capacity, until, rtt=rtt, varying=lambda flow, _: (caps[flow], math.inf)
    )
    return quick, general


@settings(max_examples=80, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**9), flows=st.integers(1, 60), coarse=st.booleans(), cut=st.booleans())
def test_it_agrees_with_the_general_loop_to_the_bit(seed: int, flows: int, coarse: bool, cut: bool) -> None:
    quick, general = _both(np.random.default_rng(seed), flows, coarse=coarse, cut=cut)

    for name in NAMES:
        assert np.array_equal(getattr(quick, name), getattr(general, name)), name


@pytest.mark.parametrize("seed", range(8))
def test_it_agrees_where_messages_are_cut_at_the_instant_at_which_they_would_go_on(seed: int) -> None:
    # A message that is gone by then must not divide the time of the others: sums of two parts round differently.
    quick, general = _both(np.random.default_rng(seed), 300, coarse=seed % 2 == 0, cut=True)
    assert all(np.array_equal(getattr(quick, name), getattr(general, name)) for name in NAMES)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**9), flows=st.integers(1, 60), coarse=st.booleans(), lossy=st.booleans())
def test_links_that_share_nothing_agree_with_each_alone_and_with_the_general_loop_to_the_bit(
    seed: int, flows: int, coarse: bool, lossy: bool
) -> None:
    rng = np.random.default_rng(seed)
    start = rng.integers(0, 4, flows) / 4.0 if coarse else 3.0 * rng.random(flows)
    bits = rng.choice([1e5, 4e5, 2e6], flows) if coarse else rng.lognormal(13.0, 1.0, flows)
    cap, until = rng.choice([1e6, 2e6, 8e6], flows), np.where(rng.random(flows) < 0.2, start + 1.25, math.inf)
    rtt, site = rng.choice([0.0, 0.03, 0.25], flows), rng.integers(0, 4, flows)
    rates, caps = (3e6, math.inf, 1e6, 9e6), cap.tolist()
    paths = [Path(each, each > 0, 0.01 if lossy else 0.0, seed=seed + flow) for flow, each in enumerate(rtt.tolist())]
    more: dict[str, Any] = {"until": until, "access_link": site, "access_capacity": rates, "paths": paths}

    quick = transfer_batch(start, bits, cap, math.inf, **more)
    general = transfer_batch(start, bits, None, math.inf, **more, varying=lambda flow, _: (caps[flow], math.inf))
    for name in NAMES:
        assert np.array_equal(getattr(quick, name), getattr(general, name)), name
    for number, rate in enumerate(rates):
        on = site == number
        alone = transfer_batch(
            start[on], bits[on], cap[on], rate, until[on], paths=[paths[flow] for flow in np.flatnonzero(on).tolist()]
        )
        # What is the server's link to the flows of one is an access link to those of all.
        alone = replace(alone, access_seconds=alone.server_seconds, server_seconds=alone.access_seconds)
        for name in NAMES:
            assert np.array_equal(getattr(quick, name)[on], getattr(alone, name)), (name, number)
