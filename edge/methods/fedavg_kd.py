"""FedAvg+KD, client side: knowledge distillation from the received model, a baseline of FedMLB.

Hinton, Vinyals and Dean, Distilling the Knowledge in a Neural Network, 2015, https://arxiv.org/abs/1503.02531; the
baseline of Kim, Kim and Han, ICML 2022, https://arxiv.org/abs/2207.06936, Table 2.

    convex     (1 − γ)·CE(z_L, y) + γ·T²·KL(σ_T(z_G) ‖ σ_T(z_L))
    additive   CE(z_L, y) + γ·T²·KL(σ_T(z_G) ‖ σ_T(z_L))

z_L are the local logits, z_G those of the frozen received model. γ = 0 is FedAvg.
"""

from __future__ import annotations

from edge.methods.distillation import DistillationUpdate
from edge.protocol.options.fedavg_kd import FedAvgKDOptions


class FedAvgKDUpdate(DistillationUpdate):
    """One visit under FedAvg+KD, without client state."""

    options: FedAvgKDOptions

    capturable = True

    def __init__(self, options: FedAvgKDOptions) -> None:
        super().__init__(options)
        if options.form == "convex":
            self.ce_weight = 1.0 - self.weight
