"""The Hessian of the mean cross-entropy: its largest eigenvalue, its trace, and each tensor's part in the trace.

Mendieta et al., CVPR 2022, https://arxiv.org/abs/2111.14213, Table 1. H_N and H_D over clients follow from these values
(`edge.training.metrics.diagonals`).
"""

from __future__ import annotations

import numpy as np
import torch

from edge.protocol.payload import Vector
from edge.training.block_model import BlockModel
from edge.training.client_update import Batches
from edge.training.hessian import Tensors, cross_entropy_hessian, estimate_trace
from edge.training.metrics.hessian_options import EigenvectorOptions, HessianOptions
from edge.training.metrics.metric import Metric, ModelInputs, Sums


class EigenvectorMetric(Metric):
    """A metric on fixed examples, with draws that clients share, so that identical models have identical values."""

    def __init__(self, options: EigenvectorOptions) -> None:
        self._inputs = ModelInputs(options.data == "global", options.examples, options.batch, shares_draws=True)

    @property
    def inputs(self) -> ModelInputs:
        """As the options say."""
        return self._inputs


class LossHessian(EigenvectorMetric):
    """Values ``hessian/eigenvalue``, ``hessian/trace`` with its standard error ``hessian/trace-error`` and the number
    of ``hessian/probes``, and ``hessian/0`` and so on of the tensors of parameters."""

    def __init__(self, options: HessianOptions) -> None:
        super().__init__(options)
        self.options = options
        self._diagonal: Tensors = []

    def measure_model(self, net: BlockModel, batches: Batches, rng: np.random.Generator) -> Sums:
        """Each value once; none without examples."""
        self._diagonal = []
        if next(iter(batches()), None) is None:
            return {}
        options, hessian = self.options, cross_entropy_hessian(net, batches)
        eigenvalue = hessian.top_eigenvalue(rng, options.iterations, options.tolerance)
        by_parameter = options.diag == "per_parameter"
        found = estimate_trace(hessian, rng, options.probes, None if by_parameter else options.tolerance)
        self._diagonal = found.diagonal if by_parameter else []
        tensors = {str(number): (trace, 1) for number, trace in enumerate(found.tensors)}
        errors = {} if found.error is None else {"trace-error": (found.error, 1)}
        return {
            "eigenvalue": (eigenvalue, 1),
            "trace": (found.trace, 1),
            **errors,
            "probes": (found.probes, 1),
            **tensors,
        }

    def vectors(self) -> dict[str, Vector]:
        """The diagonal, (parameters,), where it is asked for."""
        if not self._diagonal:
            return {}
        flat = torch.cat([each.reshape(-1) for each in self._diagonal])
        return {"diagonal": Vector(flat.to("cpu", torch.float32).numpy())}
