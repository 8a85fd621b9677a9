"""The options of FedNTD, one object for both of its sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from edge.protocol.options.base import Options

STYLES = {"fedmlb": {"ce_weight": 0.7, "weight": 0.3}, "neurips": {"ce_weight": 1.0, "weight": 1.0}}


class FedNTDOptions(Options):
    """a·CE(z_L, y) + β·T²·KL(σ_T(z̃_G) ‖ σ_T(z̃_L)), z̃ being logits without that of the true class."""

    style: Literal["fedmlb", "neurips"] = "fedmlb"
    """Default weights: 0.7 and 0.3 as in later code of FedMLB's authors, or 1 and 1 as in FedNTD's own."""
    ce_weight: float = Field(default=STYLES["fedmlb"]["ce_weight"], ge=0, title="a")
    """Weight of the cross-entropy. 1 with weight = 0 is FedAvg."""
    weight: float = Field(default=STYLES["fedmlb"]["weight"], ge=0, title="β")
    """Weight of the divergence from the received model. 0 switches it off."""
    temperature: float = Field(default=1.0, gt=0, title="T")
    """Temperature of both sides of the divergence; FedNTD's class has 3, its configuration 1."""
    kl_t2: bool = True
    """Whether the divergence is multiplied by T²."""

    @model_validator(mode="before")
    @classmethod
    def _with_style(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Weights of the style are defaults."""
        return {**STYLES.get(str(options.get("style")), {}), **options}
