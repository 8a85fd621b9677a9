"""Weighted sums of vectors that come one after another, without storing them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edge.protocol.payload import Floats

CHUNK = 1 << 15
"""Numbers that are added at a time: few enough for the processor's cache."""


def check_weight(weight: float) -> None:
    """ValueError for an aggregation weight with which there is no mean."""
    if not 0 <= weight < math.inf:
        raise ValueError(f"an aggregation weight of {weight:g}: must be finite, and 0 or more")


class WeightedSum:
    """A weighted sum in float64; bit-identical only if vectors are added in the same order."""

    def __init__(self) -> None:
        self.weight: float | NDArray[np.float64] = 0.0
        """Of all numbers; of each, once a vector had some of them alone"""
        self.total: NDArray[np.float64] | None = None
        """None until a vector is added"""

    def add(self, vector: Floats, weight: float) -> None:
        """Add ``weight`` times a vector. ValueError for a weight that is negative or not finite."""
        check_weight(weight)
        if self.total is None:
            self.total = np.zeros(vector.size)
        self.weight += weight
        scaled = np.empty(min(CHUNK, vector.size))
        for start in range(0, vector.size, CHUNK):
            part = vector[start : start + CHUNK]
            term, total = scaled[: part.size], self.total[start : start + CHUNK]
            term[...] = part  # cast and product apart: a product that casts takes 1.3 times as long
            term *= weight
            total += term

    def add_at(
        self, size: int, places: NDArray[np.intp], vector: Floats, weight: float, counted: NDArray[np.bool_] | None
    ) -> None:
        """Add ``weight`` times a vector of the numbers at these distinct places of ``size``.

        ``counted``: which of them count; None: all. ValueError as of `add`.
        """
        check_weight(weight)
        if self.total is None:
            self.total = np.zeros(size)
        if not isinstance(self.weight, np.ndarray):
            self.weight = np.full(size, self.weight)
        if counted is not None:
            places, vector = places[counted], vector[counted]
        self.weight[places] += weight
        self.total[places] += vector.astype(np.float64) * weight

    def mean(self, current: Floats | None = None) -> Floats | None:
        """The weighted mean, of numbers without any weight those of ``current``; None if no number has any."""
        weight = self.weight
        if self.total is None or not np.any(weight > 0):
            return None
        if not isinstance(weight, np.ndarray):
            return (self.total / weight).astype(np.float32)
        assert current is not None, "parts have a current model"
        mean = current.copy()
        np.copyto(mean, (self.total / np.where(weight > 0, weight, 1.0)).astype(np.float32), where=weight > 0)
        return mean

    @property
    def missing(self) -> NDArray[np.bool_] | None:
        """Which numbers have no weight; None if all have some."""
        if not isinstance(self.weight, np.ndarray):
            return None
        missing: NDArray[np.bool_] = self.weight <= 0
        return missing if missing.any() else None
