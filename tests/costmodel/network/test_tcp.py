"""Headers, round trips and slow start, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.network.senders import INITIAL_WINDOW_BITS
from costmodel.network.tcp import wire_bits
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
