"""Matrices as products of two narrow ones.

powersgd: Vogels, Karimireddy, Jaggi, PowerSGD, NeurIPS 2019, https://arxiv.org/abs/1905.13727, Algorithm 1: for a
matrix M (m x l) and the Q (l x r) of the last use, P = orth(M·Q) and Q = Mᵀ·P; what comes back is P·Qᵀ. There, P and Q
are averaged over all workers before each next step; here, a client sends both of its own.

All sums are of float64 in an order that follows from shapes alone, without BLAS, whose order depends on the processor.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edge.protocol.codecs.codec import LARGEST, NOTHING, Frame, Reduction, Tensors
from edge.protocol.payload import Floats
from edge.protocol.plugins import PluginOptions

Doubles = NDArray[np.float64]
CHUNK_VALUES = 1 << 18
"""Of a matrix, taken to float64 at a time"""


class PowerSGDOptions(PluginOptions):
    """A tensor is a matrix of its first dimension by all others. Q is that of the client's last update; downwards and
    on the WAN it is drawn for each message, which leaves a larger error."""

    rank: int = Field(default=2, ge=1, title="r")
    """Columns of P and Q, at most m and l. A tensor travels whole where r(m + l) ≥ m·l, as all do from some rank on."""


class _Part(NamedTuple):
    """A tensor as a matrix (rows x columns); of rank 0 if it travels whole."""

    rows: int
    columns: int
    rank: int

    @property
    def size(self) -> int:
        return self.rows * self.columns

    @property
    def numbers(self) -> int:
        return self.rank * (self.rows + self.columns) if self.rank else self.size


class PowerSGD(Reduction):
    """The numbers, tensor by tensor: P and then Q, row by row; or the whole tensor. The sender keeps each Q."""

    is_unbiased = False
    options: PowerSGDOptions

    def _parts(self, tensors: Tensors) -> Iterator[_Part]:
        for shape in tensors:
            rows, columns = (shape[0] if shape else 1), math.prod(shape[1:])
            rank = min(self.options.rank, rows, columns)
            is_low = len(shape) >= 2 and rank * (rows + columns) < rows * columns
            yield _Part(rows, columns, rank if is_low else 0)

    def count(self, tensors: Tensors) -> int:
        """r(m + l) a matrix."""
        return sum(part.numbers for part in self._parts(tensors))

    def kept(self, tensors: Tensors) -> int:
        """r·l a matrix."""
        return sum(part.rank * part.columns for part in self._parts(tensors))

    def reduce(
        self, values: Floats, tensors: Tensors, rng: np.random.Generator, kept: Floats | None
    ) -> tuple[Floats, Frame, Floats | None]:
        """Draws are for columns of Q that are 0, as all are at the first use: uniform in [-1, 1), since only the space
        that they span counts."""
        kept = np.zeros(self.kept(tensors), np.float32) if kept is None else kept
        numbers, keep = [], []
        for part in self._parts(tensors):
            tensor, values = np.split(values, [part.size])
            if not part.rank:
                numbers.append(tensor)
                continue
            before, kept = np.split(kept, [part.rank * part.columns])
            matrix = tensor.reshape(part.rows, part.columns)
            q = before.reshape(part.columns, part.rank).astype(np.float64)
            is_zero = ~q.any(axis=0)
            q[:, is_zero] = 2 * rng.random((part.columns, np.count_nonzero(is_zero)), np.float32) - 1
            p = _orthogonal(_times(matrix, q)).astype(np.float32)
            q = _transposed_times(matrix, p.astype(np.float64))
            keep.append(np.clip(q, -LARGEST, LARGEST).astype(np.float32).reshape(-1))
            numbers += [p.reshape(-1), keep[-1]]
        all_numbers = np.concatenate(numbers) if numbers else values
        return all_numbers, NOTHING, np.concatenate(keep) if keep else None

    def restore(self, numbers: Floats, side: Frame, tensors: Tensors, rng: np.random.Generator) -> Floats:
        """P·Qᵀ of each matrix; beyond float32, its largest number."""
        restored = []
        for part in self._parts(tensors):
            given, numbers = np.split(numbers, [part.numbers])
            if part.rank:
                p, q = np.split(given.astype(np.float64), [part.rows * part.rank])
                given = _product(p.reshape(part.rows, part.rank), q.reshape(part.columns, part.rank)).reshape(-1)
            restored.append(given)
        return np.concatenate(restored) if restored else numbers


def _chunks(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, CHUNK_VALUES // columns)
    return (slice(start, start + step) for start in range(0, rows, step))


def _times(matrix: Floats, q: Doubles) -> Doubles:
    """M·Q (rows x rank)."""
    p = np.empty((len(matrix), q.shape[1]))
    for rows in _chunks(*matrix.shape):
        chunk = matrix[rows].astype(np.float64)
        for column in range(q.shape[1]):
            p[rows, column] = np.add.reduce(chunk * q[:, column], axis=1)
    return p


def _transposed_times(matrix: Floats, p: Doubles) -> Doubles:
    """Mᵀ·P (columns x rank)."""
    q = np.zeros((matrix.shape[1], p.shape[1]))
    for rows in _chunks(*matrix.shape):
        chunk = matrix[rows].astype(np.float64)
        for column in range(p.shape[1]):
            q[:, column] += np.add.reduce(chunk * p[rows, column, None], axis=0)
    return q


def _product(p: Doubles, q: Doubles) -> Floats:
    """P·Qᵀ (rows x columns)."""
    matrix = np.empty((len(p), len(q)), np.float32)
    for rows in _chunks(*matrix.shape):
        chunk = p[rows, 0, None] * q[:, 0]
        for column in range(1, p.shape[1]):
            chunk += p[rows, column, None] * q[:, column]
        matrix[rows] = np.clip(chunk, -LARGEST, LARGEST)
    return matrix


def _orthogonal(p: Doubles) -> Doubles:
    """Its columns, made orthonormal from the first on by Gram-Schmidt; one that is 0 stays so."""
    basis = p.T.copy()
    for index, column in enumerate(basis):
        for _ in range(2):  # once more, against what rounding has left
            for other in basis[:index]:
                column[:] -= np.add.reduce(column * other) * other
            norm = np.sqrt(np.add.reduce(np.square(column)))
            column[:] /= norm if norm > 0 else 1
    return basis.T
