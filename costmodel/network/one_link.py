"""A batch of flows over one full link: `FairLink` and `Sender` for caps that never change, several times faster.

Same events, same order, same arithmetic: results equal those of `costmodel.network.fair_link` to the bit. Its module
and `costmodel.network.water_filling` explain the steps, which are written out here since an event takes a few
microseconds, and each call a tenth of one. A flow is one object from its start to its end, instead of one per part.
Nothing here knows of access links or pauses; `costmodel.network.transfers` decides which batches can do without.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import repeat
from operator import attrgetter
from typing import cast

import numpy as np

from costmodel.arrays import Doubles
from costmodel.garbage import without_garbage_collection
from costmodel.network.senders import INITIAL_WINDOW_BITS
from costmodel.network.water_filling import ROUNDING, SLACK

_WAITING, _AT_CAP, _THROTTLED, _GONE = range(4)
_EVENTS_AT_A_TIME = 1 << 14
_ENDS_PER_SLOT = 16
_number = attrgetter("number")


class _Message:
    """One message, its unsent rest as in `Sender`, and the part under way as in `water_filling.Flow`."""

    __slots__ = (
        "bits",
        "cap",
        "contention",
        "contention_seconds",
        "due",
        "held",
        "held_seconds",
        "is_far",
        "is_near",
        "is_ranked",
        "left",
        "number",
        "own_seconds",
        "part",
        "rtt",
        "sent",
        "side",
        "since",
        "started",
        "throttled_since",
        "throttled_virtual",
        "window",
    )

    part: float
    """Bits of the part"""
    bits: float
    """Bits of the part sent by ``since``"""
    contention: float
    """Seconds lost to contention in the part"""
    held: float
    """Seconds of the part for which it was throttled"""
    started: float
    """When the part began"""
    since: float
    throttled_since: float
    throttled_virtual: float

    def __init__(self, number: int, bits: float, cap: float, rtt: float) -> None:
        self.number, self.left, self.cap, self.rtt = number, bits, cap, rtt
        self.window = INITIAL_WINDOW_BITS if rtt > 0 else math.inf
        self.sent = self.contention_seconds = self.held_seconds = self.own_seconds = 0.0
        self.side = _WAITING
        # When its part ends, in seconds at its cap or in virtual time if it is throttled: the very object in its entry.
        self.due: float | None = None
        # Whether it has an entry among the caps of free flows, of throttled flows, or waits to have one there.
        self.is_ranked = self.is_near = self.is_far = False


_Entry = tuple[float, int, _Message]
"""(key, flow number, message). An end is stale unless the message is due at this very object. A cap (or -cap) is stale
if the message is on the other side by now; it is valid again when the message comes back, as caps never change."""


class _Calendar:
    """The ends of messages under way, the first first: a heap of the next few, and later ones unsorted by slot.

    A heap of all of them costs several times more: its comparisons read memory that is far apart.
    """

    __slots__ = ("_later", "_per_unit", "_slot", "_slots", "next", "size")

    def __init__(self, slots_per_unit: float) -> None:
        """``slots_per_unit`` of the ends: a slot should have some ten of them, whatever they are."""
        self._per_unit = slots_per_unit
        self._slot: float = -math.inf
        self._slots: list[int] = []
        self._later: dict[int, list[_Entry]] = {}
        self.next: list[_Entry] = []
        self.size = 0

    def add(self, due: float, message: _Message) -> None:
        message.due = due
        self.size += 1
        slot = int(due * self._per_unit)
        if slot <= self._slot:
            heappush(self.next, (due, message.number, message))
        elif slot in self._later:
            self._later[slot].append((due, message.number, message))
        else:
            self._later[slot] = [(due, message.number, message)]
            heappush(self._slots, slot)

    def first(self) -> float:
        """The first end, which is that of ``next[0]``; inf if there is none."""
        heap = self.next
        while True:
            while heap:
                due, _, message = heap[0]
                if message.due is due:
                    return due
                heappop(heap)
                self.size -= 1
            if not self._slots:
                return math.inf
            self._slot = slot = heappop(self._slots)
            self.next = heap = self._later.pop(slot)
            heapify(heap)

    def pop(self) -> _Message:
        """The message of `first`, without its end."""
        self.size -= 1
        message = heappop(self.next)[2]
        message.due = None
        return message

    def clear(self) -> None:
        self._slot, self.size = -math.inf, 0
        self._slots.clear()
        self._later.clear()
        self.next.clear()

    def drop_stale(self) -> None:
        """Drop stale entries, which might never come first."""
        for entries in (self.next, *self._later.values()):
            entries[:] = [entry for entry in entries if entry[2].due is entry[0]]
        heapify(self.next)
        self.size = len(self.next) + sum(map(len, self._later.values()))


class OneLink:
    """The flows of one batch on a link of ``capacity`` bit/s; `run` fills in the results.

    All arrays are float64 of shape (flows,), with bits > 0, cap > 0 and start < until; units as of `transfer_batch`.
    """

    def __init__(
        self, start: Doubles, bits: Doubles, cap: Doubles, until: Doubles, rtt: Doubles, capacity: float
    ) -> None:
        self.finish = np.full(start.size, math.inf)
        self.sent, self.contention_seconds, self.held_seconds, self.own_seconds = np.zeros((4, start.size))
        self._columns = _view(bits), _view(cap), _view(rtt)
        self._results = _view(self.finish), _view(self.sent), _view(self.contention_seconds)
        self._limits = _view(self.held_seconds), _view(self.own_seconds)
        self._starts, self._cuts = _events(start), _events(until)
        self._under_way: dict[int, _Message] | None = {} if np.isfinite(until).any() else None
        self._resuming: list[tuple[float, int, _Message]] = []
        # Messages whose next parts begin at this instant.
        self._again: list[_Message] = []

        self._capacity, self._least = capacity, -ROUNDING * capacity
        self._level, self._virtual, self._last = math.inf, 0.0, -math.inf
        # Flows at their caps: by end, by -cap, their number, the sum of their caps, a bound on the largest cap.
        self._free_ends = _Calendar(start.size / _ENDS_PER_SLOT * capacity / float(bits.sum()))
        self._free_caps: list[_Entry] = []
        self._free, self._caps, self._largest = 0, 0.0, 0.0
        # Throttled flows by end in virtual time, which no part goes beyond by more than its bits.
        self._held_ends = _Calendar(start.size / _ENDS_PER_SLOT / float(bits.max()))
        # Throttled flows by cap, their number, a bound on the smallest cap; those of caps above ``near`` wait unsorted.
        self._held_caps: list[_Entry] = []
        self._far: list[_Message] = []
        self._held, self._smallest, self._near = 0, math.inf, 0.0

    def run(self) -> None:
        """Send all flows to their ends or cuts."""
        with without_garbage_collection():
            self._run()

    def _run(self) -> None:
        resuming, under_way = self._resuming, self._under_way
        next_start, starter = next(self._starts)
        next_cut, cut = next(self._cuts)
        bits, cap, rtt = self._columns
        while True:
            now = next_start if next_start < next_cut else next_cut
            if resuming and resuming[0][0] < now:
                now = resuming[0][0]
            end = self._next_finish()
            if end <= now:
                if end == math.inf:
                    return
                now = end
                self._finish(now)
            while next_cut == now:
                self._cut(cut, now)
                next_cut, cut = next(self._cuts)
            joining, self._again = self._again, []
            while resuming and resuming[0][0] == now:
                joining.append(heappop(resuming)[2])
            while next_start == now:
                message = _Message(starter, bits[starter], cap[starter], rtt[starter])
                joining.append(message)
                if under_way is not None:
                    under_way[starter] = message
                next_start, starter = next(self._starts)
            if under_way is not None:
                joining = [message for message in joining if message.side != _GONE]
            if len(joining) > 1:
                joining.sort(key=_number)
            if joining:
                self._join(joining, now)

    def _next_finish(self) -> float:
        """As `FairLink.next_finish`."""
        free_end = self._free_ends.first()
        if not self._held:
            return free_end
        left = self._held_ends.first() - self._virtual
        held_end = self._last + (left if left > 0.0 else 0.0) / self._level
        return held_end if held_end < free_end else free_end

    def _finish(self, now: float) -> None:
        """Remove the parts that have ended by ``now``."""
        ended = self._ended(now)
        self._move_on(now)
        virtual = self._virtual
        for message in ended:
            if message.side == _AT_CAP:
                self._free -= 1
                self._caps = self._caps - message.cap if self._free else 0.0
            else:
                self._held -= 1
                held = now - message.throttled_since
                message.held += held
                lost = held - (virtual - message.throttled_virtual) / message.cap
                if lost > 0.0:
                    message.contention += lost
            message.side = _WAITING
            message.left -= message.part
            message.sent += message.part
            if message.left <= 0.0:
                message.contention_seconds += message.contention
                self._limit(message, now)
                self._end(message, now)
            else:
                self._acknowledge(message, now)
        self._drop_stale()
        self._settle()

    def _ended(self, now: float) -> list[_Message]:
        """The messages whose parts have ended by ``now``, in ascending order of flow, without their ends."""
        ended = []
        while self._free_ends.first() <= now:
            ended.append(self._free_ends.pop())
        virtual, last, level = self._virtual, self._last, self._level
        for _ in range(self._held):
            left = self._held_ends.first() - virtual
            if last + (left if left > 0.0 else 0.0) / level > now:
                break
            ended.append(self._held_ends.pop())
        if len(ended) > 1:
            ended.sort(key=_number)
        return ended

    def _acknowledge(self, message: _Message, now: float) -> None:
        """As `Sender.part_sent`, for a message of which more is to be sent."""
        acknowledged = message.started + message.rtt
        delay = now - acknowledged
        # Only contention after the acknowledgement delays the message.
        if delay > 0.0:
            message.contention_seconds += message.contention if message.contention < delay else delay
        if now < acknowledged:
            message.window *= 2.0
            heappush(self._resuming, (acknowledged, message.number, message))
        else:
            self._limit(message, now)
            message.window = math.inf
            self._again.append(message)

    def _limit(self, message: _Message, now: float) -> None:
        """As `Sender._book`: a part has ended for which nothing waits."""
        message.held_seconds += message.held
        own = now - message.started - message.held
        if own > 0.0:
            message.own_seconds += own

    def _cut(self, flow: int, now: float) -> None:
        """Remove a flow that has not ended."""
        assert self._under_way is not None
        message = self._under_way.get(flow)
        if message is None:
            return
        if message.side != _WAITING:
            self._move_on(now)
            message.due = None
            if message.side == _AT_CAP:
                self._free -= 1
                self._caps = self._caps - message.cap if self._free else 0.0
                sent = message.bits + message.cap * (now - message.since)
            else:
                self._held -= 1
                bits = self._virtual - message.throttled_virtual
                held = now - message.throttled_since
                message.held += held
                lost = held - bits / message.cap
                if lost > 0.0:
                    message.contention += lost
                sent = message.bits + message.cap * (message.throttled_since - message.since) + bits
            message.side = _GONE
            message.sent += sent if sent < message.part else message.part
            message.contention_seconds += message.contention
            self._limit(message, now)
            self._drop_stale()
            self._settle()
        self._end(message, math.inf)

    def _end(self, message: _Message, finish: float) -> None:
        finishes, sent, contention_seconds = self._results
        finishes[message.number] = finish
        sent[message.number] = message.sent
        contention_seconds[message.number] = message.contention_seconds
        held_seconds, own_seconds = self._limits
        held_seconds[message.number], own_seconds[message.number] = message.held_seconds, message.own_seconds
        message.side = _GONE
        if self._under_way is not None:
            del self._under_way[message.number]

    def _join(self, joining: list[_Message], now: float) -> None:
        """Let the next parts of messages begin, in this order; each finds the level that the one before it has left."""
        self._move_on(now)
        for message in joining:
            cap, window, part = message.cap, message.window, message.left
            if window < part:
                if 0 < cap * message.rtt <= window:
                    message.window = math.inf
                else:
                    part = window
            message.part = part
            message.started = message.since = now
            message.bits = message.contention = message.held = 0.0
            if cap > self._level * SLACK:
                self._throttle(message, self._virtual + part)
            else:
                self._release(message)
            self._settle()
            if not self._held:
                self._virtual = 0.0

    def _move_on(self, now: float) -> None:
        """As `water_filling.AccessLink.move_on`."""
        if self._held:
            self._virtual += self._level * (now - self._last)
        else:
            self._virtual = 0.0
        self._last = now

    def _throttle(self, message: _Message, virtual_end: float) -> None:
        message.side = _THROTTLED
        message.throttled_since, message.throttled_virtual = self._last, self._virtual
        if not self._held:
            # Virtual time may have begun again at 0: a slot would be over that is not.
            self._held_ends.clear()
        self._held += 1
        self._held_ends.add(virtual_end, message)
        cap = message.cap
        if cap <= self._near:
            if not message.is_near:
                message.is_near = True
                heappush(self._held_caps, (cap, message.number, message))
        else:
            if not message.is_far:
                message.is_far = True
                self._far.append(message)
            cap = self._near
        if cap < self._smallest:
            self._smallest = cap

    def _release(self, message: _Message) -> None:
        message.side = _AT_CAP
        cap = message.cap
        self._free += 1
        self._caps += cap
        if cap > self._largest:
            self._largest = cap
        self._free_ends.add(message.since + (message.part - message.bits) / cap, message)
        if not message.is_ranked:
            message.is_ranked = True
            heappush(self._free_caps, (-cap, message.number, message))

    def _settle(self) -> None:
        """As `water_filling.AccessLink.fill`."""
        rest = self._capacity - self._caps
        held = self._held
        level = rest / held if held else math.inf if rest >= self._least else -math.inf
        if self._largest > level * SLACK:
            rest, level = self._throttle_largest(rest, level)
        if self._smallest <= level and self._held:
            level = self._release_smallest(rest, level)
        self._level = level

    def _throttle_largest(self, rest: float, level: float) -> tuple[float, float]:
        """As `water_filling.AccessLink.throttle`."""
        heap, now = self._free_caps, self._last
        self._largest = 0.0
        while heap:
            key, _, message = heap[0]
            cap = -key
            if message.side == _AT_CAP and cap <= level * SLACK:
                self._largest = cap
                break
            heappop(heap)
            message.is_ranked = False
            if message.side != _AT_CAP:
                continue
            self._free -= 1
            self._caps = self._caps - cap if self._free else 0.0
            self._throttle(message, self._virtual + message.part - message.bits - cap * (now - message.since))
            rest += cap
            level = rest / self._held
        return rest, level

    def _release_smallest(self, rest: float, level: float) -> float:
        """As `water_filling.AccessLink.release`."""
        now, virtual = self._last, self._virtual
        while True:
            message = self._smallest_held(level)
            if message is None:
                return level
            cap = message.cap
            if message.throttled_since < now:
                bits = virtual - message.throttled_virtual
                held_for = now - message.throttled_since
                message.held += held_for
                lost = held_for - bits / cap
                if lost > 0.0:
                    message.contention += lost
                sent = message.bits + cap * (message.throttled_since - message.since) + bits
                message.bits = sent if sent < message.part else message.part
                message.since = now
            self._held -= 1
            self._release(message)
            rest -= cap
            held = self._held
            level = rest / held if held else math.inf if rest >= self._least else -math.inf

    def _smallest_held(self, level: float) -> _Message | None:
        """The throttled flow of the smallest cap, without its cap, if that is at most ``level``."""
        if not self._held:
            self._smallest = math.inf
            return None
        if level >= self._near:
            self._bring_near(2.0 * level)
        heap = self._held_caps
        while heap:
            cap, _, message = heap[0]
            if message.side == _THROTTLED and cap > level:
                break
            heappop(heap)
            message.is_near = False
            if message.side == _THROTTLED:
                return message
        self._smallest = heap[0][0] if heap and heap[0][0] < self._near else self._near
        return None

    def _bring_near(self, near: float) -> None:
        """Sort the throttled flows of caps up to ``near``."""
        self._near, self._far, waiting = near, [], self._far
        for message in waiting:
            message.is_far = message.side == _THROTTLED and message.cap > near
            if message.is_far:
                self._far.append(message)
            elif message.side == _THROTTLED and not message.is_near:
                message.is_near = True
                heappush(self._held_caps, (message.cap, message.number, message))

    def _drop_stale(self) -> None:
        """Drop stale entries, which might never come first."""
        if self._free_ends.size > 2 * self._free + 64:
            self._free_ends.drop_stale()
        if self._held_ends.size > 2 * self._held + 64:
            self._held_ends.drop_stale()
        if len(self._free_caps) > 2 * self._free + 64:
            caps, self._free_caps = self._free_caps, []
            for entry in caps:
                message = entry[2]
                message.is_ranked = message.side == _AT_CAP
                if message.is_ranked:
                    self._free_caps.append(entry)
            heapify(self._free_caps)
        if len(self._held_caps) + len(self._far) > 2 * self._held + 64:
            caps, self._held_caps = self._held_caps, []
            for entry in caps:
                message = entry[2]
                message.is_near = message.side == _THROTTLED
                if message.is_near:
                    self._held_caps.append(entry)
            heapify(self._held_caps)
            self._bring_near(min(self._near, 2.0 * self._level))


def _view(column: Doubles) -> memoryview[float]:
    """Its numbers as Python's own, read and written faster than by numpy."""
    return cast("memoryview[float]", column.data)


def _events(times: Doubles) -> Iterator[tuple[float, int]]:
    """(time, flow) in ascending order, then (inf, -1) for ever."""
    order = np.argsort(times, kind="stable")
    order = order[: np.count_nonzero(times < math.inf)]
    for first in range(0, order.size, _EVENTS_AT_A_TIME):
        chunk = order[first : first + _EVENTS_AT_A_TIME]
        yield from zip(times[chunk].tolist(), chunk.tolist(), strict=True)
    yield from repeat((math.inf, -1))
