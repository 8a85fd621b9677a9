"""Exponential moving averages of accuracy, from which FedMLB's tables are read.

e_r = momentum e_{r-1} + (1 - momentum) a_r. The paper does not print how it begins. "corrected" begins with e_0 = 0 and
divides by 1 - momentum^r, so that e_1 = a_1 and no round weighs more than the next; "first" begins with e_1 = a_1,
which then weighs more than all others for a while. After 100 rounds they differ by less than 3e-5 of their value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scenarios.run.progress import Trail

CORRECTED, FIRST = "corrected", "first"
STARTS = (CORRECTED, FIRST)


@dataclass(frozen=True)
class Smoothing:
    """How accuracies are averaged over rounds."""

    momentum: float = 0.9
    """The weight of the previous average, in [0, 1); 0 is no average."""
    start: str = CORRECTED
    """One of `STARTS`."""

    @property
    def text(self) -> str:
        """In words."""
        how = "bias-corrected" if self.start == CORRECTED else "beginning with the first accuracy"
        return f"moving average of momentum {self.momentum:g}, {how}"


def ema(values: Sequence[float], how: Smoothing) -> list[float]:
    """The average after each value."""
    averages: list[float] = []
    average = values[0] if values and how.start == FIRST else 0.0
    for count, value in enumerate(values, start=1):
        average = how.momentum * average + (1 - how.momentum) * value
        averages.append(average if how.start == FIRST else average / (1 - how.momentum**count))
    return averages


def smoothed(points: Trail, how: Smoothing) -> Trail:
    """The curve with averages in place of accuracies; rounds without an evaluation are skipped."""
    averages = iter(ema([point.accuracy for point in points if point.accuracy is not None], how))
    shown, best = [], 0.0
    for point in points:
        accuracy = None if point.accuracy is None else next(averages)
        best = max(best, accuracy or 0.0)
        shown.append(replace(point, accuracy=accuracy, best=best))
    return tuple(shown)
