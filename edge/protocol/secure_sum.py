"""Numbers as secure aggregation adds them up: integers mod 2^32, so that masks cancel to the bit.

K. Bonawitz et al., Practical Secure Aggregation, CCS 2017; the ranges are those of Flower 1.29. A number x of a client
whose weight is a ratio r, at most 1, is sent as rint((x r + c) L / 2c), one of L + 1 levels of the range -c .. c. N
clients add up to N L at most, which must be below 2^32. The server takes N c off, and divides by the sum of the ratios,
which travel as integers beside the numbers.

Masks are not made here: those of any two clients cancel in the sum, so that it is the same without them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge.protocol.config import PrivacyConfig
from edge.protocol.fixed_point import CHUNK, FRACTION_BITS
from edge.protocol.messages import Totals
from edge.protocol.payload import Floats

MODULUS_BITS = 32


@dataclass(frozen=True)
class SecureSum:
    """The levels of a run."""

    limit: float
    """c"""
    levels: int
    """L, a power of two"""
    most_weight: float
    """The aggregation weight whose ratio is 1"""

    def ratio(self, weight: float) -> float:
        """r: a weight as a part of the largest, in levels."""
        return round(weight / self.most_weight * self.levels) / self.levels

    def quantised(self, vector: Floats, ratio: float) -> NDArray[np.int64]:
        """The integers of a vector whose numbers are below the limit in magnitude."""
        whole = np.empty(vector.size, np.int64)
        factor = self.levels / (2 * self.limit)
        for start in range(0, vector.size, CHUNK):
            part = vector[start : start + CHUNK].astype(np.float64)
            whole[start : start + CHUNK] = np.rint((part * ratio + self.limit) * factor)
        return whole

    def mean(self, total: NDArray[np.int64], ratios: Sequence[float]) -> NDArray[np.float64]:
        """The weighted mean of vectors whose integers add up to ``total`` mod 2^32; ``ratios``: of their clients."""
        within = (total % (1 << MODULUS_BITS)).astype(np.float64)
        summed = within * (2 * self.limit / self.levels) - len(ratios) * self.limit
        return summed / math.fsum(ratios)

    def means(self, totals: Totals, ratios: Sequence[float]) -> Totals:
        """Sums of integers as sums in fixed point (`edge.protocol.fixed_point`) whose weights add up to 1."""
        return {
            slot: {
                key: np.rint(self.mean(total, ratios) * 2.0**FRACTION_BITS).astype(np.int64)
                for key, total in by_key.items()
            }
            for slot, by_key in totals.items()
        }


def secure_sum(privacy: PrivacyConfig) -> SecureSum | None:
    """The levels of a run; None without secure aggregation, and before examples are counted, on which they depend."""
    if privacy.secagg_levels is None or privacy.secagg_weight is None:
        return None
    return SecureSum(privacy.secagg_range, privacy.secagg_levels, privacy.secagg_weight)


def most_levels(clients: int) -> int:
    """The most levels, 2^22 at most, of which so many clients add up to less than 2^32."""
    return 1 << min(22, (((1 << MODULUS_BITS) - 1) // max(clients, 1)).bit_length() - 1)
