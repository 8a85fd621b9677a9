"""Metrics of real targets, in their units: sums over examples and numbers, which add up over batches and clients."""

from __future__ import annotations

from torch import Tensor

from edge.protocol.losses import PinballOptions
from edge.training.block_model import BlockModel
from edge.training.criterion import NAIVE, TARGET
from edge.training.losses import pinball
from edge.training.metrics.metric import Metric, Sums


def _targets(net: BlockModel, y: Tensor, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """(targets, point forecasts), (examples, numbers) each, in float64."""
    return y[:, TARGET].double(), net.criterion.foreseen(outputs.double(), y.double())


class SquaredError(Metric):
    """The root of its mean is the RMSE."""

    def measure(self, net: BlockModel, x: Tensor, y: Tensor, logits: Tensor) -> Sums:
        """Σ e², and the number of targets."""
        target, foreseen = _targets(net, y, logits)
        return {"": (float((target - foreseen).square().sum()), target.numel())}


class AbsoluteError(Metric):
    """Its mean is the MAE."""

    def measure(self, net: BlockModel, x: Tensor, y: Tensor, logits: Tensor) -> Sums:
        """Σ |e|, and the number of targets."""
        target, foreseen = _targets(net, y, logits)
        return {"": (float((target - foreseen).abs().sum()), target.numel())}


class ScaledError(Metric):
    """MASE: absolute errors over the naive forecast's, in training, of the client that an example is of."""

    def measure(self, net: BlockModel, x: Tensor, y: Tensor, logits: Tensor) -> Sums:
        """Σ |e|/q, and the number of targets."""
        target, foreseen = _targets(net, y, logits)
        return {"": (float(((target - foreseen).abs() / y[:, NAIVE].double()).sum()), target.numel())}


class ExplainedVariance(Metric):
    """R² = 1 − Σ e² / Σ (y − ȳ)², with ȳ over all examples that are pooled."""

    def measure(self, net: BlockModel, x: Tensor, y: Tensor, logits: Tensor) -> Sums:
        """Σ e², Σ y and Σ y²."""
        target, foreseen = _targets(net, y, logits)
        sums = {"e2": (target - foreseen).square(), "y": target, "y2": target.square()}
        return {part: (float(each.sum()), target.numel()) for part, each in sums.items()}


class Pinball(Metric):
    """The mean pinball loss of the quantiles that a model foresees."""

    def measure(self, net: BlockModel, x: Tensor, y: Tensor, logits: Tensor) -> Sums:
        """The sum over targets of its mean over quantiles."""
        options = net.criterion.options
        assert isinstance(options, PinballOptions)
        target, outputs = y[:, TARGET].double(), net.criterion.outputs_in_units(logits.double(), y.double())
        return {"": (float(pinball(outputs, target, options).sum()) * target.shape[1], target.numel())}


class Coverage(Metric):
    """The share of targets between the lowest and the highest quantile that a model foresees."""

    def measure(self, net: BlockModel, x: Tensor, y: Tensor, logits: Tensor) -> Sums:
        """The number of those within."""
        target, outputs = y[:, TARGET].double(), net.criterion.outputs_in_units(logits.double(), y.double())
        within = (outputs[..., 0] <= target) & (target <= outputs[..., -1])
        return {"": (float(within.sum()), within.numel())}


class LabelCounts(Metric):
    """F1 = 2·TP / (2·TP + FP + FN) over all labels, of probabilities of at least a half."""

    def measure(self, net: BlockModel, x: Tensor, y: Tensor, logits: Tensor) -> Sums:
        """The numbers of true positives, false positives and false negatives."""
        target, foreseen = _targets(net, y, logits)
        has, says = target >= 0.5, foreseen >= 0.5
        counts = {"tp": has & says, "fp": ~has & says, "fn": has & ~says}
        return {part: (float(each.sum()), target.numel()) for part, each in counts.items()}
