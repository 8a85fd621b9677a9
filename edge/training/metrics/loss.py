"""The mean loss of examples, or of tokens, summed in float64."""

from __future__ import annotations

from torch import Tensor

from edge.training.block_model import BlockModel
from edge.training.metrics.metric import Metric, Sums


class MeanLoss(Metric):
    """That of ``train.loss``; cross-entropy in nats is 0 for a model that is certain and right."""

    def measure(self, net: BlockModel, x: Tensor, y: Tensor, logits: Tensor) -> Sums:
        """The sum of the losses."""
        targets = y.double() if y.is_floating_point() else y
        return {"": (float(net.criterion.total(logits.double(), targets)), net.criterion.count(y))}
