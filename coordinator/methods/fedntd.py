"""FedNTD (FedLS-NTD in FedMLB's tables): distillation over all classes but the true one. The server is FedAvg's.

Lee, Jeong, Shin, Bae and Yun, Preservation of the Global Knowledge by Not-True Distillation in Federated Learning,
NeurIPS 2022, https://arxiv.org/abs/2106.03097. The client side is `edge.methods.fedntd`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from coordinator.methods.compute import Compute, ComputeContext, distillation_passes, trained
from coordinator.methods.spec import ObjectiveSpec, Options

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


def compute(context: ComputeContext) -> Compute:
    """The received model runs forward once, if its logits are compared."""
    return trained(context, distillation_passes(context.blocks, context.blocks if context.options.weight else 0))


SPEC = ObjectiveSpec(
    name="fedntd",
    title="not-true distillation (FedLS-NTD)",
    source="Lee, Jeong, Shin, Bae and Yun, NeurIPS 2022",
    options=FedNTDOptions,
    neutral="ce_weight = 1 and weight = 0",
    client="edge.methods.fedntd:FedNTDUpdate",
    compute=compute,
)
