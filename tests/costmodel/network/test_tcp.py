"""Headers, round trips and slow start, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.network.fair_link import Served
from costmodel.network.senders import INITIAL_WINDOW_BITS, Path, Sender
from costmodel.network.tcp import wire_bits
from costmodel.network.transfers import transfer_batch
from tests.costmodel.oracle import slow_start_seconds


def test_headers_take_66_bytes_of_every_frame() -> None:
    assert wire_bits(1448) == pytest.approx(8 * 1514)
    assert wire_bits(np.array([0.0, 2896.0])).tolist() == pytest.approx([0.0, 16 * 1514])


def test_the_first_windows_leave_a_long_fat_link_idle() -> None:
    # 20 Mbit/s x 30 ms hold 600 kbit. Windows of 121.12, 242.24, 484.48 kbit take 6.056, 12.112 and 24.224 ms to send:
    # idle for 23.944 + 17.888 + 5.776 ms; the fourth window is wider than the link.
    assert slow_start_seconds(0.030, 20e6, wire_bits(5e6)) == pytest.approx(0.047608)
    # What fits into the first window waits for nothing; one bit more waits for the first acknowledgement.
    assert slow_start_seconds(0.1, 100e6, INITIAL_WINDOW_BITS) == 0.0
    assert slow_start_seconds(0.1, 100e6, INITIAL_WINDOW_BITS + 1) == pytest.approx(0.1 - 121_120 / 100e6)
    assert slow_start_seconds(0.0, 1e9, 1e12) == 0.0


def test_known_transfers_over_shaped_links_come_out() -> None:
    """Measured with ZeroMQ on warm, idle connections: 20 Mbit/s at 60 ms, and 100 Mbit/s at 100 ms; within 2 %."""
    for rate, rtt, nbytes, measured in (
        (20e6, 0.06, 1e6, 0.597),
        (20e6, 0.06, 5e6, 2.275),
        (100e6, 0.1, 1e6, 0.662),
        (100e6, 0.1, 5e6, 1.020),
        (100e6, 0.1, 11e6, 1.523),
    ):
        bits = wire_bits(nbytes)
        predicted = slow_start_seconds(rtt, rate, bits) + bits / rate + rtt / 2
        assert predicted == pytest.approx(measured, rel=0.02)


# --- senders, window by window ----------------------------------------------------------------------------------------

W = INITIAL_WINDOW_BITS


def test_a_sender_waits_for_the_round_trip_before_it_sends_twice_as_much() -> None:
    sending = Sender(10 * W, Path(rtt=1.0))
    # At 8 W bit/s a round trip holds 8 W: windows of W, 2 W and 4 W leave it idle, the fourth would not.
    assert sending.next_part(5.0, 8 * W) == (W, 8 * W)
    assert sending.part_sent(Served(5.125, W, 0.0, 0.0)) == 6.0
    assert sending.next_part(6.0, 8 * W) == (2 * W, 8 * W)
    assert sending.part_sent(Served(6.25, 2 * W, 0.0, 0.0)) == 7.0
    assert sending.next_part(7.0, 8 * W) == (4 * W, 8 * W)
    assert sending.part_sent(Served(7.5, 4 * W, 0.0, 0.0)) == 8.0
    assert sending.next_part(8.0, 8 * W) == (3 * W, 8 * W)
    assert sending.part_sent(Served(8.375, 3 * W, 0.0, 0.0)) is None
    assert sending.sent == 10 * W


@given(
    st.lists(st.tuples(st.floats(4, 8), st.floats(5, 9), st.floats(0.0001, 1.0)), min_size=1, max_size=6),
    st.floats(0, 100),
)
@settings(max_examples=100)
def test_alone_it_is_the_closed_form(messages: list[tuple[float, float, float]], begin: float) -> None:
    bits, cap = (np.array([10 ** each[k] for each in messages]) for k in (0, 1))
    rtt = np.array([each[2] for each in messages])
    finish = transfer_batch(np.full(rtt.size, begin), bits, cap, 2 * cap.sum(), rtt=rtt).finish
    for i in range(rtt.size):
        seconds = slow_start_seconds(rtt[i], cap[i], bits[i]) + bits[i] / cap[i]
        assert finish[i] - begin == pytest.approx(seconds, rel=1e-9, abs=1e-9)


def test_two_senders_fill_the_pipe_in_half_the_windows() -> None:
    # 4 W bit/s and 1 s: alone, windows of W and 2 W leave idle time. Two senders at 2 W bit/s each: W takes 0.5 s, and
    # 2 W the whole round trip, after which 7 W follow at 2 W bit/s: 1 + 1 + 3.5 s.
    finish = transfer_batch([0.0, 0.0], [10 * W, 10 * W], [4 * W, 4 * W], 4 * W, rtt=[1.0, 1.0]).finish
    assert finish.tolist() == pytest.approx([5.5, 5.5])


def test_a_message_that_is_cut_while_it_waits_has_sent_its_windows() -> None:
    cut = transfer_batch([0.0], [10 * W], [8 * W], np.inf, [1.5], rtt=[1.0])
    assert (cut.finish[0], cut.sent[0]) == (np.inf, 3 * W)
    cut = transfer_batch([0.0, 0.0], [10 * W, 10 * W], [8 * W, 8 * W], 8 * W, [1.9, np.inf], rtt=[1.0, 1.0])
    assert cut.sent.tolist() == [3 * W, 10 * W]
