"""The availability of clients: a phone on its charger at night, a robot that comes and goes, a recorded trace.

A client is alternately available and away. An interval begins at its first instant and ends just before the next
begins. Every answer is a pure function of client and time, whatever the order and number of queries. Only the clients
of a query are computed. Nothing here knows what a visit is or what happens to it when its client leaves.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles, Streams
from costmodel.units import DAY_SECONDS, HOUR_SECONDS

PURPOSE = "availability"
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

    def permanently_gone_at(self, client: int) -> float:
        """The time after which the client is never available: inf if it always returns, -inf if it never was."""
        return math.inf


class Always(Availability):
    """Clients that never leave."""

    def at(self, client: int, t: float) -> AvailabilityInterval:
        """One interval for all time."""
        return AvailabilityInterval(True, -math.inf, math.inf)


class Renewal(Availability):
    """Lognormal intervals in turn; the process is stationary, so that any time of it looks like any other.

    The interval at t = 0 is drawn in proportion to the time that such intervals take: available with probability
    on / (on + off), of a length from the length-biased law (lognormal with ln-mean larger by sigma^2), and t = 0 is
    uniform within it. A query about t draws all intervals from 0 to t once.
    """

    INTERVALS = 64
    """Intervals drawn at a time; even, so that each chunk begins in the same state."""
    LEAST_SECONDS = 1e-3
    """No interval is shorter, so that no two changes fall on the same instant."""

    def __init__(
        self, on_seconds: float, off_seconds: float, sigma: float, streams: Streams, purpose: str = PURPOSE
    ) -> None:
        """Medians of the intervals, and the standard deviation of the logarithm of their lengths.

        ``purpose`` keys the draws. ValueError for a figure out of its range.
        """
        for name, seconds in (("on_seconds", on_seconds), ("off_seconds", off_seconds)):
            if not 0 < seconds < math.inf:
                raise ValueError(f"{name} must be a positive number, not {seconds!r}")
        _not_negative(sigma=sigma)
        self._median = {True: on_seconds, False: off_seconds}
        self._sigma = sigma
        self._streams, self._purpose = streams, purpose
        self._known: dict[int, tuple[AvailabilityInterval, list[float]]] = {}
        self._chunk = lru_cache(CACHED // self.INTERVALS * 4)(self._draw)

    def at(self, client: int, t: float) -> AvailabilityInterval:
        """The interval at t."""
        if client not in self._known:
            first = self._first(client)
            self._known[client] = first, [first.end]
        first, starts = self._known[client]
        if t < first.end:
            return first
        while starts[-1] <= t:
            starts.append(self._chunk(client, len(starts) - 1)[-1])
        chunk = bisect_right(starts, t) - 1
        bounds = self._chunk(client, chunk)
        place = bisect_right(bounds, t) - 1
        return AvailabilityInterval(first.available == (place % 2 == 1), bounds[place], bounds[place + 1])

    def _first(self, client: int) -> AvailabilityInterval:
        """The interval at t = 0."""
        rng = self._streams(self._purpose, 0, client)
        available = bool(rng.random() < self._median[True] / (self._median[True] + self._median[False]))
        seconds = self._median[available] * math.exp(self._sigma * (self._sigma + rng.standard_normal()))
        seconds = max(seconds, self.LEAST_SECONDS)
        left = seconds * (1.0 - rng.random())
        return AvailabilityInterval(available, left - seconds, left)

    def _draw(self, client: int, chunk: int) -> list[float]:
        """(INTERVALS + 1,) bounds of the intervals of a chunk, whose start must be known."""
        first, starts = self._known[client]
        normal = self._streams(self._purpose, chunk + 1, client).standard_normal(self.INTERVALS)
        medians = np.array([self._median[not first.available], self._median[first.available]] * (self.INTERVALS // 2))
        seconds = np.maximum(medians * np.exp(self._sigma * normal), self.LEAST_SECONDS)
        bounds: list[float] = np.cumsum(np.concatenate(([starts[chunk]], seconds))).tolist()
        return bounds


class Diurnal(Availability):
    """One window a day around a fixed hour of each client, such as charging at night.

    With all of ``spread_hours``, ``jitter_hours`` and ``length_sigma`` 0, every client is available for exactly
    ``hours`` from ``hour`` on, every day. Windows may cross midnight; windows that meet are merged. The interval at
    t = 0 may have begun earlier, but windows of more than a week before are ignored.
    """

    WEEK = 7
    REACH_HOURS = 12.0
    """A day's window begins no further than this from the client's hour."""

    def __init__(
        self,
        hour: float,
        hours: float,
        streams: Streams,
        *,
        spread_hours: float = 0.0,
        jitter_hours: float = 0.0,
        length_sigma: float = 0.0,
        start_hour: float = 0.0,
    ) -> None:
        """Available from ``hour`` of the day on for ``hours`` (median); ValueError if a figure is out of its range.

        ``spread_hours`` is the standard deviation across clients of their hour, ``jitter_hours`` from day to day of
        one client, ``length_sigma`` that of the logarithm of the length (no window is longer than a day), and
        ``start_hour`` the hour of the day at t = 0.
        """
        for name, value in (("hour", hour), ("start_hour", start_hour)):
            if not 0 <= value < 24:
                raise ValueError(f"{name} must be at least 0 and less than 24, not {value!r}")
        # At most 23 hours, or the windows of all days could merge into one without an end.
        if not 0 < hours <= 23:
            raise ValueError(f"hours must be more than 0 and at most 23, not {hours!r}")
        _not_negative(spread_hours=spread_hours, jitter_hours=jitter_hours, length_sigma=length_sigma)
        self._hour, self._hours, self._streams = hour - start_hour, hours, streams
        self._spread, self._jitter, self._sigma = spread_hours, jitter_hours, length_sigma
        self._offset = lru_cache(CACHED)(self._personal)
        self._week = lru_cache(CACHED)(self._draw)

    def at(self, client: int, t: float) -> AvailabilityInterval:
        """The interval at t."""
        end = t  # of the merged windows that cover t
        while (later := max((last for begin, last in self._near(client, end) if begin <= end), default=end)) > end:
            end = later
        if end > t:
            begin = t
            while (first := min(first for first, last in self._near(client, begin) if first <= begin <= last)) < begin:
                begin = first
            return AvailabilityInterval(True, begin, end)
        near = self._near(client, t)
        return AvailabilityInterval(
            False,
            max((end for _, end in near if end <= t), default=-math.inf),
            min(begin for begin, _ in near if begin > t),
        )

    def _near(self, client: int, t: float) -> list[tuple[float, float]]:
        """The windows that can cover t or be next to it.

        The window of day d lies within d - 12 h and d + 36 h from the client's hour. So the window of three days before
        may be the last one to end before t, and the window of two days later always begins after t.
        """
        today = math.floor((t - self._offset(client)) / DAY_SECONDS)
        days = range(max(today - 3, -self.WEEK), today + 3)
        return [self._week(client, day // self.WEEK)[day % self.WEEK] for day in days]

    def _personal(self, client: int) -> float:
        """Seconds from t = 0 to the client's hour, less than a day."""
        shift = self._spread * self._streams(PURPOSE, 0, client).standard_normal()
        return float((self._hour + shift) % 24.0 * HOUR_SECONDS)

    def _draw(self, client: int, week: int) -> list[tuple[float, float]]:
        """(begin, end) of the windows of the days 7 week to 7 week + 6, in seconds."""
        normal = self._streams(PURPOSE, week + 2, client).standard_normal((2, self.WEEK))
        days = np.arange(self.WEEK) + self.WEEK * week
        late = np.clip(self._jitter * normal[0], -self.REACH_HOURS, self.REACH_HOURS)
        begin = days * DAY_SECONDS + self._offset(client) + late * HOUR_SECONDS
        end = begin + np.minimum(self._hours * np.exp(self._sigma * normal[1]), 24.0) * HOUR_SECONDS
        return list(zip(begin.tolist(), end.tolist(), strict=True))


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
        self._windows, self._period = windows, period
        self._row_of = range(len(windows)) if row_of is None else row_of
        self._cycle = lru_cache(CACHED)(self._build)

    def at(self, client: int, t: float) -> AvailabilityInterval:
        """The interval at t."""
        starts_on, changes, period = self._cycle(int(self._row_of[client]))
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
        starts_on, changes, period = self._cycle(int(self._row_of[client]))
        if not changes:
            return math.inf if starts_on else -math.inf
        return math.inf if period < math.inf else changes[-1]

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


def first_available(availability: Availability, clients: Iterable[int], t: float) -> float:
    """The earliest time >= t at which any of the clients is available; inf if none ever is."""
    earliest = math.inf
    for client in clients:
        available, change = availability.interval(client, t)
        if available:
            return t
        earliest = min(earliest, change)
    return earliest


def available_seconds_end(availability: Availability, client: int, t: float, seconds: float) -> float:
    """The absolute time by which the client has been available for ``seconds`` since t; inf if there is none.

    At this time work ends that pauses while the client is away. Work of 0 seconds ends at t, even if it is away.
    """
    if seconds <= 0:
        return t
    if math.isinf(seconds):
        return math.inf
    while t < math.inf:
        available, change = availability.interval(client, t)
        if available:
            if t + seconds <= change:
                return t + seconds
            seconds -= change - t
        t = change
    return t


def _not_negative(**figures: float) -> None:
    for name, value in figures.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} must be a number of at least 0, not {value!r}")
