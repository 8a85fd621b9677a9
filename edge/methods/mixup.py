"""Mixup, client side: each batch is trained on convex combinations of its examples.

Zhang, Cisse, Dauphin and Lopez-Paz, mixup: Beyond Empirical Risk Minimization, ICLR 2018,
https://arxiv.org/abs/1710.09412

λ·CE(z, y) + (1 − λ)·CE(z, y_π), z being the logits of λ·x + (1 − λ)·x_π. λ ~ Beta(γ, γ) and the permutation π are drawn
once per batch from streams of the method's own, so batches are FedAvg's. γ = 0 is λ = 1, FedAvg.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from edge.data.augment import to_device
from edge.protocol.options.mixup import MixupOptions
from edge.protocol.payload import Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import ClientUpdate, VisitContext


class MixupUpdate(ClientUpdate):
    """One visit; FedAvg's, but for the loss."""

    options: MixupOptions

    capturable = False
    """Each step has draws of its own."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Start as FedAvg does, with both random streams."""
        super().begin(net, down, state, visit)
        self.weights, self.orders = visit.rng("mixup: lambda"), visit.rng("mixup: permutation")

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        """The cross-entropy of a mixture, with both labels of each of its examples."""
        if not self.options.gamma:
            return super().loss(net, x, y)
        weight = float(self.weights.beta(self.options.gamma, self.options.gamma))
        order = to_device(self.orders.permutation(len(y)), x.device)
        z = net.run(mixed(x, order, weight))
        return self.record_loss(mixed_cross_entropy(z, y, y[order], weight))


def mixed(x: Tensor, order: Tensor, weight: float) -> Tensor:
    """weight·x + (1 − weight)·x[order], in the memory format of ``x`` (batch, ..)."""
    return torch.mul(x, weight).add_(x[order], alpha=1 - weight)


def mixed_cross_entropy(z: Tensor, y: Tensor, other: Tensor, weight: float) -> Tensor:
    """weight·CE(z, y) + (1 − weight)·CE(z, other); logits ``z`` (batch, classes), a scalar."""
    return weight * F.cross_entropy(z, y) + (1 - weight) * F.cross_entropy(z, other)
