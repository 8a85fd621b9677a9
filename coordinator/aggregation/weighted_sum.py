"""Sums of vectors that come one after another, so that none of them need be kept."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge.protocol.payload import Floats

CHUNK = 1 << 15
"""Numbers that are added at a time, so that what is added stays in the processor's cache."""


class WeightedSum:
    """A weighted sum in float64, in the order in which vectors are added; the order decides about its last bits."""

    def __init__(self) -> None:
        self.weight = 0.0
        self.total: NDArray[np.float64] | None = None
        """The weighted sum itself; None while nothing was added"""

    def add(self, vector: Floats, weight: float) -> None:
        """Count a vector ``weight`` times."""
        if self.total is None:
            self.total = np.zeros(vector.size)
        self.weight += weight
        scaled = np.empty(min(CHUNK, vector.size))
        for start in range(0, vector.size, CHUNK):
            part = vector[start : start + CHUNK]
            term, total = scaled[: part.size], self.total[start : start + CHUNK]
            term[...] = part  # a plain cast, then a plain product: one with a cast inside takes 1.3 of the time
            term *= weight
            total += term

    def mean(self) -> Floats | None:
        """The weighted mean; None without any weight."""
        if self.total is None or self.weight <= 0:
            return None
        return (self.total / self.weight).astype(np.float32)
