"""Random loss and outages: the window after a loss, the timer after an outage, and what they cost a message."""

from __future__ import annotations

import math

import numpy as np
import pytest

from costmodel.network.senders import RENO, Path, Window, next_try
from costmodel.network.tcp import FRAME_BITS
from costmodel.network.transfers import TransferTimes, transfer_batch

INF = math.inf
MBIT = 1e6


def test_a_loss_narrows_the_window_which_then_grows_as_cubic_says() -> None:
    # 24.224 Mbit/s x 0.1 s are a pipe of 200 segments; 25 more wait before it.
    window = Window(INF, 24.224 * MBIT, Path(0.1, queue=25 * FRAME_BITS), threshold=100.0)
    assert window.segments == 100.0 and not window.is_full
    # After a loss in a window of 142.857 it is back there in cbrt(42.857 / 0.4) = 4.75 s.
    window.advance(5700, seconds=4.75)
    assert window.segments == pytest.approx(100 / 0.7, rel=1e-3) and not window.is_full
    window.advance(1e5, seconds=100.0)
    assert window.segments == pytest.approx(225.0) and window.is_full
    # 157.5 of 200 segments are left: 42.5 / 200 of two round trips, and in one of 600,000 losses the timer of 0.3 s.
    assert window.lose() == pytest.approx(0.0425 + 0.7 * (3 / 225) ** 3 * 0.3)
    assert (window.segments, window.threshold, window.kept) == pytest.approx((157.5, 157.5, 157.5))


def test_renos_window_is_halved_and_grows_by_a_segment_a_round_trip() -> None:
    window = Window(INF, 24.224 * MBIT, Path(0.1, queue=25 * FRAME_BITS, congestion=RENO), threshold=100.0)
    # Ten round trips with 100 to 109 segments are 1045.
    window.advance(1045, seconds=1.0)
    assert window.segments == pytest.approx(110.0, abs=0.05)
    window.lose()
    assert window.segments == pytest.approx(55.0, abs=0.05)


@pytest.mark.parametrize(
    ("rate", "rtt", "loss", "nbytes", "measured"),
    [
        # Medians behind shaped links with random drops, over connections that had lost segments before.
        (20e6, 0.06, 0.01, 4_000_507, 15.9),
        (50e6, 0.02, 0.003, 4_000_507, 2.66),
        (20e6, 0.002, 0.003, 4_000_507, 1.68),
        (20e6, 0.01, 0.001, 4_000_507, 1.74),
        (20e6, 0.02, 0.01, 4_000_507, 5.26),
    ],
)
def test_messages_take_what_was_measured_behind_links_that_lose_segments(
    rate: float, rtt: float, loss: float, nbytes: int, measured: float
) -> None:
    bits, threshold, seconds = nbytes * 8 * 1514 / 1448, INF, []
    for seed in range(200):
        path = Path(rtt, True, loss, threshold, seed, queue=8.0 * 500_000)
        times = transfer_batch([0.0], [bits], [rate], 1e12, paths=[path])
        threshold = float(times.threshold[0])
        seconds.append(float(times.finish[0]) + rtt / 2)
    assert np.median(seconds[4:]) == pytest.approx(measured, rel=0.15)
    # Mathis et al.: at most 1.22 MSS / (RTT sqrt(p)), which long messages come close to.
    assert np.mean(seconds) > bits / rate


def steps(first: float, later: float) -> dict[str, object]:
    """A link of ``first`` bit/s for a second, then of ``later``."""
    return {"varying": lambda flow, now: (first, 1.0) if now < 1.0 else (later, INF)}


def test_a_window_as_wide_as_the_pipe_follows_a_link_that_becomes_faster() -> None:
    # 1 Mbit in the first second, 159 Mbit at 10 Mbit/s; with a loss in 10^9 segments as with none.
    lossless, lossy = (
        transfer_batch([0.0], [160 * MBIT], None, INF, paths=[Path(0.05, loss=loss)], **steps(MBIT, 10 * MBIT))  # type: ignore[arg-type]
        for loss in (0.0, 1e-9)
    )
    assert lossy.finish[0] == lossless.finish[0] == pytest.approx(1.0 + 15.9)
    # The window after a loss may be as wide as the faster link's pipe, too: 1.22 / sqrt(10^-4) segments are 29 Mbit/s.
    some = transfer_batch([0.0], [160 * MBIT], None, INF, paths=[Path(0.05, loss=1e-4)], **steps(MBIT, 10 * MBIT))  # type: ignore[arg-type]
    assert 16.9 <= some.finish[0] < 1.2 * 16.9


# Outages.


def test_a_sender_tries_again_after_twice_as_long_each_time() -> None:
    # The first timer is 0.05 + 0.2 s: tries 0.25, 0.75, 1.75, 3.75, 7.75 s after the outage began.
    assert [next_try(10.0, 10.0 + end, 0.05) - 10.0 for end in (0.1, 0.25, 0.3, 3.0, 3.8)] == pytest.approx(
        [0.25, 0.25, 0.75, 3.75, 7.75]
    )
    # No timer is longer than two minutes: 0.25 x (2^9 - 1) = 127.75 s, then every 120 s.
    assert next_try(0.0, 300.0, 0.05) == pytest.approx(127.75 + 2 * 120)
    # After a quarter of an hour, a new connection is made as soon as the link is up.
    assert next_try(0.0, 1e6, 0.05) == 1e6


def dark(begin: float, end: float, rate: float) -> dict[str, object]:
    """A link of ``rate`` bit/s, but for an outage."""

    def varying(flow: int, now: float) -> tuple[float, float]:
        return (rate, begin) if now < begin else (0.0, end) if now < end else (rate, INF)

    return {"varying": varying, "outage": lambda flow, now: begin <= now < end}


def one(bits: float, path: Path, begin: float, end: float, until: float = INF) -> TransferTimes:
    """One message over 1 Mbit/s."""
    return transfer_batch([0.0], [bits], None, INF, until, paths=[path], **dark(begin, end, 1e6))  # type: ignore[arg-type]


def test_an_outage_costs_what_is_left_of_the_timer_too() -> None:
    busy = Path(0.05, starts_slowly=False)
    times = one(5e6, busy, 2.0, 5.0)
    # It lasts from 2 s to 5 s; tries at 2.25, 2.75, 3.75, 5.75. Four windows of 10 segments fill the pipe at once.
    assert times.paused[0] == pytest.approx(3.75)
    assert times.finish[0] == pytest.approx(5.0 + 3.75)
    # An outage that ends before the first try.
    assert one(5e6, busy, 2.0, 2.1).finish[0] == pytest.approx(5.25)
    # One that has begun before the message: from its own start, tries at 0.25, 0.75, 1.75 s.
    assert one(1e6, busy, 0.0, 1.0).finish[0] == pytest.approx(1.75 + 1.0)


def test_after_an_outage_the_window_is_new() -> None:
    # 100 Mbit/s and 0.1 s: the pipe holds 826 segments, and windows of 10, 20, .. 640 leave it idle.
    bits, path = 2e8, Path(0.1, starts_slowly=False)
    plain = transfer_batch([0.0], [bits], [1e8], INF, paths=[path]).finish[0]
    broken = transfer_batch([0.0], [bits], None, INF, paths=[path], **dark(1.0, 1.2, 1e8)).finish[0]  # type: ignore[arg-type]
    slow_start = sum(0.1 - 10 * 2**k * FRAME_BITS / 1e8 for k in range(7))
    assert broken - plain == pytest.approx(0.3 + slow_start)
