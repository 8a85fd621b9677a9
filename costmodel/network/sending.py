"""One message on its way over a link: at once, or window by window while its sender starts slowly.

TCP sends a window and waits for the round trip to pass before it sends the next, twice as wide, until a window takes as
long as the round trip: then the pipe is full and the rest flows. How long a window takes depends on who else is on the
link, so it is only known once it has been sent; alone on a link, all of it is
`costmodel.network.tcp.slow_start_seconds`.
"""

from __future__ import annotations

import math

from costmodel.network.fair_link import Served
from costmodel.network.tcp import INITIAL_WINDOW_BITS


class Sending:
    """What is left of one message, and how wide its window is. ``rtt`` in seconds; 0: it does not start slowly."""

    __slots__ = ("_began", "_left", "_part", "_rtt", "_window", "held", "paused", "sent")

    def __init__(self, bits: float, rtt: float) -> None:
        self._left, self._part, self._rtt = bits, 0.0, rtt
        self._window = INITIAL_WINDOW_BITS if rtt > 0 else math.inf
        self._began = -math.inf
        self.sent = self.held = self.paused = 0.0

    @property
    def is_fresh(self) -> bool:
        """Whether nothing has been sent of it, nor tried."""
        return self._began == -math.inf

    def next_part(self, now: float, cap: float) -> float:
        """Bits that may be sent from now on, over a link of one's own of ``cap`` bit/s."""
        if 0 < cap * self._rtt <= self._window:
            self._window = math.inf
        self._began, self._part = now, min(self._window, self._left)
        return self._part

    def part_sent(self, served: Served) -> float | None:
        """They have been; returns the absolute time at which the next part may begin, or None if all has been sent."""
        self._left -= self._part
        back = self._began + self._rtt
        if self._left <= 0.0:
            self._book(served, served.held)
            return None
        # Of what sharing cost, only what lies past the round trip delays anything.
        self._book(served, min(served.held, max(served.finish - back, 0.0)))
        if served.finish < back:
            self._window *= 2.0
            return back
        self._window = math.inf
        return served.finish

    def broken_off(self, served: Served) -> None:
        """The part under way was cut."""
        self._book(served, served.held)

    def _book(self, served: Served, held: float) -> None:
        self.sent += served.sent
        self.held += held
        self.paused += served.paused
