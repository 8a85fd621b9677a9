"""The flows behind one link, on either side of its water level: those held at it, and those that run at their caps.

The parts of `costmodel.network.fair_link`, which says what a level is and how the links of a tree go together. Nothing
here knows of more than one link. Bits sent at the level are counted by a virtual time V with dV = w dt, w the level:
the V at which a flow that is held will end does not depend on what w becomes, as the second at which a flow at its cap
will end does not. So a flow is touched only when it changes side.
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
    site: AccessLink
    since: float
    """When it last came to run at its cap, or was paused;"""
    sent: float = 0.0
    """bits it had sent by then;"""
    cap: float = 0.0
    end: float = 0.0
    """and when it ends if it goes on at its cap."""
    up: float = 0.0
    """When it last came to be held at the level;"""
    mark: float = 0.0
    """and what virtual time was then."""
    held: float = 0.0
    paused: float = 0.0
    side: _FlowSet | None = None
    """None while it is paused."""
    serial: int = 0


_Entry = tuple[float, int, int, Flow]
"""(key, flow number, serial, flow); stale, to be dropped when met, if the flow has another serial by now."""


class _FlowSet:
    """The flows on one side of a level, by their end and by their cap (``sign`` -1: the largest cap first)."""

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
        # From 0 again when it can be, so that rounding does not pile up.
        self.caps = self.caps - flow.cap if self.count else 0.0
        if len(self.by_end) + len(self.by_cap) > 4 * self.count + 64:
            self.by_end, self.by_cap = _fresh(self.by_end), _fresh(self.by_cap)


def _fresh(heap: list[_Entry]) -> list[_Entry]:
    """The heap without what is stale, which might never come to its top."""
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
    """The level that fills a link, from what flows at their caps leave of it and how many others share that."""

    __slots__ = ("_least", "count", "level", "rest")

    def __init__(self, capacity: float) -> None:
        self._least = -ROUNDING * capacity
        self.rest = capacity
        self.count = 0
        self.level = math.inf

    def raise_level(self, rest: float, count: int) -> None:
        """Leave ``rest`` bit/s more, to ``count`` more that share."""
        self.rest += rest
        self.count += count
        if self.count:
            self.level = self.rest / self.count
        else:
            self.level = math.inf if self.rest >= self._least else -math.inf


class AccessLink:
    """The flows of one site: those that run at their own cap, and those held at the level, in virtual time.

    The site is bound if its level is that of its own link and not the server's.
    """

    __slots__ = ("bound", "capacity", "held", "level", "now", "own", "virtual")

    def __init__(self, capacity: float, serials: Iterator[int]) -> None:
        self.capacity = capacity
        self.own = _FlowSet(-1, serials)
        self.held = _FlowSet(1, serials)
        self.level = math.inf
        self.bound = False
        self.now = self.virtual = 0.0

    def move_on(self, now: float) -> None:
        """Let time pass at the present level."""
        if self.held.count:
            self.virtual += self.level * (now - self.now)
        else:
            self.virtual = 0.0
        self.now = now

    def next_finish(self) -> float:
        """The absolute seconds at which its next flow ends at the present level; inf if none does."""
        own, held = _first(self.own.by_end), _first(self.held.by_end)
        end = math.inf if own is None else own[0]
        return end if held is None else min(end, self._end(held))

    def ended(self, now: float) -> Iterator[Flow]:
        """Drop the ends by ``now`` and give their flows, which are still to be taken off."""
        while (entry := _first(self.own.by_end)) and entry[0] <= now:
            yield heappop(self.own.by_end)[3]
        while (entry := _first(self.held.by_end)) and self._end(entry) <= now:
            yield heappop(self.held.by_end)[3]

    def _end(self, held: _Entry) -> float:
        return self.now + max(held[0] - self.virtual, 0.0) / self.level

    def place(self, flow: Flow, cap: float) -> None:
        """Put a flow, new or taken, on the side of the present level on which ``cap`` is; a cap of 0 pauses it."""
        assert 0 <= cap < math.inf, cap
        flow.cap = cap
        if cap > 0:
            flow.end = self.now + (flow.bits - flow.sent) / cap
            if cap > self.level * SLACK:
                self._hold(flow)
            else:
                self.own.add(flow, flow.end)

    def take(self, flow: Flow) -> None:
        """Take a flow off its side, with the books made up to now."""
        if flow.side is None:
            flow.paused += self.now - flow.since
        elif flow.side is self.own:
            flow.sent = min(flow.sent + flow.cap * (self.now - flow.since), flow.bits)
        else:
            shared = self.virtual - flow.mark
            flow.held += max(self.now - flow.up - shared / flow.cap, 0.0)
            flow.sent = min(flow.sent + flow.cap * (flow.up - flow.since) + shared, flow.bits)
        flow.since = self.now
        if flow.side:
            flow.side.remove(flow)

    def _hold(self, flow: Flow) -> None:
        flow.up, flow.mark = self.now, self.virtual
        self.held.add(flow, self.virtual + flow.bits - flow.sent - flow.cap * (self.now - flow.since))

    def throttle(self, water: WaterLevel) -> None:
        """Hold the flows whose caps are above the water, which rises with each: the largest first."""
        while (entry := _first(self.own.by_cap)) and entry[3].cap > water.level * SLACK:
            flow = entry[3]
            self.own.remove(flow)
            self._hold(flow)
            water.raise_level(flow.cap, 1)

    def release(self, water: WaterLevel) -> None:
        """Let the flows whose caps the water has reached run at them; it rises with each: the smallest first."""
        while (entry := _first(self.held.by_cap)) and entry[3].cap <= water.level:
            flow = entry[3]
            if flow.up < self.now:
                self.take(flow)
                flow.end = self.now + (flow.bits - flow.sent) / flow.cap
            else:
                # Held for no time at all: it ends when it did, to the bit.
                self.held.remove(flow)
            self.own.add(flow, flow.end)
            water.raise_level(-flow.cap, -1)

    def fill(self) -> None:
        """Find the level of the site's own link."""
        water = WaterLevel(self.capacity)
        water.raise_level(-self.own.caps, self.held.count)
        self.throttle(water)
        self.release(water)
        self.level = water.level

    def demand(self, level: float) -> float:
        """What its flows send at a level on the right side of which they all are, in bit/s."""
        return self.own.caps + self.held.count * level if self.held.count else self.own.caps
