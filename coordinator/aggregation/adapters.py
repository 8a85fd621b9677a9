"""Low-rank adapters on the server side: the mean of clients' products B A, and how far a product of means is from it.

The mean over clients of their products is one product of wide factors, [p_1 B_1, p_2 B_2, ..] and [A_1; A_2; ..], of
which nothing as large as the layer is ever made: its singular values follow from QR of both factors, and its norm from
their Gram matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.server import GLOBAL, Model, ServerContext, ServerExtension, ServerStrategy
from edge.protocol.messages import Update
from edge.protocol.payload import MODEL

Matrix = NDArray[np.float64]
TensorShapes = Sequence[Sequence[int]]
"""The tensors in a vector of adapters: A (r, inputs) and B (outputs, r) of each in turn"""


class Products:
    """The products of one adapter of several clients."""

    def __init__(self) -> None:
        self.weights: list[float] = []
        self.a: list[Matrix] = []
        self.b: list[Matrix] = []

    def add(self, a: Matrix, b: Matrix, weight: float) -> None:
        """Note a client's, of this weight: (r, inputs) and (outputs, r), of any r."""
        self.weights.append(weight)
        self.a.append(a)
        self.b.append(b)

    @property
    def shares(self) -> list[float]:
        """Each client's part of the mean."""
        total = math.fsum(self.weights)
        return [weight / total for weight in self.weights]

    def mean(self) -> tuple[Matrix, Matrix]:
        """(R, inputs) and (outputs, R) whose product is the weighted mean of the clients' products."""
        return np.concatenate(self.a), np.concatenate(
            [share * b for share, b in zip(self.shares, self.b, strict=True)], axis=1
        )

    def cut(self, rank: int) -> tuple[Matrix, Matrix]:
        """(rank, inputs) and (outputs, rank) whose product is the nearest of this rank to the mean of products.

        B is U S, the singular values in it falling, and A has the right singular vectors, so that the first rows and
        columns are the nearest of any lower rank, and no row of A is zero. Beyond what the layer has, both are.
        """
        a, b = self.mean()
        lacking = max(0, rank - len(a))
        a, b = np.pad(a, ((0, lacking), (0, 0))), np.pad(b, ((0, 0), (0, lacking)))
        (outer, left), (inner, right) = np.linalg.qr(b), np.linalg.qr(a.T)
        u, values, v = np.linalg.svd(left @ right.T, full_matrices=False)
        most = min(rank, len(values))
        cut_a, cut_b = np.zeros((rank, a.shape[1])), np.zeros((b.shape[0], rank))
        cut_a[:most] = (v @ inner.T)[:most]
        cut_b[:, :most] = (outer @ u * values)[:, :most]
        return cut_a, cut_b

    def gap(self) -> tuple[float, float]:
        """(squared norm of the product of both means less the mean of products, that of the mean of products).

        All clients have the same rank.
        """
        a, b = self.mean()
        mean_a, mean_b = (np.tensordot(self.shares, np.stack(side), axes=1) for side in (self.a, self.b))
        apart = squared_norm(np.concatenate([a, mean_a]), np.concatenate([b, -mean_b], axis=1))
        return apart, squared_norm(a, b)


def squared_norm(a: Matrix, b: Matrix) -> float:
    """The squared norm of B A: the sum over the elements of B^T B and A A^T, multiplied one by one."""
    return max(float(((b.T @ b) * (a @ a.T)).sum()), 0.0)


class StepProducts:
    """The adapters of the updates of one step."""

    def __init__(self) -> None:
        self.of_key: dict[str, list[Products]] = {}

    def add(self, key: str, vector: NDArray[np.float32], tensors: TensorShapes, weight: float) -> None:
        """The vector of a client of this weight, with the shapes of its tensors."""
        if weight == 0:
            return
        found = self.of_key.setdefault(key, [Products() for _ in tensors[::2]])
        pieces = iter(split(vector, tensors))
        for products in found:
            a, b = next(pieces), next(pieces)
            products.add(a, b, weight)

    def mean(self, key: str) -> list[Matrix]:
        """(outputs, inputs) the mean of products of each adapter in the vector of this key."""
        return [b @ a for a, b in (products.mean() for products in self.of_key[key])]

    def cut(self, key: str, tensors: TensorShapes) -> NDArray[np.float32]:
        """The vector of this key with adapters of the ranks in ``tensors``, nearest to the mean of products."""
        pieces: list[Matrix] = []
        for products, (rank, _) in zip(self.of_key[key], tensors[::2], strict=True):
            pieces += products.cut(rank)
        return np.concatenate([piece.ravel() for piece in pieces]).astype(np.float32)

    def gap(self) -> float | None:
        """`Products.gap` of all adapters together, as a share of the norm; None without any change."""
        both = [products.gap() for of_key in self.of_key.values() for products in of_key]
        apart, whole = math.fsum(apart for apart, _ in both), math.fsum(whole for _, whole in both)
        return math.sqrt(apart / whole) if whole > 0 else None


class ProductServer(ServerStrategy):
    """A server side that keeps the adapters of a step's updates, and averages all else as FedAvg does."""

    def __init__(self, setup: ServerContext, extensions: Sequence[ServerExtension] = ()) -> None:
        super().__init__(setup, extensions)
        self._products = StepProducts()

    def accumulate(self, reply: Update) -> None:
        """Keep the adapters of an update until the step."""
        assert self.setup.submodels is not None
        slices = self.setup.submodels.slices(reply.variant)
        vectors = dict(reply.payload.get(MODEL, {}))
        for key in self.setup.adapters:
            if key in vectors:
                weight = self.weight(reply, GLOBAL, key)
                self._products.add(key, vectors.pop(key).data, slices.tensors[key], weight)
        super().accumulate(msgspec.structs.replace(reply, payload={**reply.payload, MODEL: vectors}))

    def taken_products(self) -> StepProducts:
        """The adapters since the last call."""
        products, self._products = self._products, StepProducts()
        return products


def split(vector: NDArray[Any], tensors: TensorShapes) -> list[Matrix]:
    """The tensors of these shapes that lie one after another in a vector."""
    ends = np.cumsum([math.prod(shape) for shape in tensors])
    pieces = np.split(vector.astype(np.float64), ends[:-1])
    return [piece.reshape(shape) for piece, shape in zip(pieces, tensors, strict=True)]


class AdapterGap(ServerExtension):
    """Logs ``adapter_gap`` of each step: how far FedIT's mean is from the mean of what clients have learned."""

    def __init__(self, setup: ServerContext) -> None:
        super().__init__(setup)
        self._products = StepProducts()

    def accumulate(self, reply: Update) -> None:
        """Keep the adapters of an update until the step."""
        for key, vector in reply.payload.get(MODEL, {}).items():
            if key in self.setup.adapters:
                self._products.add(key, vector.data, self.setup.adapters[key], self.setup.weight_of(reply.client))

    def step(self, before: Model, after: Model) -> Model:
        """Log the gap; the model stays the method's."""
        gap, self._products = self._products.gap(), StepProducts()
        if gap is not None:
            self.log("adapter_gap", gap)
        return after
