"""The accuracy of each class: the share of its examples that are classified as it."""

from __future__ import annotations

import torch
from torch import Tensor

from edge.training.block_model import BlockModel
from edge.training.metrics.metric import Metric, Sums


class ClassAccuracy(Metric):
    """Values ``class-accuracy/0`` and so on, in [0, 1]; a class without examples has none."""

    def measure(self, net: BlockModel, x: Tensor, y: Tensor, logits: Tensor) -> Sums:
        """The number of correct examples of each class."""
        classes = logits.shape[1]
        examples = torch.bincount(y, minlength=classes).tolist()
        correct = torch.bincount(y[logits.argmax(dim=1) == y], minlength=classes).tolist()
        return {str(label): (correct[label], examples[label]) for label in range(classes)}
