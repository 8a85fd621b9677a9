"""Links that flows share by their windows, against numbers by hand, bounds, and what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.config import Transport
from costmodel.network.links import Links
from costmodel.network.senders import CUBIC, RENO, Congestion, Path
from costmodel.network.tcp import FRAME_BITS, wire_bits
from costmodel.network.window_sharing import WindowLink
from costmodel.visits.timeline import solve
from costmodel.visits.work import Work, Works
from tests.costmodel.oracle import slow_start_seconds
from tests.network.predict import idle_conditions

INF = math.inf
SEGMENTS = FRAME_BITS
"""Bits; a rate of 1000 of these is one of 1000 segments a second"""


def open_path(rtt: float, window: float) -> Path:
    """The path of a connection in use, with a window of so many segments."""
    return Path(rtt, False, threshold=window)


def finish(link: WindowLink) -> dict[int, float]:
    """When each flow ends."""
    ended: dict[int, float] = {}
    while (now := link.next_finish()) < INF:
        ended |= {flow: served.finish for flow, served in link.finished(now)}
    return ended


def test_flows_behind_a_full_link_share_it_by_their_windows_and_round_trips() -> None:
    # 20 / (0.01 + d) + 20 / (0.03 + d) = 1000, so d = sqrt(0.0005) = 22.4 ms: the golden ratio between their rates.
    link = WindowLink(1000 * SEGMENTS, (), 100 * SEGMENTS)
    for flow, rtt in enumerate((0.01, 0.03)):
        link.join(0.0, flow, 1e9, INF, 0, open_path(rtt, 20.0))
    rates = link.present_rates()
    assert (rates[0] / SEGMENTS, rates[1] / SEGMENTS) == pytest.approx((618.034, 381.966), abs=0.01)


def test_the_queue_is_found_where_own_links_overfill_the_shared_one() -> None:
    # Alone with a window of 40 behind an own link of 12 Mbit/s: 40 segments in 10 ms + d at 10 Mbit/s, d = 38.4 ms.
    link = WindowLink(10e6, (), 2_048_000)
    link.join(0.0, 0, 1e9, 12e6, 0, open_path(0.01, 40.0))
    assert link.present_rates() == {0: pytest.approx(10e6)}
    assert float(link._waiting[0]) == pytest.approx(40 * SEGMENTS / 10e6 - 0.01, abs=1e-6)
    # Five own links of 6 Mbit/s behind one of 20 fill it: 15 MB each take 5 x 15 MB / 20 Mbit/s and a slow start.
    link = WindowLink(20e6, (), 4e6)
    for flow in range(5):
        link.join(0.0, flow, wire_bits(15e6), 6e6, 0, Path(0.05, True))
    assert max(finish(link).values()) == pytest.approx(5 * wire_bits(15e6) / 20e6, rel=0.03)


def test_a_window_that_is_no_wider_than_the_path_leaves_the_link_idle() -> None:
    link = WindowLink(1000 * SEGMENTS, (), 100 * SEGMENTS)
    link.join(0.0, 0, 1e9, INF, 0, open_path(0.1, 40.0))
    assert link.present_rates() == {0: pytest.approx(400 * SEGMENTS)}
    link.join(0.0, 1, 1e9, 100 * SEGMENTS, 0, open_path(0.1, 40.0))  # its own link is slower than its window
    assert link.present_rates() == {0: pytest.approx(400 * SEGMENTS), 1: pytest.approx(100 * SEGMENTS)}
    assert (link.demands(), link.rates()) == ([INF], [1000 * SEGMENTS])  # what windows may grow to


def test_steps_end_where_no_rate_can_change() -> None:
    link, steps = WindowLink(20e6, (), 2_048_000), 0
    link.join(0.0, 0, wire_bits(2e6), 200e3, 0, Path(0.03, True))
    while (now := link.next_finish()) < INF:
        link.finished(now)
        steps += 1
    assert steps < 100  # of half a round trip there would be thousands


@pytest.mark.parametrize(("congestion", "left", "grown"), [(CUBIC, 105.0, 142.0), (RENO, 75.0, 97.0)])
def test_a_full_queue_cuts_a_window_which_grows_back_as_its_congestion_control_says(
    congestion: Congestion, left: float, grown: float
) -> None:
    # Pipe 100 and queue 50: a window of 150 overflows. 2.2 s after the repair cubic's is at 150 - 0.4 (4.83 - 2.2)^3,
    # and reno's has grown by a segment for each of 22 round trips.
    link = WindowLink(1000 * SEGMENTS, (), 50 * SEGMENTS, congestion)
    link.join(0.0, 0, 1e9, INF, 0, open_path(0.1, 149.5))
    window = 150.0
    while window >= 149.0:
        link.finished(now := link.next_finish())
        window = float(link._row("window")[0])
    assert window == pytest.approx(left, rel=0.02)
    until = now + 0.25 + 2.2
    while now < until:
        link.finished(now := link.next_finish())
    assert float(link._row("window")[0]) == pytest.approx(grown, rel=0.03)


def test_alone_behind_a_long_queue_a_flow_takes_as_long_as_slow_start_and_its_bits() -> None:
    link, rate, bits = WindowLink(20e6, (), 8e6), 20e6, wire_bits(5e6)
    link.join(0.0, 0, bits, 1e9, 0, Path(0.03, True))
    assert finish(link)[0] == pytest.approx(bits / rate + slow_start_seconds(0.03, rate, bits), rel=0.02)


def test_time_is_of_the_queue_of_the_own_link_or_of_the_window() -> None:
    link = WindowLink(1000 * SEGMENTS, (), 1000 * SEGMENTS)
    link.join(0.0, 0, 1e9, 100 * SEGMENTS, 0, open_path(0.1, 200.0))
    link.join(0.0, 1, 1e9, INF, 0, open_path(0.1, 20.0))
    link.join(0.0, 2, 1e9, 0.0, 0, open_path(0.1, 20.0))
    now = link.next_finish()
    own, window, paused = (link.remove(now, flow) for flow in range(3))
    assert (own.server_seconds, own.window_seconds, own.paused, own.contention_seconds) == (0.0, 0.0, 0.0, 0.0)
    assert (window.server_seconds, window.window_seconds, window.paused) == (0.0, now, 0.0)
    assert (paused.sent, paused.paused) == (0.0, now)


flows = st.tuples(
    st.floats(0.0, 1.0), st.floats(1e4, 3e5), st.floats(1e6, 1e8), st.floats(0.0, 0.2), st.integers(0, 1), st.booleans()
)


@settings(max_examples=15, deadline=None)
@given(st.lists(flows, min_size=1, max_size=4), st.sampled_from([4_000, 64_000, 1_000_000]))
def test_all_bits_arrive_and_no_link_carries_more_than_its_rate(
    sent: Sequence[tuple[float, float, float, float, int, bool]], queue: int
) -> None:
    server, sites = 8e6, (5e6, 6e6)
    link, ended = WindowLink(server, sites, 8.0 * queue), dict[int, float]()
    joins = sorted(enumerate(sent), key=lambda item: item[1][0])
    for flow, (start, nbytes, cap, rtt, site, is_new) in joins:
        while (now := link.next_finish()) < start:
            ended |= {done: served.finish for done, served in link.finished(now)}
        link.join(start, flow, 8 * nbytes, cap, site, Path(rtt, is_new, 0.001, seed=flow))
    ended |= finish(link)
    assert ended.keys() == set(range(len(sent)))
    for flow, (start, nbytes, cap, _, site, _) in enumerate(sent):
        assert ended[flow] >= start + 8 * nbytes / min(cap, server, sites[site]) * (1 - 1e-9)
    for capacity, behind in ((server, (0, 1)), (sites[0], (0,)), (sites[1], (1,))):
        own = [flow for flow, one in enumerate(sent) if one[4] in behind]
        if own:
            took = max(ended[flow] for flow in own) - min(sent[flow][0] for flow in own)
            assert took >= 8 * sum(sent[flow][1] for flow in own) / capacity * (1 - 1e-9)


# --- what was measured ------------------------------------------------------------------------------------------------

FIVE = tuple(np.linspace(0.010, 0.120, 5))


@pytest.mark.parametrize(
    ("rate", "rtts", "queue", "megabytes", "loss", "measured", "fair"),
    [
        # Medians of three rounds behind shaped links (docs/evidence/clock.md), and what fair shares say.
        (20e6, FIVE, 64_000, 3, 0.0, 9.43, 6.33),
        (20e6, FIVE, 250_000, 3, 0.0, 6.57, 6.33),
        (20e6, (0.1,) * 5, 32_000, 3, 0.0, 8.33, 6.43),
        (20e6, (0.06,) * 5, 500_000, 3, 0.003, 8.00, 6.54),
    ],
)
def test_rounds_take_what_was_measured(
    rate: float, rtts: tuple[float, ...], queue: int, megabytes: int, loss: float, measured: float, fair: float
) -> None:
    works, count = Works.of([Work(0, megabytes * 1_000_000, 0.0)] * len(rtts)), len(rtts)
    links = Links(rate, rate, transport=Transport(queue=queue, sharing="windows"))
    start, rounds = np.zeros(count), []
    for seed in range(5):
        seeds = np.arange(2 * count).reshape(-1, 2) + 1000 * seed
        conditions = replace(idle_conditions(start, (1e10,) * count, (1e10,) * count, rtts), loss_seed=seeds)
        conditions = replace(conditions, loss=np.full(count, loss))
        rounds.append(float(solve(start, works, conditions, links).end.max()))
    assert np.median(rounds) == pytest.approx(measured, rel=0.16)
    if measured > 1.1 * fair:
        assert np.median(rounds) > (measured + fair) / 2
