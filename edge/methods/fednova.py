"""FedNova, client side: FedAvg's local training, and a report of the normaliser of its steps.

Wang, Liu, Liang, Joshi and Poor, Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization,
NeurIPS 2020, https://arxiv.org/abs/2007.07481

The local change is θ − θ_i = η Σ_k a_ik g_k over the gradients g_k of K_i steps, and the normaliser is a_i = Σ_k a_ik:
K_i for plain SGD, (K_i − ρ(1 − ρ^K_i)/(1 − ρ))/(1 − ρ) with momentum ρ, Σ_{k<K_i} (1 − ημ)^k with a proximal term.
"""

from __future__ import annotations

import math

from edge.protocol.config import TrainConfig
from edge.protocol.options.fednova import FedNovaOptions
from edge.protocol.options.fedprox import FedProxOptions
from edge.protocol.payload import Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import ClientUpdate, VisitContext


class FedNovaUpdate(ClientUpdate):
    """One visit under FedNova, without client state."""

    options: FedNovaOptions

    capturable = True

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Also compute the normaliser from the steps, the step size and the proximal term."""
        super().begin(net, down, state, visit)
        mu = 0.0
        if isinstance(self.options, FedProxOptions):
            mu = self.options.mu * (1.0 if self.options.half else 2.0)
        self.normaliser = normaliser(visit.plan.steps, visit.train, visit.lr * mu)
        if visit.plan.steps and not 0 < self.normaliser < math.inf:
            raise ValueError(
                f"train.lr = {visit.lr:g}: with the proximal term's mu = {mu:g} the normaliser of {visit.plan.steps} "
                f"steps is {self.normaliser:g}; lr times mu must be below 1"
            )

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """Report the normaliser too."""
        up, state, numbers = super().end(net, visit)
        return up, state, {**numbers, "normaliser": self.normaliser}


def normaliser(steps: int, config: TrainConfig, pull: float = 0.0) -> float:
    """a_i: the distance of ``steps`` steps, in units of the step size, if every gradient of the loss is 1.

    ``pull``: ημ, the fraction of the distance that a proximal term subtracts from each gradient, before momentum.
    """
    distance = momentum = 0.0
    for _ in range(steps):
        gradient = 1.0 - pull * distance
        momentum = config.momentum * momentum + gradient
        distance += gradient + config.momentum * momentum if config.nesterov else momentum
    return distance
