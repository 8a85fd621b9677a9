"""The mean cross-entropy of examples, in nats, summed in float64."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from edge.training.block_model import BlockModel
from edge.training.metrics.metric import Metric, Sums


class CrossEntropy(Metric):
    """0 for a model that is certain and right."""

    def measure(self, net: BlockModel, x: Tensor, y: Tensor, logits: Tensor) -> Sums:
        """The sum of the losses."""
        return {"": (float(F.cross_entropy(logits.double(), y, reduction="sum")), len(y))}
