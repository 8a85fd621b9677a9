"""The costs of a message beyond its bytes: headers, round trips, and the set-up of its connection.

`costmodel.network.senders` has the windows in which a message is sent, `costmodel.network.fair_link` the rates at which
links serve them.

Measured over ZeroMQ behind a shaped link of 20 Mbit/s and 30 ms with 5 MB: bytes / rate alone is 7.2 % short, with
headers and half a round trip 2.2 %, with slow start 0.0 % (``make test-network`` repeats it).
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles

Number = TypeVar("Number", float, Doubles)

# An Ethernet frame of 1514 bytes carries 1448 of the application: Ethernet, IP and TCP with timestamps take the rest.
FRAME_NBYTES = 1514
FRAME_BITS = 8.0 * FRAME_NBYTES
WIRE_FACTOR = FRAME_NBYTES / 1448
# Linux takes a connection for idle after the smoothed round trip and at least 200 ms more.
IDLE_FLOOR_SECONDS = 0.2


def wire_bits(nbytes: Number) -> Number:
    """Bits on the wire of a message of ``nbytes`` bytes."""
    return 8.0 * WIRE_FACTOR * nbytes


def is_idle(now: Number, last_used: Number, rtt: Number) -> bool | NDArray[np.bool_]:
    """Whether a sender that last sent at ``last_used`` has lost its window by ``now``."""
    return now - last_used > rtt + IDLE_FLOOR_SECONDS
