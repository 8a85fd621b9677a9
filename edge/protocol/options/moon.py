"""The options of MOON, one object for both of its sides."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edge.protocol.options.base import Options

PROJECTION = "projection"
"""Name of the added block"""


class MoonOptions(Options):
    """CE + μ·ℓ, with ℓ = −log(e^(s(z, z_g)/τ) / (e^(s(z, z_g)/τ) + e^(s(z, z_p)/τ))) and s the cosine similarity of
    projections by the local model (z), the received one (z_g) and the client's previous one (z_p)."""

    weight: float = Field(default=1.0, ge=0, title="μ")
    """Weight of ℓ; 0 is FedAvg on the model with the projection, without client state."""
    temperature: float = Field(default=0.5, gt=0, title="τ")
    """Divisor of the similarities."""
    projection: int = Field(default=256, ge=1)
    """Length of the projection, at most the number of features: FedAlign's ResNet-56 has 256 -> 256 -> 256, and its
    ResNet-18 512 -> 512 -> 256."""
    auxiliary: Literal["train", "eval"] = "train"
    """BatchNorm in the received and the previous model, in place of ``train.frozen_statistics``: ``train`` normalises
    with the statistics of each batch, as MOON's code does, and leaves the running ones as they are; ``eval``
    normalises with these."""
