"""FedProx's proximal term, for any objective.

Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020, https://arxiv.org/abs/1812.06127

The local objective has a term (mu/2)·‖θ_i − θ‖² over trainable parameters, θ being the start of the visit; its gradient
is mu·(θ_i − θ). ``half = false`` leaves the ½ out. mu = 0 is the objective alone.
"""

from __future__ import annotations

import torch

from edge.protocol.options.fedprox import FedProxOptions
from edge.protocol.payload import Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import GradientCorrection, VisitContext


class FedProxCorrection(GradientCorrection):
    """Pulls the local model towards its starting point."""

    options: FedProxOptions

    capturable = True
    """Both vectors are scratch, and mu is an option."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Copy the starting point."""
        self.start = net.scratch("prox: start").copy_(net.flat)
        self.moved = net.scratch("prox: moved")
        self.weight = self.options.mu * (1.0 if self.options.half else 2.0)

    def correct(self, net: BlockModel) -> None:
        """Add mu·(θ_i − θ) to the gradient."""
        if self.weight:
            torch.sub(net.flat, self.start, out=self.moved)
            net.grad.add_(self.moved, alpha=self.weight)
