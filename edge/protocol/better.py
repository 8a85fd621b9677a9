"""Which value of a measure is the better one: targets, best rounds, tests and tables ask this alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum


class Better(StrEnum):
    """The better direction of a metric, an amount or a reading."""

    HIGHER = "higher"
    LOWER = "lower"

    @property
    def worst(self) -> float:
        """The value that any other is better than."""
        return -math.inf if self is Better.HIGHER else math.inf

    def prefers(self, one: float, other: float) -> bool:
        """Whether the first value is better than the second."""
        return one > other if self is Better.HIGHER else one < other

    def reaches(self, value: float, target: float) -> bool:
        """Whether a value is as good as a target, or better; NaN is not."""
        return value >= target if self is Better.HIGHER else value <= target

    def best(self, values: Iterable[float]) -> float:
        """The best of these values; the worst of all where there are none."""
        choose = max if self is Better.HIGHER else min
        return choose(values, default=self.worst)


HIGHER, LOWER = Better
