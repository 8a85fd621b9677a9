"""The options of FedAvg+KD, one object for both of its sides."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edge.protocol.options.base import Options


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
