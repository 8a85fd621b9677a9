"""A part of the numbers, and zeros for the others.

topk: Stich, Cordonnier, Jaggi, Sparsified SGD with Memory, NeurIPS 2018, https://arxiv.org/abs/1809.07599: the k
numbers of largest magnitude, with their indices. randk: the same paper: k numbers at random, which need no
indices where both sides draw them.
"""

from __future__ import annotations

from decimal import Decimal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edge.protocol.codecs.codec import LARGEST, NOTHING, Frame, Reduction, Tensors, size
from edge.protocol.payload import Floats
from edge.protocol.plugins import PluginOptions
from edge.protocol.wire import WireError


class TopKOptions(PluginOptions):
    """The k = max(1, ⌊ratio·n⌋) largest of n magnitudes; of equal ones, those of lower indices."""

    ratio: float = Field(default=0.01, gt=0, le=1, title="k/n")
    """Share of the numbers that travel; 1 sends all, without indices."""


class RandKOptions(PluginOptions):
    """k = max(1, ⌊ratio·n⌋) of n numbers, drawn by the keyed stream of the message."""

    ratio: float = Field(default=0.01, gt=0, le=1, title="k/n")
    """Share of the numbers that travel; 1 sends all."""
    unbiased: bool | None = None
    """Whether what comes back is scaled by n/k, so that its mean is what was sent; by default unless errors are fed
    back, whose residuals would grow with every use."""


def _count(ratio: float, tensors: Tensors) -> int:
    """k, for the ratio as it is written: 0.29 of 100 are 29, although the float is less."""
    n = size(tensors)
    return min(n, max(1, int(Decimal(repr(ratio)) * n)))


class TopK(Reduction):
    """Side bytes: uint32 indices in ascending order; none if all numbers travel."""

    has_indices = True
    options: TopKOptions

    def __init__(self, options: TopKOptions) -> None:
        super().__init__(options)
        self.is_unbiased = options.ratio == 1

    def count(self, tensors: Tensors) -> int:
        """k."""
        return _count(self.options.ratio, tensors)

    def side_nbytes(self, tensors: Tensors) -> int:
        """4 for each of k, unless k = n."""
        k = self.count(tensors)
        return 4 * k if k < size(tensors) else 0

    def reduce(
        self, values: Floats, tensors: Tensors, rng: np.random.Generator, kept: Floats | None
    ) -> tuple[Floats, Frame, Floats | None]:
        """No draws."""
        n, k = values.size, self.count(tensors)
        if k == n:
            return values, NOTHING, None
        magnitudes = np.abs(values)
        least = np.partition(magnitudes, n - k)[n - k]  # the k-th largest, whichever of equal ones that was
        is_chosen = magnitudes > least
        ties = np.flatnonzero(magnitudes == least)
        is_chosen[ties[: k - np.count_nonzero(is_chosen)]] = True
        indices = np.flatnonzero(is_chosen)
        return values[indices], indices.astype("<u4").view(np.uint8), None

    def restore(self, numbers: Floats, side: Frame, tensors: Tensors, rng: np.random.Generator) -> Floats:
        """WireError for indices that do not ascend, or are n or more."""
        n = size(tensors)
        if not side.size:
            return numbers
        indices = side.view("<u4").astype(np.intp)
        if indices[-1] >= n or not (indices[1:] > indices[:-1]).all():
            raise WireError(f"codec: indices are not in ascending order, or not below {n}")
        values = np.zeros(n, np.float32)
        values[indices] = numbers
        return values


class RandK(Reduction):
    """No side bytes: the indices are the draws."""

    options: RandKOptions

    def __init__(self, options: RandKOptions) -> None:
        super().__init__(options)
        self.is_unbiased = options.unbiased is not False or options.ratio == 1

    def count(self, tensors: Tensors) -> int:
        """k."""
        return _count(self.options.ratio, tensors)

    def reduce(
        self, values: Floats, tensors: Tensors, rng: np.random.Generator, kept: Floats | None
    ) -> tuple[Floats, Frame, Floats | None]:
        """The numbers at the drawn indices, which ascend."""
        k = self.count(tensors)
        return (values if k == values.size else values[_draw(values.size, k, rng)]), NOTHING, None

    def restore(self, numbers: Floats, side: Frame, tensors: Tensors, rng: np.random.Generator) -> Floats:
        """Numbers that exceed float32 once they are scaled become its largest."""
        n, k = size(tensors), self.count(tensors)
        if k == n:
            return numbers
        values = np.zeros(n, np.float32)
        if self.options.unbiased is not False:
            numbers = np.clip(numbers * np.float64(n / k), -LARGEST, LARGEST).astype(np.float32)
        values[_draw(n, k, rng)] = numbers
        return values


def _draw(n: int, k: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """k of n indices, in ascending order."""
    return np.sort(rng.choice(n, k, replace=False, shuffle=False))
