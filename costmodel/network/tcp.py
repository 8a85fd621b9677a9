"""The costs of a message beyond max-min fair sharing: headers, round trips, connection set-up, slow start.

TCP sends a window and waits for a round trip before it sends the next, twice as wide, until a window takes as long as
the round trip: then the link is full and the rest flows. On a shared link the time of a window depends on the other
flows, so it is known only when the window has been sent (`SlowStart`); `costmodel.network.fair_link` gives the rates.

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
from costmodel.network.fair_link import Served

Number = TypeVar("Number", float, Doubles)

# An Ethernet frame of 1514 bytes carries 1448 of the application: Ethernet, IP and TCP with timestamps take the rest.
FRAME_NBYTES = 1514
WIRE_FACTOR = FRAME_NBYTES / 1448
# RFC 6928: ten segments before the first acknowledgement.
INITIAL_WINDOW_BITS = 8.0 * 10 * FRAME_NBYTES
# Linux takes a connection for idle after the smoothed round trip and at least 200 ms more.
IDLE_FLOOR_SECONDS = 0.2
# connect() to the first message: TCP, then the greeting of ZeroMQ without and with CURVE. Measured at 30, 60, 100 ms.
CONNECT_ROUND_TRIPS = {"none": 3.5, "curve": 5.5}


@dataclass(frozen=True)
class Transport:
    """The transport of all messages of a run."""

    security: str = "none"
    """``none`` or ``curve``: the handshake of a new connection"""
    slow_start: bool = True
    """Whether a connection that has been idle starts slowly again, as Linux does by default"""

    def __post_init__(self) -> None:
        if self.security not in CONNECT_ROUND_TRIPS:
            raise ValueError(f"security {self.security!r}: choose from {', '.join(CONNECT_ROUND_TRIPS)}")

    @property
    def connect_round_trips(self) -> float:
        """Round trips of a new connection before its first message."""
        return CONNECT_ROUND_TRIPS[self.security]


def wire_bits(nbytes: Number) -> Number:
    """Bits on the wire of a message of ``nbytes`` bytes."""
    return 8.0 * WIRE_FACTOR * nbytes


def is_idle(now: Number, last_used: Number, rtt: Number) -> bool | NDArray[np.bool_]:
    """Whether a sender that last sent at ``last_used`` has lost its window by ``now``."""
    return now - last_used > rtt + IDLE_FLOOR_SECONDS


class SlowStart:
    """The unsent rest of one message, and its window. ``rtt`` in seconds; 0: no slow start."""

    __slots__ = ("_began", "_left", "_part", "_rtt", "_window", "contention_seconds", "paused", "sent")

    def __init__(self, bits: float, rtt: float) -> None:
        self._left, self._part, self._rtt = bits, 0.0, rtt
        self._window = INITIAL_WINDOW_BITS if rtt > 0 else math.inf
        self._began = -math.inf
        self.sent = self.contention_seconds = self.paused = 0.0

    @property
    def is_fresh(self) -> bool:
        """Whether no part of it has begun."""
        return self._began == -math.inf

    def next_part(self, now: float, cap: float) -> float:
        """Bits that may be sent from ``now`` on, over the sender's own link of ``cap`` bit/s."""
        if 0 < cap * self._rtt <= self._window:
            self._window = math.inf
        self._began, self._part = now, min(self._window, self._left)
        return self._part

    def part_sent(self, served: Served) -> float | None:
        """Account a part that has been sent.

        Returns the absolute time at which the next part may begin, or None if all has been sent.
        """
        self._left -= self._part
        acknowledged = self._began + self._rtt
        if self._left <= 0.0:
            self._book(served, served.contention_seconds)
            return None
        # Only contention after the acknowledgement delays the message.
        self._book(served, min(served.contention_seconds, max(served.finish - acknowledged, 0.0)))
        if served.finish < acknowledged:
            self._window *= 2.0
            return acknowledged
        self._window = math.inf
        return served.finish

    def broken_off(self, served: Served) -> None:
        """Account the part under way, which was cut."""
        self._book(served, served.contention_seconds)

    def _book(self, served: Served, contention_seconds: float) -> None:
        self.sent += served.sent
        self.contention_seconds += contention_seconds
        self.paused += served.paused
