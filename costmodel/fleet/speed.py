"""The speed of devices over time: load of other programs, recorded speeds, and thermal throttling.

All but throttling is a factor on the nominal speed, a pure function of client and time; throttling depends on how long
the device has computed without a break. Nothing here knows of visits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from costmodel.fleet.availability import Renewal
from costmodel.step_series import StepSeries

PURPOSE = "foreground load"

Presence = Callable[[int, float], tuple[bool, float]]
"""(client, t) -> (whether it is available, absolute time > t at which that changes)"""


class SpeedFactor(Protocol):
    """A factor on the speed of each client's device. Times are finite seconds since the start of the run, >= 0."""

    def factor(self, client: int, t: float) -> tuple[float, float]:
        """(factor > 0 from t on, absolute time > t of the next change; inf if never)."""


class ForegroundLoad:
    """A device whose user is active now and then, and leaves training the share ``factor`` of the speed."""

    def __init__(self, use: Renewal, factor: float) -> None:
        """``use`` is available while the user is active; ``factor`` in (0, 1]."""
        self._use, self._factor = use, factor

    def factor(self, client: int, t: float) -> tuple[float, float]:
        """(factor, the next time at which the user begins or ends)."""
        is_used, until = self._use.interval(client, t)
        return (self._factor if is_used else 1.0), until


class RecordedSpeed:
    """Recorded factors of each client, all from one common time of the recording on."""

    def __init__(self, series: Sequence[StepSeries], rows: NDArray[np.intp], start: float = 0.0) -> None:
        """Factors > 0 by row; ``rows`` (clients,) is each client's, and ``start`` the recording's time at t = 0."""
        self._series, self._rows, self._start = series, rows, start

    def factor(self, client: int, t: float) -> tuple[float, float]:
        """(factor from t on, absolute time of the next sample)."""
        return self._series[int(self._rows[client])].at(t, self._start)


class SpeedPiece(NamedTuple):
    """A time in which the factor stays; absolute seconds."""

    begin: float
    end: float
    factor: float
    """0 while the client is away"""


@dataclass(frozen=True)
class ComputeSpeed:
    """The factors on the speed of computing; by default none."""

    factors: tuple[SpeedFactor, ...] = field(default_factory=tuple)
    """Their product counts."""
    throttle_after: float = math.inf
    """Seconds of computing without a break after which the device throttles; inf: never"""
    throttle_to: float = 1.0
    """Factor of a device that throttles, in (0, 1]"""

    @property
    def is_constant(self) -> bool:
        """Whether all devices always compute at their nominal speeds."""
        return not self.factors and self.throttle_after == math.inf

    def end(self, client: int, t: float, seconds: float, presence: Presence | None) -> tuple[float, float]:
        """(end of work that takes ``seconds`` at nominal speed from t on, seconds of computing until then).

        Work waits while the client is away (``presence``; None: it never is); it ends at inf if the client stays away.
        """
        if seconds <= 0:
            return t, 0.0
        computed = 0.0
        for begin, end, factor in self._pieces(client, t, presence) if seconds < math.inf else ():
            if factor == 0.0:
                continue
            if begin + seconds / factor <= end:
                return begin + seconds / factor, computed + seconds / factor
            seconds = max(seconds - (end - begin) * factor, 0.0)
            computed += end - begin
        return math.inf, computed

    def done(self, client: int, begin: float, cut: float, presence: Presence | None) -> float:
        """The seconds at nominal speed of the work between two times; 0 if ``cut`` is not after ``begin``."""
        seconds = 0.0
        for start, end, factor in self._pieces(client, begin, presence):
            if start >= cut:
                break
            seconds += (min(end, cut) - start) * factor
        return seconds

    def _pieces(self, client: int, t: float, presence: Presence | None) -> Iterator[SpeedPiece]:
        """From t on without an end, unless the client is away for ever."""
        throttles = t + self.throttle_after
        while t < math.inf:
            is_there, leaves = presence(client, t) if presence else (True, math.inf)
            if not is_there:  # the device cools down
                yield SpeedPiece(t, leaves, 0.0)
                t, throttles = leaves, leaves + self.throttle_after
                continue
            factor, until = 1.0, math.inf
            for each in self.factors:
                of_each, change = each.factor(client, t)
                factor, until = factor * of_each, min(until, change)
            if t >= throttles:
                factor *= self.throttle_to
            else:
                until = min(until, throttles)
            end = min(until, leaves)
            yield SpeedPiece(t, end, factor)
            t = end
