"""The costs of a message beyond its bytes: headers, round trips, and the set-up of its connection.

`costmodel.network.senders` has the windows in which a message is sent, `costmodel.network.fair_link` the rates at which
links serve them.

Measured over ZeroMQ behind a shaped link of 20 Mbit/s and 30 ms with 5 MB: bytes / rate alone is 7.2 % short, with
headers and half a round trip 2.2 %, with slow start 0.0 % (``make test-network`` repeats it).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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
# connect() to the first message: TCP, then the greeting of ZeroMQ without and with CURVE, measured at 30, 60, 100 ms.
# TLS 1.3 takes one round trip more between TCP and the greeting: its full handshake ends with a message of the client,
# and what the client sends next goes with it (RFC 8446, section 2). Its 22 bytes per record of 16 kB are not counted.
CONNECT_ROUND_TRIPS = {"none": 3.5, "tls": 4.5, "curve": 5.5}
CONGESTION = ("cubic", "bbr")


@dataclass(frozen=True)
class Transport:
    """The transport of all messages of a run."""

    security: str = "none"
    """``none``, ``tls`` (1.3) or ``curve``: the handshake of a new connection"""
    slow_start: bool = True
    """Whether a connection that has been idle starts slowly again, as Linux does by default"""
    congestion: str = "cubic"
    """Congestion control of all senders: ``cubic``, whose window a random loss narrows, or ``bbr``"""
    reconnect: float = math.inf
    """Seconds of disuse after which a connection is closed, and has to be set up again for the next message"""
    promotion: bool = False
    """Whether a radio that has been idle for longer than its tail takes its network's promotion before a message"""

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("security", self.security, CONNECT_ROUND_TRIPS),
            ("congestion", self.congestion, CONGESTION),
        ):
            if value not in choices:
                raise ValueError(f"{name} {value!r}: choose from {', '.join(choices)}")
        if not self.reconnect > 0:
            raise ValueError(f"reconnect {self.reconnect!r}: must be positive")

    @property
    def connect_round_trips(self) -> float:
        """Round trips of a new connection before its first message."""
        return CONNECT_ROUND_TRIPS[self.security]

    @property
    def depends_on_disuse(self) -> bool:
        """Whether a message may take longer for the time since the one before it, beside slow start."""
        return self.promotion or self.reconnect < math.inf


def wire_bits(nbytes: Number) -> Number:
    """Bits on the wire of a message of ``nbytes`` bytes."""
    return 8.0 * WIRE_FACTOR * nbytes


def is_idle(now: Number, last_used: Number, rtt: Number) -> bool | NDArray[np.bool_]:
    """Whether a sender that last sent at ``last_used`` has lost its window by ``now``."""
    return now - last_used > rtt + IDLE_FLOOR_SECONDS
