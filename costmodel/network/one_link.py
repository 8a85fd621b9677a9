"""A batch of flows over one full link: `FairLink` and `Sender` for caps that never change, several times faster.

Same events, same order, same arithmetic: results equal those of `costmodel.network.fair_link` to the bit. Its module
and `costmodel.network.water_filling` explain the steps, which are written out here since an event takes a few
microseconds, and each call a tenth of one. A flow is one object from its start to its end, instead of one per part.
Nothing here knows of access links or pauses; `costmodel.network.transfers` decides which batches can do without.
"""

from __future__ import annotations

import math
from collections import deque
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
_number = attrgetter("number")


class _Message:
    """One message, its unsent rest as in `Sender`, and the part under way as in `water_filling.Flow`."""

    __slots__ = (
        "bits",
        "cap",
        "contention",
        "contention_seconds",
        "end",
        "is_far",
        "left",
        "number",
        "part",
        "rtt",
        "sent",
        "serial",
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
    started: float
    """When the part began"""
    since: float
    end: float
    throttled_since: float
    throttled_virtual: float

    def __init__(self, number: int, bits: float, cap: float, rtt: float) -> None:
        self.number, self.left, self.cap, self.rtt = number, bits, cap, rtt
        self.window = INITIAL_WINDOW_BITS if rtt > 0 else math.inf
        self.sent = self.contention_seconds = 0.0
        self.side = _WAITING
        # That of its valid entries; 0 while it waits.
        self.serial = 0
        self.is_far = False


_End = tuple[float, int, _Message]
"""(end, serial, message); stale if the message has another serial by now."""
_Cap = tuple[float, int, int, _Message]
"""(cap or -cap, flow number, serial, message); stale likewise."""


class OneLink:
    """The flows of one batch on a link of ``capacity`` bit/s; `run` fills in the results.

    All arrays are float64 of shape (flows,), with bits > 0, cap > 0 and start < until; units as of `transfer_batch`.
    """

    def __init__(
        self, start: Doubles, bits: Doubles, cap: Doubles, until: Doubles, rtt: Doubles, capacity: float
    ) -> None:
        self.finish = np.full(start.size, math.inf)
        self.sent, self.contention_seconds = np.zeros((2, start.size))
        self._columns = _view(bits), _view(cap), _view(rtt)
        self._results = _view(self.finish), _view(self.sent), _view(self.contention_seconds)
        self._starts, self._cuts = _events(start), _events(until)
        self._under_way: dict[int, _Message] | None = {} if np.isfinite(until).any() else None
        self._resuming: list[tuple[float, int, _Message]] = []
        # Messages whose next parts begin at this instant.
        self._again: list[_Message] = []

        self._capacity, self._least = capacity, -ROUNDING * capacity
        self._level, self._virtual, self._last = math.inf, 0.0, -math.inf
        self._serial = 0
        # Flows at their caps: by end, by -cap, their number, the sum of their caps, a bound on the largest cap.
        self._free_ends: list[_End] = []
        self._free_caps: list[_Cap] = []
        self._free, self._caps, self._largest = 0, 0.0, 0.0
        # Throttled flows by end in virtual time. The ends of first windows ascend, as do those of most last parts of
        # equal messages: two queues take them without a heap's cost.
        self._held_ends: list[_End] = []
        self._late: deque[_End] = deque()
        self._soon: deque[_End] = deque()
        # Throttled flows by cap, their number, a bound on the smallest cap; those of caps above ``near`` wait unsorted.
        self._held_caps: list[_Cap] = []
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
            if len(joining) > 1:
                joining.sort(key=_number)
            for message in joining:
                if message.side != _GONE:
                    self._join(message, now)

    def _next_finish(self) -> float:
        """As `FairLink.next_finish`."""
        heap = self._free_ends
        while heap and heap[0][2].serial != heap[0][1]:
            heappop(heap)
        free_end = heap[0][0] if heap else math.inf
        if not self._held:
            return free_end
        queue = self._first_held()
        left = queue[0][0] - self._virtual
        held_end = self._last + (left if left > 0.0 else 0.0) / self._level
        return held_end if held_end < free_end else free_end

    def _first_held(self) -> list[_End] | deque[_End]:
        """The queue that has the throttled flow that ends first, at its front."""
        late, soon, heap = self._late, self._soon, self._held_ends
        while late and late[0][2].serial != late[0][1]:
            late.popleft()
        while soon and soon[0][2].serial != soon[0][1]:
            soon.popleft()
        while heap and heap[0][2].serial != heap[0][1]:
            heappop(heap)
        first: list[_End] | deque[_End] = late
        if soon and (not first or soon[0][0] < first[0][0]):
            first = soon
        if heap and (not first or heap[0][0] < first[0][0]):
            first = heap
        return first

    def _finish(self, now: float) -> None:
        """Remove the parts that have ended by ``now``."""
        ended = self._ended(now)
        self._move_on(now)
        virtual = self._virtual
        for message in ended:
            message.serial = 0
            if message.side == _AT_CAP:
                self._free -= 1
                self._caps = self._caps - message.cap if self._free else 0.0
            else:
                self._held -= 1
                lost = now - message.throttled_since - (virtual - message.throttled_virtual) / message.cap
                if lost > 0.0:
                    message.contention += lost
            message.side = _WAITING
            message.left -= message.part
            message.sent += message.part
            if message.left <= 0.0:
                message.contention_seconds += message.contention
                self._end(message, now)
            else:
                self._acknowledge(message, now)
        self._drop_stale()
        self._settle()

    def _ended(self, now: float) -> list[_Message]:
        """The messages whose parts have ended by ``now``, in ascending order of flow, without their ends."""
        ended = []
        heap = self._free_ends
        while heap and heap[0][0] <= now:
            _, serial, message = heappop(heap)
            if message.serial == serial:
                ended.append(message)
        virtual, last, level = self._virtual, self._last, self._level
        for _ in range(self._held):
            queue = self._first_held()
            left = queue[0][0] - virtual
            if last + (left if left > 0.0 else 0.0) / level > now:
                break
            ended.append(queue.popleft()[2] if isinstance(queue, deque) else heappop(queue)[2])
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
            message.window = math.inf
            self._again.append(message)

    def _cut(self, flow: int, now: float) -> None:
        """Remove a flow that has not ended."""
        assert self._under_way is not None
        message = self._under_way.get(flow)
        if message is None:
            return
        if message.side != _WAITING:
            self._move_on(now)
            message.serial = 0
            if message.side == _AT_CAP:
                self._free -= 1
                self._caps = self._caps - message.cap if self._free else 0.0
                sent = message.bits + message.cap * (now - message.since)
            else:
                self._held -= 1
                bits = self._virtual - message.throttled_virtual
                lost = now - message.throttled_since - bits / message.cap
                if lost > 0.0:
                    message.contention += lost
                sent = message.bits + message.cap * (message.throttled_since - message.since) + bits
            message.side = _GONE
            message.sent += sent if sent < message.part else message.part
            message.contention_seconds += message.contention
            self._drop_stale()
            self._settle()
        self._end(message, math.inf)

    def _end(self, message: _Message, finish: float) -> None:
        finishes, sent, contention_seconds = self._results
        finishes[message.number] = finish
        sent[message.number] = message.sent
        contention_seconds[message.number] = message.contention_seconds
        message.side = _GONE
        if self._under_way is not None:
            del self._under_way[message.number]

    def _join(self, message: _Message, now: float) -> None:
        """Let the next part of a message begin."""
        cap, window, part = message.cap, message.window, message.left
        if window < part:
            if 0 < cap * message.rtt <= window:
                message.window = math.inf
            else:
                part = window
        self._move_on(now)
        message.part = part
        message.started = message.since = now
        message.bits = message.contention = 0.0
        message.end = now + part / cap
        if cap > self._level * SLACK:
            self._throttle(message, self._virtual + part)
        else:
            self._release(message)
        self._settle()

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
        message.serial = self._serial = serial = self._serial + 1
        self._held += 1
        entry = (virtual_end, serial, message)
        queue = self._soon if message.part == INITIAL_WINDOW_BITS else self._late
        if not queue or virtual_end >= queue[-1][0]:
            queue.append(entry)
        else:
            heappush(self._held_ends, entry)
        cap = message.cap
        if cap <= self._near:
            heappush(self._held_caps, (cap, message.number, serial, message))
        else:
            if not message.is_far:
                message.is_far = True
                self._far.append(message)
            cap = self._near
        if cap < self._smallest:
            self._smallest = cap

    def _release(self, message: _Message) -> None:
        message.side = _AT_CAP
        message.serial = self._serial = serial = self._serial + 1
        cap = message.cap
        self._free += 1
        self._caps += cap
        if cap > self._largest:
            self._largest = cap
        heappush(self._free_ends, (message.end, serial, message))
        heappush(self._free_caps, (-cap, message.number, serial, message))

    def _settle(self) -> None:
        """As `water_filling.AccessLink.fill`."""
        rest = self._capacity - self._caps
        level = rest / self._held if self._held else self._level_of(rest, 0)
        if self._largest > level * SLACK:
            rest, level = self._throttle_largest(rest, level)
        if self._smallest <= level:
            level = self._release_smallest(rest, level)
        self._level = level

    def _level_of(self, rest: float, held: int) -> float:
        """As `water_filling.WaterLevel`."""
        if held:
            return rest / held
        return math.inf if rest >= self._least else -math.inf

    def _throttle_largest(self, rest: float, level: float) -> tuple[float, float]:
        """As `water_filling.AccessLink.throttle`."""
        heap, now = self._free_caps, self._last
        self._largest = 0.0
        while heap:
            key, _, serial, message = heap[0]
            if message.serial != serial:
                heappop(heap)
                continue
            cap = -key
            if cap <= level * SLACK:
                self._largest = cap
                break
            heappop(heap)
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
                lost = now - message.throttled_since - bits / cap
                if lost > 0.0:
                    message.contention += lost
                sent = message.bits + cap * (message.throttled_since - message.since) + bits
                message.bits = sent if sent < message.part else message.part
                message.since = now
                message.end = now + (message.part - message.bits) / cap
            self._held -= 1
            self._release(message)
            rest -= cap
            level = self._level_of(rest, self._held)

    def _smallest_held(self, level: float) -> _Message | None:
        """The throttled flow of the smallest cap, without its cap, if that is at most ``level``."""
        if not self._held:
            self._smallest = math.inf
            return None
        if level >= self._near:
            self._bring_near(2.0 * level)
        heap = self._held_caps
        while heap:
            cap, _, serial, message = heap[0]
            if message.serial == serial:
                if cap <= level:
                    heappop(heap)
                    return message
                break
            heappop(heap)
        self._smallest = heap[0][0] if heap and heap[0][0] < self._near else self._near
        return None

    def _bring_near(self, near: float) -> None:
        """Sort the throttled flows of caps up to ``near``."""
        self._near, self._far, waiting = near, [], self._far
        for message in waiting:
            message.is_far = message.side == _THROTTLED and message.cap > near
            if message.is_far:
                self._far.append(message)
            elif message.side == _THROTTLED:
                heappush(self._held_caps, (message.cap, message.number, message.serial, message))

    def _drop_stale(self) -> None:
        """Drop stale entries, which might never come first."""
        if len(self._free_caps) + len(self._free_ends) > 4 * self._free + 64:
            self._free_caps = [entry for entry in self._free_caps if entry[3].serial == entry[2]]
            self._free_ends = [entry for entry in self._free_ends if entry[2].serial == entry[1]]
            heapify(self._free_caps)
            heapify(self._free_ends)
        if len(self._held_caps) + len(self._far) > 2 * self._held + 64:
            self._held_caps = [entry for entry in self._held_caps if entry[3].serial == entry[2]]
            heapify(self._held_caps)
            self._bring_near(min(self._near, 2.0 * self._level))
        if len(self._late) + len(self._soon) + len(self._held_ends) > 4 * self._held + 64:
            for queue in (self._late, self._soon):
                present = [entry for entry in queue if entry[2].serial == entry[1]]
                queue.clear()
                queue.extend(present)
            self._held_ends = [entry for entry in self._held_ends if entry[2].serial == entry[1]]
            heapify(self._held_ends)


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
