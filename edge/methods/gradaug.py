"""GradAug, client side: the model teaches narrower sub-networks of itself on smaller images.

Yang, Zhu and Chen, GradAug: A New Regularization Method for Deep Neural Networks, NeurIPS 2020,
https://arxiv.org/abs/2006.07989; as a local objective: Mendieta et al., Local Learning Matters, CVPR 2022,
https://arxiv.org/abs/2111.14213. The spec is `coordinator.methods.gradaug`.

A step has n + 1 backward passes: the cross-entropy of the full model, whose logits z are then fixed, and μ·KL(σ(z) ‖
σ(z_i)) of each sub-network i, with a width and a resolution that are drawn for each step. subnets = 0 is FedAvg.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from edge.protocol.options.gradaug import SUBNETWORKS, GradAugOptions, draw_subnetworks
from edge.protocol.payload import Payload, step_flops
from edge.training.block_model import BlockModel
from edge.training.client_update import Batches, ClientUpdate, Step, VisitContext
from edge.training.slimmable import resized, slimmed

WEIGHTS = {1: 2.0, 2: 1.75, 3: 1.5}
"""μ by the number of sub-networks, in the paper's tuning"""
LEAST_WEIGHT = 1.25
"""μ of more"""


class GradAugUpdate(ClientUpdate):
    """One visit under GradAug, without client state."""

    options: GradAugOptions

    capturable = False
    """Steps draw widths and resolutions."""

    def __init__(self, options: GradAugOptions) -> None:
        super().__init__(options)
        self.count: int = options.subnets
        weight = options.weight
        self.weight: float = WEIGHTS.get(self.count, LEAST_WEIGHT) if weight is None else weight

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Start as FedAvg does, with the FLOPs of each sub-network's step."""
        super().begin(net, down, state, visit)
        self.costs = {variant: step_flops(flops) for variant, flops in visit.variants.items()}

    def train(self, net: BlockModel, batches: Batches, step: Step) -> None:
        """Train for all local epochs, each step with its sub-networks."""
        if not self.count or not self.weight:
            super().train(net, batches, step)
            return
        rng, has_least = self.visit.rng(SUBNETWORKS), self.options.widths == "code"
        for x, y in batches():
            step.backward(self.loss, x, y)
            drawn = draw_subnetworks(rng, self.count, self.options.width, self.options.resolutions, has_least)
            for width, height in drawn:
                step.backward(partial(self.divergence, width=width, height=height), x, y)
            step.apply()

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        """The cross-entropy of the full model, whose logits are kept for its sub-networks."""
        logits = net.run(x)
        self.taught = torch.log_softmax(logits.detach(), 1)
        return self.record_loss(F.cross_entropy(logits, y))

    def divergence(self, net: BlockModel, x: Tensor, y: Tensor, width: float, height: float) -> Tensor:
        """μ·KL of the last `loss`'s predictions to those of a sub-network on smaller images."""
        net.add_flops(len(x) * self.costs[width, height])
        with slimmed(net.modules, width):
            logits = net.run(reduced(x, height, self.visit.flexible), counted=False)
        divergence = F.kl_div(torch.log_softmax(logits, 1), self.taught, reduction="batchmean", log_target=True)
        return self.weight * divergence


def reduced(x: Tensor, factor: float, flexible: bool) -> Tensor:
    """Images (batch, channels, h, w) at ``factor`` times their height, by linear interpolation between their corners.

    They are enlarged again to their size unless the model is ``flexible``. Examples of other kinds stay as they are.
    """
    size = (x.shape[-2], x.shape[-1])
    if x.dim() != 4 or resized(size, factor) == size:
        return x
    small = F.interpolate(x, resized(size, factor), mode="bilinear", align_corners=True)
    return small if flexible else F.interpolate(small, size, mode="bilinear", align_corners=True)
