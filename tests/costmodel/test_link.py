"""A shared link: closed forms by hand, an exact oracle of its own, and what max-min fairness promises."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.link import share, water_level

Flow = tuple[int, int, int]
"""start in seconds, bits, cap in bit/s"""

flows_ = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60), st.integers(1, 12)), min_size=1, max_size=7)


def _finish(flows: list[Flow], capacity: float, until: float = math.inf) -> list[float]:
    start, bits, cap = zip(*flows, strict=True)
    return [float(finish) for finish in share(start, bits, cap, capacity, until).finish]


def _sent(flows: list[Flow], capacity: float, until: float) -> list[float]:
    start, bits, cap = zip(*flows, strict=True)
    return [float(sent) for sent in share(start, bits, cap, capacity, until).sent]


def _fill(caps: dict[int, Fraction], capacity: Fraction) -> dict[int, Fraction]:
    """Max-min rates by filling all flows alike until one is at its cap, over and over, in exact arithmetic."""
    rates, growing, rest = dict.fromkeys(caps, Fraction(0)), set(caps), capacity
    while growing and rest > 0:
        step = min(rest / len(growing), *(caps[flow] - rates[flow] for flow in growing))
        for flow in growing:
            rates[flow] += step
        rest -= step * len(growing)
        growing = {flow for flow in growing if rates[flow] < caps[flow]}
    return rates


def _oracle(flows: list[Flow], capacity: int) -> list[float]:
    """Finish times, planned anew at every start and end, in exact arithmetic."""
    left = {flow: Fraction(bits) for flow, (_, bits, _) in enumerate(flows) if bits}
    finish = {flow: Fraction(start) for flow, (start, bits, _) in enumerate(flows) if not bits}
    now = Fraction(0)
    while left:
        active = {flow: Fraction(flows[flow][2]) for flow in left if flows[flow][0] <= now}
        rates = _fill(active, Fraction(capacity))
        events = [now + left[flow] / rate for flow, rate in rates.items()]
        event = min(events + [Fraction(flows[flow][0]) for flow in left if flows[flow][0] > now])
        for flow, rate in rates.items():
            left[flow] -= rate * (event - now)
            if left[flow] == 0:
                finish[flow] = event
        left, now = {flow: rest for flow, rest in left.items() if rest}, event
    return [float(finish[flow]) for flow in range(len(flows))]


def test_four_caps_on_one_link() -> None:
    # Caps 5, 15, 40, 60 on 80: the first two fit below the level, the others share the remaining 60.
    caps = np.array([5.0, 15.0, 40.0, 60.0])
    assert np.minimum(caps, water_level(caps, 80.0)).tolist() == [5.0, 15.0, 30.0, 30.0]
    # One second's worth of bits at those rates: all end together after it.
    assert _finish([(0, 5, 5), (0, 15, 15), (0, 30, 40), (0, 30, 60)], 80) == [1.0, 1.0, 1.0, 1.0]


def test_the_level_is_infinite_while_all_caps_fit() -> None:
    assert water_level(np.array([5.0, 15.0, 60.0]), 80.0) == math.inf
    assert water_level(np.array([]), 80.0) == math.inf


def test_equal_flows_take_as_long_as_one_after_the_other() -> None:
    # 8 flows of 50 bits on 80 bit/s: 8 * 50 / 80 = 5 s.
    assert _finish([(0, 50, 50)] * 8, 80) == [5.0] * 8


def test_what_one_flow_leaves_goes_to_the_others() -> None:
    # 10 each until 2 s, when the first (20 bits) ends; the second then has 40 of 60 bits left and runs at its cap 20.
    assert _finish([(0, 20, 20), (0, 60, 20)], 20) == [2.0, 4.0]


def test_a_late_flow_takes_its_share_from_its_start_on() -> None:
    # The first sends 40 bits alone until 4 s, then 5 bit/s beside the second, which ends its 10 bits at 6 s;
    # 100 - 40 - 10 = 50 bits are left, at 10 bit/s: 11 s.
    assert _finish([(0, 100, 10), (4, 10, 10)], 10) == [11.0, 6.0]


def test_a_narrow_late_flow_leaves_the_rest_of_the_link() -> None:
    # From 1 s on the second takes its cap 2 for 3 s: the first sends 10 + 3 * 8 = 34 by 4 s, and 16 more at 10: 5.6 s.
    assert _finish([(0, 50, 10), (1, 6, 2)], 10) == pytest.approx([5.6, 4.0], rel=1e-12)


def test_a_link_that_is_free_again_serves_at_the_cap() -> None:
    assert _finish([(0, 10, 10), (0, 10, 10), (7, 10, 10)], 10) == [2.0, 2.0, 8.0]


def test_flows_that_fit_do_not_see_each_other() -> None:
    rng = np.random.default_rng(0)
    start, bits, cap = rng.random(20), rng.random(20) * 100, 1 + rng.random(20)
    alone = (start + bits / cap).tolist()
    assert share(start, bits, cap, cap.sum()).finish.tolist() == alone
    assert share(start, bits, cap, math.inf).finish.tolist() == alone


def test_a_flow_that_is_never_held_back_ends_as_if_alone_to_the_bit() -> None:
    start, bits, cap = [0.1, 0.2, 0.3], [0.7, 50.0, 50.0], [0.1, 9.0, 9.0]
    finish = share(start, bits, cap, 10.0).finish
    assert finish[0] == 0.1 + 0.7 / 0.1
    assert finish[1] > 0.2 + 50 / 9


def test_the_order_of_the_flows_does_not_matter() -> None:
    rng = np.random.default_rng(1)
    start, bits, cap = rng.integers(0, 5, 30), rng.random(30), rng.random(30)
    shuffled = rng.permutation(30)
    one, other = share(start, bits, cap, 3.0), share(start[shuffled], bits[shuffled], cap[shuffled], 3.0)
    assert one.finish[shuffled].tolist() == other.finish.tolist()


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


def test_nothing_to_send_ends_at_the_start_and_a_flow_that_never_starts_never_ends() -> None:
    assert _finish([(3, 0, 1), (0, 5, 1)], 1) == [3.0, 5.0]
    shared = share([math.inf, 0.0], [5.0, 5.0], [1.0, 1.0], 1.0)
    assert shared.finish.tolist() == [math.inf, 5.0]
    assert shared.sent.tolist() == [0.0, 5.0]
    assert share([], [], [], 1.0).finish.tolist() == []


@settings(max_examples=150, deadline=None, derandomize=True)
@given(flows=flows_, capacity=st.integers(1, 30))
def test_it_agrees_with_exact_arithmetic(flows: list[Flow], capacity: int) -> None:
    assert _finish(flows, capacity) == pytest.approx(_oracle(flows, capacity), rel=1e-9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(flows=flows_, capacity=st.integers(1, 30), until=st.integers(1, 12))
def test_a_cut_changes_nothing_before_it(flows: list[Flow], capacity: int, until: int) -> None:
    whole, cut = _finish(flows, capacity), _finish(flows, capacity, until)
    assert cut == [finish if finish <= until else math.inf for finish in whole]
    for (start, bits, cap), finish, sent in zip(flows, cut, _sent(flows, capacity, until), strict=True):
        assert sent == bits if finish <= until else 0 <= sent <= min(bits, cap * max(until - start, 0)) + 1e-9


@settings(max_examples=60, deadline=None, derandomize=True)
@given(flows=flows_, capacity=st.integers(1, 30), until=st.integers(1, 12))
def test_the_link_is_never_idle_while_a_flow_could_use_it(flows: list[Flow], capacity: int, until: int) -> None:
    # All start at 0: while the caps of unfinished flows exceed the capacity, capacity * until bits have gone through.
    flows = [(0, bits, cap) for _, bits, cap in flows]
    sent, finish = _sent(flows, capacity, until), _finish(flows, capacity, until)
    assert sum(sent) <= capacity * until + 1e-9
    if sum(cap for (_, _, cap), end in zip(flows, finish, strict=True) if end > until) >= capacity:
        assert sum(sent) == pytest.approx(capacity * until, rel=1e-9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(flows=flows_, more=st.tuples(st.integers(0, 9), st.integers(1, 60), st.integers(1, 12)))
def test_one_more_flow_never_makes_another_faster(flows: list[Flow], more: Flow) -> None:
    before, after = _finish(flows, 10), _finish([*flows, more], 10)
    assert all(late >= early * (1 - 1e-12) for early, late in zip(before, after[:-1], strict=True))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(flows=flows_)
def test_twice_the_rates_halve_the_times(flows: list[Flow]) -> None:
    start, bits, cap = (np.array(column, float) for column in zip(*flows, strict=True))
    once, twice = share(start, bits, cap, 10.0), share(start / 2, bits, cap * 2, 20.0)
    assert twice.finish.tolist() == pytest.approx((once.finish / 2).tolist(), rel=1e-12)
