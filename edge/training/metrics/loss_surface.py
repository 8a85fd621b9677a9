"""The loss of a model along the first two eigenvectors of its Hessian, on a square of points around it.

Mendieta et al., CVPR 2022, https://arxiv.org/abs/2111.14213, Figure 1. Points are numbered row by row; rows go along
the second eigenvector, columns along the first.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from torch.nn import functional as F

from edge.training.block_model import BlockModel
from edge.training.client_update import Batches
from edge.training.hessian import cross_entropy_hessian, parameters_of
from edge.training.metrics.hessian import EigenvectorMetric
from edge.training.metrics.hessian_options import SurfaceOptions
from edge.training.metrics.metric import Sums


class LossSurface(EigenvectorMetric):
    """Values ``loss-surface/0`` and so on, one per point; ``loss-surface/first`` and ``second``, the eigenvalues."""

    def __init__(self, options: SurfaceOptions) -> None:
        super().__init__(options)
        self.options = options

    def measure_model(self, net: BlockModel, batches: Batches, rng: np.random.Generator) -> Sums:
        """Each value once; none without examples."""
        if next(iter(batches()), None) is None:
            return {}
        options, hessian = self.options, cross_entropy_hessian(net, batches)
        (first, along), (second, across) = hessian.top_eigenvectors(rng, 2, options.iterations, options.tolerance)
        steps = np.linspace(-options.span, options.span, options.points).tolist()
        parameters, flat = parameters_of(net), net.flat.clone()
        start = [each.detach().clone() for each in parameters]
        found: dict[str, tuple[float, int]] = {"first": (first, 1), "second": (second, 1)}
        with torch.no_grad():
            for number, (y, x) in enumerate(product(steps, steps)):
                for each, origin, one, other in zip(parameters, start, along, across, strict=True):
                    each.copy_(origin + x * one + y * other)
                total, count = 0.0, 0
                for examples, labels in batches():
                    total += float(F.cross_entropy(net.run(examples).double(), labels, reduction="sum"))
                    count += len(labels)
                found[str(number)] = total, count
            net.flat.copy_(flat)
        return found
