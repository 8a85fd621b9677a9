"""The Hessian of a mean loss: products with vectors, its largest eigenvalue, its trace and its diagonal.

Products are exact, by differentiating twice; the Hessian itself is never formed. Eigenvalue and trace are estimated
with at most so many products. Vectors are lists of tensors, one per tensor of parameters, in the shapes and the order
of these, whatever their memory format. Gradients and parameters of the model are never changed.

Power iteration: von Mises and Pollaczek-Geiringer, ZAMM 1929. Trace: Hutchinson, Communications in Statistics 1989, as
Yao et al., PyHessian, IEEE Big Data 2020, https://arxiv.org/abs/1912.07145, estimate it for networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from edge.training.block_model import BlockModel
from edge.training.client_update import Batches

Tensors = list[Tensor]
Draw = Callable[[int], NDArray[np.floating[Any]]]
Losses = Callable[[], Iterable[tuple[Tensor, int]]]
"""Each call gives (sum of losses, number of examples) batch by batch."""
TINY = 1e-6
"""Added to the previous estimate that a change is relative to, as PyHessian does"""


class HessianOfLoss:
    """The Hessian of the mean of ``losses`` in ``parameters``, tensors that require gradients."""

    def __init__(self, parameters: Sequence[Tensor], losses: Losses) -> None:
        self.parameters, self._losses = list(parameters), losses

    def product(self, vector: Tensors) -> Tensors:
        """The Hessian times a vector. One batch is differentiated at a time, so memory is that of a batch."""
        total, examples = [torch.zeros_like(each) for each in self.parameters], 0
        for loss, count in self._losses():
            examples += count
            first = torch.autograd.grad(loss, self.parameters, create_graph=True, allow_unused=True)
            varying = [
                (gradient, along)
                for gradient, along in zip(first, vector, strict=True)
                if gradient is not None and gradient.requires_grad
            ]
            if varying:
                gradients, along = zip(*varying, strict=True)
                second = torch.autograd.grad(gradients, self.parameters, grad_outputs=along, allow_unused=True)
                total = [each if term is None else each + term for each, term in zip(total, second, strict=True)]
        return [each / max(examples, 1) for each in total]

    def top_eigenvalue(self, rng: np.random.Generator, iterations: int = 100, tolerance: float = 1e-3) -> float:
        """The eigenvalue of largest magnitude, by power iteration from a random start.

        It ends when the estimate changes by less than ``tolerance`` of itself.
        """
        return self.top_eigenvectors(rng, 1, iterations, tolerance)[0][0]

    def top_eigenvectors(
        self, rng: np.random.Generator, count: int, iterations: int = 100, tolerance: float = 1e-3
    ) -> list[tuple[float, Tensors]]:
        """The eigenvalues of largest magnitude, each with its eigenvector of length 1.

        Each is iterated at right angles to those before it, as `top_eigenvalue` says.
        """
        found: list[tuple[float, Tensors]] = []
        for _ in range(count):
            before = [vector for _, vector in found]
            vector, estimate = _normalised(_at_right_angles(self._draw(rng.standard_normal), before)), 0.0
            for number in range(iterations):
                product = _at_right_angles(self.product(vector), before)
                previous, estimate = estimate, _dot(vector, product)
                is_settled = number > 0 and _settled(previous, estimate, tolerance)
                if is_settled or not any(bool(each.any()) for each in product):
                    break
                vector = _normalised(product)
            found.append((estimate, vector))
        return found

    def diagonals(self, rng: np.random.Generator, probes: int = 100) -> Iterator[Tensors]:
        """Estimates of the diagonal, one per Rademacher probe v: v * Hv, whose expectation it is."""
        for _ in range(probes):
            probe = self._draw(lambda count: 2.0 * rng.integers(0, 2, count) - 1.0)
            yield [along * term for along, term in zip(probe, self.product(probe), strict=True)]

    def _draw(self, draw: Draw) -> Tensors:
        return [
            torch.from_numpy(np.asarray(draw(each.numel()))).to(each.device, each.dtype).view(each.shape)
            for each in self.parameters
        ]


@dataclass(frozen=True)
class TraceEstimate:
    """Means over all probes."""

    trace: float
    tensors: tuple[float, ...]
    """The part of each tensor of parameters in the trace"""
    error: float | None
    """The standard error of the trace, by the deviation between probes; None with one"""
    probes: int
    diagonal: Tensors
    """The diagonal, in the tensors' shapes"""


def estimate_trace(
    hessian: HessianOfLoss, rng: np.random.Generator, probes: int = 100, tolerance: float | None = 1e-3
) -> TraceEstimate:
    """Hutchinson's estimate of the trace, with the traces of the tensors and the diagonal from the same probes.

    It ends when the running mean changes by less than ``tolerance`` of itself; None: after all ``probes``.
    """
    sums, mean, made = [torch.zeros_like(each) for each in hessian.parameters], 0.0, 0
    traces: list[float] = []
    for estimate in hessian.diagonals(rng, probes):
        sums = [total + each for total, each in zip(sums, estimate, strict=True)]
        traces.append(sum(_totals(estimate)))
        made += 1
        before, mean = mean, sum(_totals(sums)) / made
        if made > 1 and tolerance is not None and _settled(before, mean, tolerance):
            break
    tensors = tuple(total / made for total in _totals(sums))
    error = float(np.std(traces, ddof=1)) / made**0.5 if made > 1 else None
    return TraceEstimate(sum(tensors), tensors, error, made, [each / made for each in sums])


def cross_entropy_hessian(net: BlockModel, batches: Batches) -> HessianOfLoss:
    """Of the mean cross-entropy of a model over batches, in the mode that the model is in, in all of its parameters."""

    def losses() -> Iterator[tuple[Tensor, int]]:
        for x, y in batches():
            yield F.cross_entropy(net.run(x), y, reduction="sum"), len(y)

    return HessianOfLoss(parameters_of(net), losses)


def parameters_of(net: BlockModel) -> Tensors:
    """All tensors of parameters, block after block, in torch's order."""
    return [parameter for module in net.modules for parameter in module.parameters()]


def _dot(one: Tensors, other: Tensors) -> float:
    return float(sum(float((a.double() * b.double()).sum()) for a, b in zip(one, other, strict=True)))


def _at_right_angles(vector: Tensors, others: Sequence[Tensors]) -> Tensors:
    """Without its parts along these vectors of length 1."""
    for other in others:
        part = _dot(vector, other)
        vector = [each - part * along for each, along in zip(vector, other, strict=True)]
    return vector


def _normalised(vector: Tensors) -> Tensors:
    norm = _dot(vector, vector) ** 0.5
    return [each / norm for each in vector]


def _totals(vector: Tensors) -> list[float]:
    return [float(each.double().sum()) for each in vector]


def _settled(before: float, after: float, tolerance: float) -> bool:
    return abs(after - before) < tolerance * (abs(before) + TINY)
