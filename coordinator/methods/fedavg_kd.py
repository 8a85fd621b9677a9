"""FedAvg+KD: the received model teaches local training. The server is FedAvg's.

The baseline of Kim, Kim and Han, ICML 2022, https://arxiv.org/abs/2207.06936, Table 2, which does not print weight or
temperature; the defaults are those of Flower's reproduction of FedMLB. The client side is `edge.methods.fedavg_kd`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coordinator.methods.compute import Compute, ComputeContext, distillation_passes, trained
from coordinator.methods.spec import ObjectiveSpec, Options


class FedAvgKDOptions(Options):
    """(1 − γ)·CE(z_L, y) + γ·T²·KL(σ_T(z_G) ‖ σ_T(z_L)), z_G being the received model's logits."""

    weight: float = Field(default=0.2, ge=0, title="γ")
    """Weight of the divergence from the received model; at most 1 in the convex form. 0 is FedAvg."""
    form: Literal["convex", "additive"] = "convex"
    """Whether the cross-entropy weighs 1 - weight (convex) or 1 (additive)."""
    temperature: float = Field(default=1.0, gt=0, title="T")
    """Temperature of both sides of the divergence."""
    kl_t2: bool = True
    """Whether the divergence is multiplied by T²."""

    def check(self, blocks: int) -> None:
        """A convex weight is at most 1."""
        if self.form == "convex" and self.weight > 1:
            raise ValueError(f"method_options.weight = {self.weight:g}: must be at most 1 in the convex form")


def compute(context: ComputeContext) -> Compute:
    """The received model runs forward once, if its logits are compared."""
    return trained(context, distillation_passes(context.blocks, context.blocks if context.options.weight else 0))


SPEC = ObjectiveSpec(
    name="fedavg-kd",
    title="distillation from the received model",
    source="Hinton, Vinyals and Dean, 2015; as a baseline Kim, Kim and Han, ICML 2022",
    options=FedAvgKDOptions,
    neutral="weight = 0",
    client="edge.methods.fedavg_kd:FedAvgKDUpdate",
    compute=compute,
)
