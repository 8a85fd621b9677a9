"""FedAvg+KD, client side: knowledge distillation from the received model, a baseline of FedMLB.

Hinton, Vinyals and Dean, Distilling the Knowledge in a Neural Network, 2015, https://arxiv.org/abs/1503.02531; the
baseline of Kim, Kim and Han, ICML 2022, https://arxiv.org/abs/2207.06936, Table 2.

    convex     (1 − γ)·CE(z_L, y) + γ·T²·KL(σ_T(z_G) ‖ σ_T(z_L))
    additive   CE(z_L, y) + γ·T²·KL(σ_T(z_G) ‖ σ_T(z_L))

z_L are the local logits, z_G those of the frozen received model. γ = 0 is FedAvg.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge.methods.distillation import DistillationUpdate


class FedAvgKDUpdate(DistillationUpdate):
    """One visit under FedAvg+KD, without client state."""

    capturable = True

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        if options["form"] == "convex":
            self.ce_weight = 1.0 - self.weight
