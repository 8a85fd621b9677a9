"""The options of FedGKD, one object for both of its sides."""

from __future__ import annotations

from pydantic import Field

from edge.protocol.options.base import Options


class FedGKDOptions(Options):
    """CE(z_L, y) + w·T²·KL(σ_T(z_G) ‖ σ_T(z_L)), z_G being the logits of the mean of the last global models."""

    weight: float = Field(default=0.1, ge=0, title="w = γ/2")
    """Weight of the divergence from the teacher: FedMLB's γ = 0.2, halved as in FedGKD's objective; 0.2 takes γ for w
    itself. 0 is FedAvg."""
    buffer: int = Field(default=5, ge=1, title="B_h")
    """The teacher is the mean of this many last global models, including the newest; 1 is FedAvg+KD (additive) with
    the same weight, and sends nothing extra."""
    silent_rounds: int = Field(default=1, ge=0)
    """Server steps before distillation begins, if a teacher is sent; 0: from the first visit."""
    temperature: float = Field(default=1.0, gt=0, title="T")
    """Temperature of both sides of the divergence."""
    kl_t2: bool = True
    """Whether the divergence is multiplied by T²."""
