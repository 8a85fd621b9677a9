"""FedAMP, client side: the client's own model is trained, and pulled to its personal cloud model.

Huang, Chu, Zhou, Wang, Liu, Pei and Zhang, Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021,
https://arxiv.org/abs/2007.03797

The gradient of (λ/2α_k)·‖w − u_i‖² is (λ/α_k)·(w − u_i). λ = 0 trains the client alone.
"""

from __future__ import annotations

import torch

from edge.methods.own_model import OWN, OwnModelUpdate
from edge.protocol.options.fedamp import FedAMPOptions
from edge.protocol.payload import MODEL, Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import VisitContext


class FedAMPUpdate(OwnModelUpdate):
    """One visit under FedAMP; the client keeps w_i."""

    options: FedAMPOptions

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Start from w_i; from the download before a client's first update, or with ``start = "cloud"``."""
        options = self.options
        alpha_k = options.alpha_k * options.alpha_decay ** (visit.round // options.alpha_rounds)
        self.pull = options.lam / alpha_k
        own = state.get(OWN, {})
        super().begin(net, {MODEL: {**own, **down.get(MODEL, {})}}, state, visit)
        self.cloud, self.moved = net.scratch("fedamp: cloud").copy_(net.flat), net.scratch("fedamp: moved")
        if options.start == "own":
            net.load(own)

    def correct(self, net: BlockModel) -> None:
        """Add (λ/α_k)·(w − u_i) to the gradient."""
        if self.pull:
            torch.sub(net.flat, self.cloud, out=self.moved)
            net.grad.add_(self.moved, alpha=self.pull)
