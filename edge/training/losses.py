"""Losses of single examples, and what a model with such a loss foresees (`edge.protocol.losses`).

Outputs of real targets are (examples, numbers, outputs of a number), targets (examples, numbers), in the scale of
training.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from edge.protocol.losses import HuberOptions, PinballOptions
from edge.protocol.plugins import PluginOptions


def cross_entropy(outputs: Tensor, targets: Tensor, options: PluginOptions) -> Tensor:
    """Of logits (examples, classes) and classes (examples,)."""
    return F.cross_entropy(outputs, targets, reduction="none")


def mse(outputs: Tensor, targets: Tensor, options: PluginOptions) -> Tensor:
    """Mean squared error over an example's numbers."""
    return (outputs[..., 0] - targets).square().mean(1)


def mae(outputs: Tensor, targets: Tensor, options: PluginOptions) -> Tensor:
    """Mean absolute error over an example's numbers."""
    return (outputs[..., 0] - targets).abs().mean(1)


def huber(outputs: Tensor, targets: Tensor, options: HuberOptions) -> Tensor:
    """Huber, 1964."""
    return F.huber_loss(outputs[..., 0], targets, reduction="none", delta=options.delta).mean(1)


def pinball(outputs: Tensor, targets: Tensor, options: PinballOptions) -> Tensor:
    """Koenker and Bassett, 1978; the mean over numbers and quantiles."""
    quantiles = torch.tensor(options.quantiles, dtype=outputs.dtype, device=outputs.device)
    errors = targets[..., None] - outputs
    return torch.maximum(quantiles * errors, (quantiles - 1) * errors).mean((1, 2))


def median(outputs: Tensor, options: PinballOptions) -> Tensor:
    """The quantile nearest to a half."""
    return outputs[..., options.middle]


def gaussian_nll(outputs: Tensor, targets: Tensor, options: PluginOptions) -> Tensor:
    """(log σ² + e²/σ² + log 2π)/2 of the mean in output 0 and log σ² in output 1, which is at least −10."""
    log_variance = outputs[..., 1].clamp(min=-10.0)
    errors = (targets - outputs[..., 0]).square()
    return (0.5 * (log_variance + errors * torch.exp(-log_variance) + 1.8378770664093453)).mean(1)


def bce(outputs: Tensor, targets: Tensor, options: PluginOptions) -> Tensor:
    """Mean over labels, whose logits the outputs are."""
    return F.binary_cross_entropy_with_logits(outputs[..., 0], targets, reduction="none").mean(1)


def probability(outputs: Tensor, options: PluginOptions) -> Tensor:
    """Of each label."""
    return outputs[..., 0].sigmoid()
