"""Availability intervals: the common base of all models of availability, and recorded intervals.

A client is alternately available and away. An interval begins at its first instant and ends just before the next
begins. Recorded intervals are used once, or repeated. Nothing here draws a random number.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles

CACHED = 1 << 16
"""Cached pieces of clients' timelines; evicted ones are computed again."""


class AvailabilityInterval(NamedTuple):
    """A time in which a client is available, or away, without a break; absolute seconds."""

    available: bool
    begin: float
    end: float


class Availability:
    """The availability of each client. Times are seconds since the start of the run, >= 0; inf stands for never.

    A model of availability overrides

    * `at`, which finds the interval at a finite time, and
    * `permanently_gone_at`, if its clients may leave for good.
    """

    def at(self, client: int, t: float) -> AvailabilityInterval:
        """The interval with begin <= t < end."""
        raise NotImplementedError

    def interval(self, client: int, t: float) -> tuple[bool, float]:
        """(whether the client is available at t, absolute time > t at which that changes; inf if never)."""
        if t == math.inf:
            return False, math.inf
        available, _, end = self.at(client, t)
        return available, end

    def interval_start(self, client: int, t: float) -> float:
        """The begin of the interval at t: absolute time <= t, -inf if it has no begin."""
        return -math.inf if t == math.inf else self.at(client, t).begin

    def permanently_gone_at(self, client: int) -> float:
        """The time after which the client is never available: inf if it always returns, -inf if it never was."""
        return math.inf


class RecordedIntervals(Availability):
    """Recorded windows of each client, in any order; windows that meet are merged."""

    def __init__(
        self,
        windows: Sequence[Sequence[tuple[float, float]] | Doubles],
        period: Sequence[float] | Doubles | None,
        row_of: Sequence[int] | NDArray[np.intp] | None = None,
    ) -> None:
        """Row by row (begin, end) in seconds; none at all: never available.

        A row with a period stands for its windows shifted by every multiple of it; with ``period`` None each window
        occurs once. ``row_of`` (clients,) is the row of each client, and several may have the same one; None: client k
        has row k.
        """
        assert period is None or len(period) == len(windows), (len(windows), period)
        assert period is None or all(0 < seconds < math.inf for seconds in period), period
        self._windows, self._period, self._row_of = windows, period, row_of
        self._cycle = lru_cache(CACHED)(self._build)

    def at(self, client: int, t: float) -> AvailabilityInterval:
        """The interval at t."""
        starts_on, changes, period = self._cycle(self._row(client))
        if not changes:
            return AvailabilityInterval(starts_on, -math.inf, math.inf)
        if period == math.inf:
            place = bisect_right(changes, t)
            begin = changes[place - 1] if place else -math.inf
            return AvailabilityInterval(place % 2 == 1, begin, changes[place] if place < len(changes) else math.inf)
        turn = t // period
        # Rounding may have put t on the wrong side of a turn whose changes lie close to its ends.
        if (turn + 1.0) * period + changes[0] <= t:
            turn += 1.0
        elif (turn - 1.0) * period + changes[-1] > t:
            turn -= 1.0
        base = turn * period
        place = bisect_right(changes, t, key=lambda change: base + change)
        begin = base + changes[place - 1] if place else (turn - 1.0) * period + changes[-1]
        end = base + changes[place] if place < len(changes) else (turn + 1.0) * period + changes[0]
        return AvailabilityInterval(starts_on != (place % 2 == 1), begin, end)

    def permanently_gone_at(self, client: int) -> float:
        """The end of the last window; inf if the windows repeat, -inf if there are none."""
        starts_on, changes, period = self._cycle(self._row(client))
        if not changes:
            return math.inf if starts_on else -math.inf
        return math.inf if period < math.inf else changes[-1]

    def _row(self, client: int) -> int:
        return client if self._row_of is None else int(self._row_of[client])

    def _build(self, row: int) -> tuple[bool, list[float], float]:
        """(state before the first change of a period, an even number of changes within it, the period)."""
        period = math.inf if self._period is None else float(self._period[row])
        spans = merged(folded([(float(begin), float(end)) for begin, end in self._windows[row]], period))
        changes = [time for span in spans for time in span]
        if not changes or changes[-1] < period:
            return False, changes, period
        # The last window continues into the next period, or ends just where that begins.
        ends_at_once = changes[0] > 0.0
        return True, [0.0, *changes[:-1]] if ends_at_once else changes[1:-1], period


def folded(windows: Iterable[tuple[float, float]], period: float) -> list[tuple[float, float]]:
    """Repeated windows within the first period, cut at its end; empty windows are left out."""
    parts = []
    for begin, end in windows:
        assert begin <= end, (begin, end)
        turns = begin // period * period if period < math.inf else 0.0
        first = begin - turns
        last = first + period if end - begin >= period else end - turns
        parts += [(first, min(last, period)), (0.0, last - period)]
    return [(begin, end) for begin, end in parts if begin < end]


def merged(windows: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Windows in order, with those that overlap or touch merged."""
    spans: list[tuple[float, float]] = []
    for begin, end in sorted(windows):
        if spans and begin <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(spans[-1][1], end)
        else:
            spans.append((begin, end))
    return spans
