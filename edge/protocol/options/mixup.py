"""The options of Mixup in local training, one object for both of its sides."""

from __future__ import annotations

from pydantic import Field

from edge.protocol.options.base import Options


class MixupOptions(Options):
    """λ·CE(z, y) + (1 − λ)·CE(z, y_π), z being the logits of λ·x + (1 − λ)·x_π, with λ ~ Beta(γ, γ)."""

    gamma: float = Field(default=0.1, ge=0, title="γ")
    """Both parameters of the Beta distribution of λ, which is drawn once per batch; 0 is FedAvg. FedAlign has 0.1, and
    its code 0 unless told."""
