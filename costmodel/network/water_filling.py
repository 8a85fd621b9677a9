"""The flows of one link on either side of its water level: flows throttled to it, and flows that run at their caps.

The parts of `costmodel.network.fair_link`, which defines the level and combines access links. Nothing here knows of
more than one link. Bits sent at the level are counted by a virtual time V with dV = w dt, w the level: the V at which a
throttled flow ends does not depend on later levels, nor does the second at which a flow at its cap ends. So a flow is
updated only when it changes side.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

# Caps that exceed the link by rounding alone do not contend.
ROUNDING = 1e-12
SLACK = 1 + ROUNDING


class Flow:
    """One flow on the link; times in absolute seconds."""

    __slots__ = (
        "access_link",
        "bits",
        "cap",
        "contention_seconds",
        "end",
        "held_seconds",
        "number",
        "paused",
        "sent",
        "serial",
        "server_seconds",
        "side",
        "since",
        "throttled_server",
        "throttled_since",
        "throttled_virtual",
    )

    end: float
    """The time of its end at its cap"""
    throttled_since: float
    """The time since which it has been throttled"""
    throttled_virtual: float
    """Virtual time at ``throttled_since``"""
    throttled_server: float
    """`AccessLink.server_seconds` at ``throttled_since``"""

    def __init__(self, number: int, bits: float, access_link: AccessLink, since: float) -> None:
        """``since``: the time since which it has run at its cap, or has been paused."""
        self.number, self.bits, self.access_link, self.since = number, bits, access_link, since
        # Bits sent by ``since``.
        self.sent = 0.0
        self.cap = self.contention_seconds = self.paused = 0.0
        # Seconds of being throttled, and these of them at the server's level.
        self.held_seconds = self.server_seconds = 0.0
        # None while it is paused.
        self.side: _FlowSet | None = None
        self.serial = 0


_Entry = tuple[float, int, int, Flow]
"""(key, flow number, serial, flow); stale, and dropped when it is found, if the flow has another serial by now."""


class _FlowSet:
    """The flows on one side of a level, by end and by cap (``sign`` -1: the largest cap first).

    Ends that come in ascending order, as those of equal messages do, are queued in a list without a heap's cost.
    """

    __slots__ = ("_ascending", "_by_cap", "_by_end", "_serials", "_sign", "caps", "count", "edge")

    def __init__(self, sign: int, serials: Iterator[int]) -> None:
        self._sign = sign
        self._serials = serials
        self._by_end: list[_Entry] = []
        self._ascending: deque[_Entry] = deque()
        self._by_cap: list[_Entry] = []
        self.count = 0
        self.caps = 0.0
        # ``sign`` times a cap, at most that of any flow.
        self.edge = math.inf

    @property
    def entries(self) -> int:
        """Entries kept, stale ones among them."""
        return len(self._by_end) + len(self._ascending) + len(self._by_cap)

    def add(self, flow: Flow, end: float) -> None:
        flow.side = self
        flow.serial = serial = next(self._serials)
        entry = (end, flow.number, serial, flow)
        ascending = self._ascending
        if not ascending or end >= ascending[-1][0]:
            ascending.append(entry)
        else:
            heappush(self._by_end, entry)
        key = self._sign * flow.cap
        if key < self.edge:
            self.edge = key
        heappush(self._by_cap, (key, flow.number, serial, flow))
        self.count += 1
        self.caps += flow.cap

    def remove(self, flow: Flow) -> None:
        flow.side = None
        flow.serial = 0
        self.count -= 1
        # Exactly 0 without flows, so that rounding errors do not accumulate.
        self.caps = self.caps - flow.cap if self.count else 0.0
        if len(self._by_end) + len(self._ascending) + len(self._by_cap) > 4 * self.count + 64:
            self._drop_stale()

    def _drop_stale(self) -> None:
        """Drop stale entries, which might never come first."""
        self._by_end, self._by_cap = (
            [entry for entry in heap if entry[3].serial == entry[2]] for heap in (self._by_end, self._by_cap)
        )
        heapify(self._by_end)
        heapify(self._by_cap)
        self._ascending = deque(entry for entry in self._ascending if entry[3].serial == entry[2])

    def first_end(self) -> float:
        """The first end of a flow; inf if there are none."""
        heap, ascending = self._by_end, self._ascending
        while heap and heap[0][3].serial != heap[0][2]:
            heappop(heap)
        while ascending and ascending[0][3].serial != ascending[0][2]:
            ascending.popleft()
        if not ascending:
            return heap[0][0] if heap else math.inf
        return heap[0][0] if heap and heap[0][0] < ascending[0][0] else ascending[0][0]

    def pop_first_end(self) -> Flow:
        """The flow of `first_end`, without its end."""
        heap, ascending = self._by_end, self._ascending
        if not ascending or (heap and heap[0][0] < ascending[0][0]):
            return heappop(heap)[3]
        return ascending.popleft()[3]

    def first_by_cap(self) -> Flow | None:
        """The flow with the first cap; of several the lowest number."""
        heap = self._by_cap
        while heap:
            key, _, serial, flow = heap[0]
            if flow.serial == serial:
                self.edge = key
                return flow
            heappop(heap)
        self.edge = math.inf
        return None


class WaterLevel:
    """The level that fills a link: the capacity that flows at their caps leave, over the number of other flows."""

    __slots__ = ("_least", "count", "level", "rest")

    def __init__(self, capacity: float) -> None:
        self._least = -ROUNDING * capacity
        self.rest = capacity
        self.count = 0
        self.level = math.inf

    def raise_level(self, rest: float, count: int) -> None:
        """Add ``rest`` bit/s to the capacity for throttled flows, and ``count`` to their number."""
        self.rest += rest
        self.count += count
        if self.count:
            self.level = self.rest / self.count
        else:
            self.level = math.inf if self.rest >= self._least else -math.inf


class AccessLink:
    """The flows of one access link: those at their caps, and those throttled to the level, in virtual time.

    The access link is bound if it is full, so that its level is its own and not the server's.
    """

    __slots__ = ("at_cap", "bound", "capacity", "level", "now", "number", "server_seconds", "throttled", "virtual")

    def __init__(self, capacity: float, serials: Iterator[int], number: int = 0) -> None:
        self.capacity, self.number = capacity, number
        self.at_cap = _FlowSet(-1, serials)
        self.throttled = _FlowSet(1, serials)
        self.level = math.inf
        self.bound = False
        self.now = self.virtual = 0.0
        # Seconds with throttled flows for which its level was the server's.
        self.server_seconds = 0.0

    def move_on(self, now: float) -> None:
        """Advance to ``now`` at the present level."""
        if self.throttled.count:
            self.virtual += self.level * (now - self.now)
            if not self.bound:
                self.server_seconds += now - self.now
        else:
            self.virtual = 0.0
        self.now = now

    def next_finish(self) -> float:
        """The absolute seconds at which the next flow ends at the present level; inf if none does."""
        at_cap = self.at_cap.first_end()
        if not self.throttled.count:
            return at_cap
        throttled = self._end(self.throttled.first_end())
        return throttled if throttled < at_cap else at_cap

    def ended(self, now: float) -> list[Flow]:
        """The flows that have ended by ``now``, without their ends; they still have to be taken off."""
        ended = []
        while self.at_cap.first_end() <= now:
            ended.append(self.at_cap.pop_first_end())
        while self.throttled.count and self._end(self.throttled.first_end()) <= now:
            ended.append(self.throttled.pop_first_end())
        return ended

    def _end(self, virtual: float) -> float:
        left = virtual - self.virtual
        return self.now + (left if left > 0.0 else 0.0) / self.level

    def place(self, flow: Flow, cap: float) -> None:
        """Add a flow, new or taken off, to the side of the present level on which ``cap`` is; a cap of 0 pauses it."""
        assert 0 <= cap < math.inf, cap
        flow.cap = cap
        if cap > 0:
            flow.end = self.now + (flow.bits - flow.sent) / cap
            if cap > self.level * SLACK:
                self._throttle(flow)
            else:
                self.at_cap.add(flow, flow.end)

    def take(self, flow: Flow) -> None:
        """Take a flow off its side, with its totals updated to now."""
        now, side = self.now, flow.side
        if side is None:
            flow.paused += now - flow.since
        elif side is self.at_cap:
            sent = flow.sent + flow.cap * (now - flow.since)
            flow.sent = sent if sent < flow.bits else flow.bits
        else:
            bits, held = self.virtual - flow.throttled_virtual, now - flow.throttled_since
            contention = held - bits / flow.cap
            if contention > 0.0:
                flow.contention_seconds += contention
            flow.held_seconds += held
            flow.server_seconds += self.server_seconds - flow.throttled_server
            sent = flow.sent + flow.cap * (flow.throttled_since - flow.since) + bits
            flow.sent = sent if sent < flow.bits else flow.bits
        flow.since = now
        if side:
            side.remove(flow)

    def _throttle(self, flow: Flow) -> None:
        flow.throttled_since, flow.throttled_virtual = self.now, self.virtual
        flow.throttled_server = self.server_seconds
        self.throttled.add(flow, self.virtual + flow.bits - flow.sent - flow.cap * (self.now - flow.since))

    def throttle(self, water: WaterLevel) -> None:
        """Throttle the flows whose caps are above the level, which rises with each: the largest cap first."""
        at_cap = self.at_cap
        while -at_cap.edge > water.level * SLACK:
            flow = at_cap.first_by_cap()
            if flow is None or flow.cap <= water.level * SLACK:
                return
            at_cap.remove(flow)
            self._throttle(flow)
            water.raise_level(flow.cap, 1)

    def release(self, water: WaterLevel) -> None:
        """Let the flows whose caps the level has reached run at them; it rises with each: the smallest cap first."""
        throttled = self.throttled
        while throttled.edge <= water.level:
            flow = throttled.first_by_cap()
            if flow is None or flow.cap > water.level:
                return
            if flow.throttled_since < self.now:
                self.take(flow)
                flow.end = self.now + (flow.bits - flow.sent) / flow.cap
            else:
                # Throttled for no time at all: its end stays the same, to the bit.
                throttled.remove(flow)
            self.at_cap.add(flow, flow.end)
            water.raise_level(-flow.cap, -1)

    def fill(self) -> None:
        """Find the level that fills this link."""
        water = WaterLevel(self.capacity)
        water.raise_level(-self.at_cap.caps, self.throttled.count)
        if -self.at_cap.edge > water.level * SLACK:
            self.throttle(water)
        if self.throttled.edge <= water.level:
            self.release(water)
        self.level = water.level

    def demand(self, level: float) -> float:
        """The rate of its flows in bit/s at ``level``, if all of them are on the right side of it."""
        return self.at_cap.caps + self.throttled.count * level if self.throttled.count else self.at_cap.caps
