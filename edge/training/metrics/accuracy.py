"""The share of examples, or of tokens, whose largest logit is that of their class."""

from __future__ import annotations

from torch import Tensor

from edge.training.block_model import BlockModel
from edge.training.metrics.metric import Metric, Sums


class Accuracy(Metric):
    """In [0, 1]."""

    def measure(self, net: BlockModel, x: Tensor, y: Tensor, logits: Tensor) -> Sums:
        """The number of correct ones; places where no token is foreseen equal no class."""
        return {"": (int((logits.argmax(dim=-1) == y).sum()), net.criterion.count(y))}
