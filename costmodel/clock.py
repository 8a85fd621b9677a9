"""Virtual time: when visits end and what they spend, and the order in which things happen. The only wrapper of SimPy.

The visits of a batch are solved in numpy, to absolute times; SimPy then moves the clock to exactly these times, never
to a time recomputed from a delay. Nothing here reads the host's clock.

A visit is a download, then computing, then an upload. A message of b bytes takes its share of the server's link behind
the client's own, then half a round-trip time; a message of no bytes takes no time at all.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappush
from typing import Any

import numpy as np
import simpy
from numpy.typing import ArrayLike, NDArray
from simpy.events import NORMAL, URGENT, Event, EventPriority

from costmodel.fleet import Conditions, Fleet
from costmodel.link import share
from costmodel.work import Work

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Timeline:
    """When the visits of a batch do what, and what they spend; arrays of shape (visits,).

    Times are absolute seconds, inf where that is past ``until``; a visit that is cut is charged what it spent by then.
    """

    start: Doubles
    down_end: Doubles
    compute_end: Doubles
    up_end: Doubles
    bytes_down: NDArray[np.int64]
    """Sent by ``until``, in whole bytes."""
    bytes_up: NDArray[np.int64]
    """Sent by ``until``, in whole bytes."""
    flops: Doubles
    """Computed by ``until``."""
    joules_spent: Doubles
    """Of computing and radio, by ``until``."""

    @property
    def joules(self) -> Doubles:
        """Of computing and radio for the whole visit; inf for a visit that is cut."""
        return np.where(np.isfinite(self.up_end), self.joules_spent, math.inf)

    def waiting_joules(self, end: float, conditions: Conditions) -> Doubles:
        """Of idling from the end of each visit to ``end`` (absolute seconds); a visit that is cut does not wait."""
        return conditions.idle_watts * np.maximum(end - self.up_end, 0.0)


class Clock:
    """The virtual time of one run, from 0.

    Things that will happen are put in with `at` and come out of `next` in order of time, which moves on with them.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._environment = _Environment(initial_time=0.0)
        self._due: deque[Event] = deque()

    @property
    def now(self) -> float:
        """Absolute virtual seconds."""
        return float(self._environment.now)

    def solve(
        self, starts: ArrayLike, work: Sequence[Work], conditions: Conditions, until: float = math.inf
    ) -> Timeline:
        """The timeline of visits that share the server's link among themselves; it does not move the clock.

        ``starts`` (visits,) in absolute seconds; ``conditions`` of the same clients in the same order.
        """
        return solve(starts, work, conditions, self.fleet.server_down, self.fleet.server_up, until)

    def at(self, time: float, order: int, item: Any) -> None:
        """Let ``item`` happen at ``time``, absolute; of several at the same time the lowest ``order`` comes first."""
        assert self.now <= time < math.inf, (self.now, time)
        assert order >= 0, order
        # After whatever SimPy itself does at that instant.
        self._environment.at(time, NORMAL + 1 + order, item).callbacks.append(self._due.append)

    def next(self) -> Any:
        """Move on to the earliest item and take it; LookupError if nothing is left to happen."""
        while not self._due:
            try:
                self._environment.step()
            except simpy.core.EmptySchedule:
                raise LookupError("nothing is left to happen") from None
        return self._due.popleft().value

    def advance(self, time: float) -> None:
        """Move on to ``time``, absolute, which must not pass an item; one due at ``time`` itself is still to come."""
        assert self.now <= time < math.inf, (self.now, time)
        self._environment.run(until=self._environment.at(time, URGENT))
        assert not self._due, f"{self._due[0].value!r} was due before {time}"


def solve(
    starts: ArrayLike,
    work: Sequence[Work],
    conditions: Conditions,
    server_down: float,
    server_up: float,
    until: float = math.inf,
) -> Timeline:
    """The timeline of a batch of visits behind a server's link of ``server_down`` and ``server_up`` bit/s."""
    start = np.asarray(starts, np.float64)
    assert start.shape == (len(work),) == conditions.rtt.shape, (start.shape, len(work), conditions.rtt.shape)
    bytes_down = np.array([visit.bytes_down for visit in work], np.int64)
    bytes_up = np.array([visit.bytes_up for visit in work], np.int64)
    flops = np.array([visit.flops for visit in work], np.float64)
    assert np.isfinite(start).all(), start

    down_end, down_sent = _transfer(start, bytes_down, conditions.down, conditions.rtt, server_down, until)
    compute_end = _by(until, down_end + flops / conditions.flops_per_second)
    up_end, up_sent = _transfer(compute_end, bytes_up, conditions.up, conditions.rtt, server_up, until)

    computing = _spell(down_end, compute_end, until)
    return Timeline(
        start,
        down_end,
        compute_end,
        up_end,
        bytes_down=down_sent,
        bytes_up=up_sent,
        flops=np.where(np.isfinite(compute_end), flops, np.minimum(flops, computing * conditions.flops_per_second)),
        joules_spent=conditions.receive_watts * _spell(start, down_end, until)
        + conditions.train_watts * computing
        + conditions.transmit_watts * _spell(compute_end, up_end, until),
    )


def _transfer(
    start: Doubles, nbytes: NDArray[np.int64], cap: Doubles, rtt: Doubles, capacity: float, until: float
) -> tuple[Doubles, NDArray[np.int64]]:
    """(when the last byte has arrived, whole bytes sent) of messages over a shared link."""
    shared = share(start, 8.0 * nbytes, cap, capacity, until)
    arrival = shared.finish + np.where(nbytes > 0, rtt / 2, 0.0)
    return _by(until, arrival), (shared.sent // 8).astype(np.int64)


def _by(until: float, times: Doubles) -> Doubles:
    return np.where(times <= until, times, math.inf)


def _spell(begin: Doubles, end: Doubles, until: float) -> Doubles:
    """Seconds from ``begin`` to ``end``, as far as they lie before ``until``; 0 if it never began."""
    begun = begin <= until
    return np.where(begun, np.minimum(end, until) - np.where(begun, begin, 0.0), 0.0)


class _Environment(simpy.Environment):
    """SimPy with absolute times: its own `schedule` adds a delay to now, and now + (t - now) may miss t by a bit."""

    def at(self, time: float, priority: int, value: Any = None) -> Event:
        """An event that happens at ``time``; of several at one time the lowest ``priority`` first, then the oldest."""
        event = Event(self)
        event._ok, event._value = True, value
        heappush(self._queue, (time, EventPriority(priority), next(self._eid), event))
        return event
