"""FedBR, client side: block-wise regularisation with the received blocks.

Zeng, Liu, Xu, Wang, Xu and Zhao, Enhanced Federated Learning with Adaptive Block-wise Regularization and Knowledge
Distillation (FedBR).

Round t sends client k the last alpha of M global blocks, and periodically the whole model. The client joins them to the
first M - alpha blocks of its last local model, and trains with the pathways {M - alpha, .., M - 1}: exactly alpha of
them, which need exactly the last alpha global blocks. lambda1 = lambda2 = 0 with a full broadcast every round is
FedAvg; with all pathways it is FedMLB.
"""

from __future__ import annotations

import torch
from torch import Tensor

from edge.protocol.options.fedbr import FedBROptions
from edge.protocol.payload import MODEL, Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import ClientUpdate, VisitContext, first_last, mean_loss
from edge.training.pathways import PathwayLoss, local_to_global


class FedBRUpdate(ClientUpdate):
    """One visit under FedBR; the client state is its last local model."""

    options: FedBROptions

    capturable = True
    """Steps of visits differ in ``alpha`` alone, a choice of the visit. The frozen model's address is fixed; the losses
    of ``drop = "exact"`` are computed outside of steps."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Join the local first blocks and the received last blocks; freeze a copy of the received ones."""
        super().begin(net, down, state, visit)
        blocks, alpha = len(net), visit.choice["alpha"]
        self.frozen = net.frozen_copy()
        self.frozen.load({key: down[MODEL][key] for key in net.layout.last(alpha)})
        self.pathways = range(blocks - alpha, blocks)
        divisors = {"used": None, "all": float(blocks - 1), "none": 1.0}
        self.objective = PathwayLoss(
            lambda1=self.options.lambda1,
            lambda2=self.options.lambda2,
            temperature=self.options.temperature,
            divisor=divisors[self.options.norm],
            kl=self.options.kl,
            detach=self.options.detach,
            kl_t2=self.options.kl_t2,
            hybrid_ce=self.options.hybrid_ce,
        )
        # Pathways without a gradient need no backward pass.
        self.pathways_learn = self.options.hybrid_ce or not self.options.detach
        self.exact = self.options.drop == "exact"
        self.before = mean_loss(net, visit.local) if self.exact else 0.0

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        """The main path and alpha hybrid pathways on the same batch."""
        features = net.features(x)
        with torch.set_grad_enabled(self.pathways_learn):
            hybrids = local_to_global(self.frozen, features, self.pathways, self.visit.pathways)
        loss, cross_entropy = self.objective(features[-1], hybrids, y)
        self.record_loss(cross_entropy)
        return loss

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """Report also the decrease of the local loss (the Δζ_L of Eq. 5; negative for an increase)."""
        up, state, numbers = super().end(net, visit)
        if self.exact:
            first, last = self.before, mean_loss(net, visit.local)
        else:
            first, last = first_last(self.losses, visit.plan.epoch_steps)
        drop = first - last
        return up, state, {**numbers, "drop": abs(drop) if self.options.drop == "absolute" else drop}
