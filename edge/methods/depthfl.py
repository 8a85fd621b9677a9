"""DepthFL, client side: the cross-entropies of all exits of a client's part, and their divergences from each other.

Kim, Yu, Kim and Moon, DepthFL: Depthwise Federated Learning for Heterogeneous Clients, ICLR 2023,
https://openreview.net/forum?id=pf8RIZTMU58. The spec is `coordinator.methods.depthfl`, the loss is written at
`edge.protocol.options.depthfl.DepthFLOptions`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from edge.protocol.options.depthfl import DepthFLOptions, ramped
from edge.protocol.payload import Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import ClientUpdate, VisitContext
from edge.training.exits import exit_logits


class DepthFLUpdate(ClientUpdate):
    """One visit of a client that has the first blocks of the model, without client state."""

    options: DepthFLOptions

    capturable = True
    """What depends on the round is a scratch vector."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Start as FedAvg does, with α of the round."""
        super().begin(net, down, state, visit)
        if self.options.exits != "none" and self.options.distil:
            self.weight = net.logit_scratch("depthfl: alpha", np.array([ramped(visit.round, self.options.ramp)]))

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        """Both sums over the exits; the mean of the cross-entropies is recorded."""
        if self.options.exits == "none":
            return super().loss(net, x, y)
        net.run(x)
        logits = [sum(net.logit_shifts, own.float()) for own in exit_logits(net)]
        total = torch.stack([F.cross_entropy(own, y) for own in logits]).sum()
        self.record_loss(total / len(logits))
        if self.options.distil and len(logits) > 1:
            total = total + (self.weight * mutual_divergence(logits)).squeeze()
        return total


def mutual_divergence(logits: Sequence[Tensor]) -> Tensor:
    """Σ_i of the mean over the other exits j of KL(σ(z_j) ‖ σ(z_i)), a scalar: mean over the batch, z_j fixed.

    ``logits``: (batch, classes) of each exit, two or more.
    """
    log_probabilities = [F.log_softmax(own, 1) for own in logits]
    divergences = [
        F.kl_div(own, other.detach(), reduction="batchmean", log_target=True)
        for own in log_probabilities
        for other in log_probabilities
        if other is not own
    ]
    return torch.stack(divergences).sum() / (len(logits) - 1)
