"""A recorded figure over time: constant from one sample to the next, and repeated after its length or not.

Every answer is a pure function of the time. Nothing here knows which figure it is, or whose.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import Doubles


@dataclass(frozen=True)
class StepSeries:
    """Samples of one figure; a series of one sample never changes."""

    seconds: tuple[float, ...]
    """(samples,) Begin of each sample, increasing from 0"""
    values: tuple[float, ...]
    """(samples,)"""
    length: float
    """Seconds of the recording, more than the begin of its last sample"""
    repeats: bool = True
    """Whether it begins again after its length; otherwise the last value stays"""
    zero_waits: bool = False
    """Of a rate: whether bits wait while it is 0 (a silence), and are not lost (an outage)"""

    def __post_init__(self) -> None:
        assert len(self.seconds) == len(self.values) > 0, (len(self.seconds), len(self.values))
        assert self.seconds[0] == 0.0 and self.seconds[-1] < self.length < math.inf, (self.seconds, self.length)

    @classmethod
    def of(cls, seconds: Doubles, values: Doubles) -> StepSeries:
        """Samples that repeat, (samples,) each: the last lasts as long as the one before it."""
        last = float(2.0 * seconds[-1] - seconds[-2]) if seconds.size > 1 else 1.0
        return cls(tuple(seconds.tolist()), tuple(values.tolist()), last)

    @property
    def has_outage(self) -> bool:
        """Whether one of the values is 0, and an outage."""
        return 0.0 in self.values and not self.zero_waits

    def at(self, t: float, offset: float = 0.0) -> tuple[float, float]:
        """(value ``offset`` seconds after ``t``, in time of the series; next change > ``t``, in time of ``t``)."""
        if len(self.seconds) == 1:
            return self.values[0], math.inf
        turn = (t + offset) // self.length if self.repeats else 0.0
        # Rounding may put t at the end of a turn.
        if self.repeats and (turn + 1.0) * self.length - offset <= t:
            turn += 1.0
        base = turn * self.length - offset
        place = bisect_right(self.seconds, t, key=lambda time: base + time)
        if place < len(self.seconds):
            return self.values[place - 1], base + self.seconds[place]
        return self.values[-1], (turn + 1.0) * self.length - offset if self.repeats else math.inf

    def mean(self) -> float:
        """The mean over the recording."""
        durations = np.diff([*self.seconds, self.length])
        return float((durations * np.array(self.values)).sum() / self.length)

    def over(self, divisor: float) -> StepSeries:
        """The same with every value divided."""
        return replace(self, values=tuple(value / divisor for value in self.values))


def merged(seconds: Sequence[float], values: Sequence[float], length: float, zero_waits: bool = False) -> StepSeries:
    """A series without the samples that repeat the value before them."""
    keep = [place for place in range(len(values)) if place == 0 or values[place] != values[place - 1]]
    begins, kept = tuple(seconds[place] for place in keep), tuple(values[place] for place in keep)
    return StepSeries(begins, kept, length, zero_waits=zero_waits)
