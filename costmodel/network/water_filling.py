"""The flows of one link on either side of its water level: flows throttled to it, and flows that run at their caps.

The parts of `costmodel.network.fair_link`, which defines the level and combines access links. Nothing here knows of
more than one link. Bits sent at the level are counted by a virtual time V with dV = w dt, w the level: the V at which a
throttled flow ends does not depend on later levels, nor does the second at which a flow at its cap ends. So a flow is
updated only when it changes side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

# Caps that exceed the link by rounding alone do not contend.
ROUNDING = 1e-12
SLACK = 1 + ROUNDING


@dataclass(slots=True, eq=False)
class Flow:
    """One flow on the link; times in absolute seconds."""

    number: int
    bits: float
    access_link: AccessLink
    since: float
    """The time since which it has run at its cap, or has been paused"""
    sent: float = 0.0
    """Bits sent by ``since``"""
    cap: float = 0.0
    end: float = 0.0
    """The time of its end at its cap"""
    throttled_since: float = 0.0
    """The time since which it has been throttled"""
    throttled_virtual: float = 0.0
    """Virtual time at ``throttled_since``"""
    contention_seconds: float = 0.0
    paused: float = 0.0
    side: _FlowSet | None = None
    """None while it is paused."""
    serial: int = 0


_Entry = tuple[float, int, int, Flow]
"""(key, flow number, serial, flow); stale, and dropped when it is found, if the flow has another serial by now."""


class _FlowSet:
    """The flows on one side of a level, by end and by cap (``sign`` -1: the largest cap first)."""

    __slots__ = ("by_cap", "by_end", "caps", "count", "serials", "sign")

    def __init__(self, sign: int, serials: Iterator[int]) -> None:
        self.sign = sign
        self.serials = serials
        self.by_end: list[_Entry] = []
        self.by_cap: list[_Entry] = []
        self.count = 0
        self.caps = 0.0

    def add(self, flow: Flow, end: float) -> None:
        flow.side = self
        flow.serial = serial = next(self.serials)
        heappush(self.by_end, (end, flow.number, serial, flow))
        heappush(self.by_cap, (self.sign * flow.cap, flow.number, serial, flow))
        self.count += 1
        self.caps += flow.cap

    def remove(self, flow: Flow) -> None:
        flow.side = None
        flow.serial = 0
        self.count -= 1
        # Exactly 0 without flows, so that rounding errors do not accumulate.
        self.caps = self.caps - flow.cap if self.count else 0.0
        if len(self.by_end) + len(self.by_cap) > 4 * self.count + 64:
            self.by_end, self.by_cap = _fresh(self.by_end), _fresh(self.by_cap)


def _fresh(heap: list[_Entry]) -> list[_Entry]:
    """The heap without stale entries, which might never come to its top."""
    heap = [entry for entry in heap if entry[3].serial == entry[2]]
    heapify(heap)
    return heap


def _first(heap: list[_Entry]) -> _Entry | None:
    while heap:
        entry = heap[0]
        if entry[3].serial == entry[2]:
            return entry
        heappop(heap)
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

    __slots__ = ("at_cap", "bound", "capacity", "level", "now", "throttled", "virtual")

    def __init__(self, capacity: float, serials: Iterator[int]) -> None:
        self.capacity = capacity
        self.at_cap = _FlowSet(-1, serials)
        self.throttled = _FlowSet(1, serials)
        self.level = math.inf
        self.bound = False
        self.now = self.virtual = 0.0

    def move_on(self, now: float) -> None:
        """Advance to ``now`` at the present level."""
        if self.throttled.count:
            self.virtual += self.level * (now - self.now)
        else:
            self.virtual = 0.0
        self.now = now

    def next_finish(self) -> float:
        """The absolute seconds at which the next flow ends at the present level; inf if none does."""
        at_cap, throttled = _first(self.at_cap.by_end), _first(self.throttled.by_end)
        end = math.inf if at_cap is None else at_cap[0]
        return end if throttled is None else min(end, self._end(throttled))

    def ended(self, now: float) -> Iterator[Flow]:
        """The flows that have ended by ``now``, without their ends; they still have to be taken off."""
        while (entry := _first(self.at_cap.by_end)) and entry[0] <= now:
            yield heappop(self.at_cap.by_end)[3]
        while (entry := _first(self.throttled.by_end)) and self._end(entry) <= now:
            yield heappop(self.throttled.by_end)[3]

    def _end(self, throttled: _Entry) -> float:
        return self.now + max(throttled[0] - self.virtual, 0.0) / self.level

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
        if flow.side is None:
            flow.paused += self.now - flow.since
        elif flow.side is self.at_cap:
            flow.sent = min(flow.sent + flow.cap * (self.now - flow.since), flow.bits)
        else:
            bits = self.virtual - flow.throttled_virtual
            flow.contention_seconds += max(self.now - flow.throttled_since - bits / flow.cap, 0.0)
            flow.sent = min(flow.sent + flow.cap * (flow.throttled_since - flow.since) + bits, flow.bits)
        flow.since = self.now
        if flow.side:
            flow.side.remove(flow)

    def _throttle(self, flow: Flow) -> None:
        flow.throttled_since, flow.throttled_virtual = self.now, self.virtual
        self.throttled.add(flow, self.virtual + flow.bits - flow.sent - flow.cap * (self.now - flow.since))

    def throttle(self, water: WaterLevel) -> None:
        """Throttle the flows whose caps are above the level, which rises with each: the largest cap first."""
        while (entry := _first(self.at_cap.by_cap)) and entry[3].cap > water.level * SLACK:
            flow = entry[3]
            self.at_cap.remove(flow)
            self._throttle(flow)
            water.raise_level(flow.cap, 1)

    def release(self, water: WaterLevel) -> None:
        """Let the flows whose caps the level has reached run at them; it rises with each: the smallest cap first."""
        while (entry := _first(self.throttled.by_cap)) and entry[3].cap <= water.level:
            flow = entry[3]
            if flow.throttled_since < self.now:
                self.take(flow)
                flow.end = self.now + (flow.bits - flow.sent) / flow.cap
            else:
                # Throttled for no time at all: its end stays the same, to the bit.
                self.throttled.remove(flow)
            self.at_cap.add(flow, flow.end)
            water.raise_level(-flow.cap, -1)

    def fill(self) -> None:
        """Find the level that fills this link."""
        water = WaterLevel(self.capacity)
        water.raise_level(-self.at_cap.caps, self.throttled.count)
        self.throttle(water)
        self.release(water)
        self.level = water.level

    def demand(self, level: float) -> float:
        """The rate of its flows in bit/s at ``level``, if all of them are on the right side of it."""
        return self.at_cap.caps + self.throttled.count * level if self.throttled.count else self.at_cap.caps
