"""The torch part of `tests.plugins.gradient_norm`."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from edge.training.block_model import BlockModel
from edge.training.client_update import Batches
from edge.training.metrics.metric import Metric, Sums


class GradientNorm(Metric):
    """Of the mean cross-entropy of one batch; also how many examples that batch has, and a drawn number."""

    def measure_model(self, net: BlockModel, batches: Batches, rng: np.random.Generator) -> Sums:
        x, y = next(batches())
        torch.autograd.backward(F.cross_entropy(net.run(x), y))
        norm = float(torch.linalg.vector_norm(net.grad))
        return {"": (norm, 1), "examples": (float(len(y)), 1), "drawn": (float(rng.random()), 1)}
