"""Exact sums of clients' updates, added up in 64-bit integers. Never torch, never a socket.

Sums of floating-point numbers depend on their order; sums of integers do not. A worker adds up the updates of its
clients, the coordinator adds up the workers' partial sums, and the result is bit-identical for any number of workers,
any order of their answers, and after any of them dies and its clients are trained again elsewhere.

A number x of a client with aggregation weight w (0 < w <= 1) is added as the integer rint(x w 2^46). No sum overflows:
with |x| < 2^15 a client adds at most w 2^61 + 1/2 in magnitude, so N clients whose weights add up to 1 add at most
2^61 + N/2 together, a quarter of the range of an int64. Rounding to integers moves a mean by at most N 2^-47, which
for a hundred clients is less than 1e-12; that of the products x w, to float64, is 2^-53 of each.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from edge.protocol.messages import PartialSum, Totals, Update
from edge.protocol.payload import Floats, Shapes, shapes, vectors

FRACTION_BITS = 46
LIMIT = 2.0**15
"""Numbers of updates must be smaller than this in magnitude."""
CHUNK = 1 << 13
"""Numbers that are added at a time, so that intermediate results stay in the processor's cache."""
DIVERGED = "training diverged?"
"""In the reason of every refusal of numbers that a training with too large steps gives; studies look for it."""


def add_weighted(total: NDArray[np.int64], vector: Floats, weight: float) -> None:
    """Add a vector times ``weight`` to a sum, in units of 2^-46; its numbers must not be `not_summable`."""
    scaled = np.empty(min(CHUNK, vector.size))
    rounded = np.empty(scaled.size, dtype=np.int64)
    factor = weight * 2.0**FRACTION_BITS  # a power of 2: nothing is rounded here
    for start in range(0, vector.size, CHUNK):
        part, sums = vector[start : start + CHUNK], total[start : start + CHUNK]
        product, whole = scaled[: part.size], rounded[: part.size]
        np.rint(np.multiply(part, factor, out=product, dtype=np.float64), out=product)
        np.copyto(whole, product, casting="unsafe")
        sums += whole


def sum_vector(total: NDArray[np.int64]) -> Floats:
    """A sum as float32: a mean, if the weights add up to 1."""
    return (total * 2.0**-FRACTION_BITS).astype(np.float32)


class Levels(Protocol):
    """Integers of secure aggregation (`edge.protocol.secure_sum`)."""

    @property
    def limit(self) -> float:
        """Numbers must be smaller than this in magnitude."""
        ...

    def quantised(self, vector: Floats, ratio: float) -> NDArray[np.int64]:
        """The integers of a vector with this weight."""
        ...


class FixedPointSums:
    """The sum of clients' updates in one round, by slot and key."""

    def __init__(self, round: int, levels: Levels | None = None) -> None:
        """``levels``: of secure aggregation, whose integers are added up in place of those in fixed point."""
        self.round, self._levels = round, levels
        self.clients = 0
        """Number of updates in it."""
        self._totals: Totals = {}

    def put(self, update: Update, weight: float) -> Update:
        """Add an update, and return it without its vectors.

        An update with numbers that are `not_summable` is returned whole, and not added: the coordinator checks it.
        ValueError for vectors of other shapes than those before.
        """
        assert update.round == self.round, (update.round, self.round)
        limit = LIMIT if self._levels is None else self._levels.limit
        if any(not_summable(vector.data, limit) for _, _, vector in vectors(update.payload)):
            return update
        self._expect(f"client {update.client}, round {update.round + 1}", shapes(update.payload))
        for slot, key, vector in vectors(update.payload):
            if self._levels is None:
                add_weighted(self._totals[slot][key], vector.data, weight)
            else:
                self._totals[slot][key] += self._levels.quantised(vector.data, weight)
        self.clients += 1
        return replace(update, payload={})

    def merge(self, sums: PartialSum) -> None:
        """Add a partial sum. ValueError for another round, or other shapes."""
        if sums.round != self.round:
            raise ValueError(f"sums of round {sums.round + 1} instead of {self.round + 1}")
        self._expect(f"sums of round {sums.round + 1}", sizes(sums.totals))
        for slot, named in sums.totals.items():
            for key, total in named.items():
                self._totals[slot][key] += total
        self.clients += sums.clients

    def message(self) -> PartialSum:
        """The partial sum as a message, with the arrays themselves."""
        return PartialSum(self.round, self.clients, self._totals)

    def _expect(self, name: str, wanted: Shapes) -> None:
        theirs = {slot: dict(named) for slot, named in wanted.items() if named}
        if not self._totals:
            self._totals = {
                slot: {key: np.zeros(size, np.int64) for key, size in named.items()} for slot, named in theirs.items()
            }
        ours = sizes(self._totals)
        if theirs != ours:
            raise ValueError(f"{name}: shapes {theirs} instead of {ours}")


def sizes(totals: Totals) -> dict[str, dict[str, int]]:
    """Number of values of each sum, by slot and key."""
    return {slot: {key: total.size for key, total in named.items()} for slot, named in totals.items()}


def not_summable(numbers: Floats, limit: float = LIMIT) -> str | None:
    """Why these numbers cannot be added up, or None. ``limit``: inf if they are added as floating-point numbers."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.dot(numbers, numbers) < (limit / 2) ** 2:  # one pass, for what is almost always so; NaN is not less
            return None
    largest = max(float(numbers.max()), -float(numbers.min()))  # both are NaN if one number is
    if not math.isfinite(largest):
        return f"is not finite ({DIVERGED})"
    if largest >= limit:
        bound = f"{largest:.6g}; numbers must be below {limit:g}; {DIVERGED}"
        key = "aggregate.sum = fixed_point" if limit == LIMIT else "privacy.secagg_range"
        return f"is too large for {key} ({bound})"
    return None
