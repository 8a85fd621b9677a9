"""The options of FedMLB, one object for both of its sides."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from edge.protocol.options.base import Options, check_inner


class FedMLBOptions(Options):
    """L = CE(z_L, y) + lambda1/D Σ CE(z_m, y) + lambda2/D Σ KL(σ_T(z_m) ‖ σ_T(z_L)) over the pathways m."""

    lambda1: float = Field(default=1.0, ge=0, title="λ1")
    """Weight of the pathways' cross-entropy. With lambda2 = 0 as well: FedAvg."""
    lambda2: float = Field(default=1.0, ge=0, title="λ2")
    """Weight of the divergence between pathways and main path."""
    temperature: float = Field(default=1.0, gt=0, title="T")
    """Temperature of both sides of the divergence."""
    order: Literal["LG", "GL"] = "LG"
    """LG: local blocks first (the method); GL: global blocks first (the ablation of Table 4)."""
    pathways: tuple[int, ...] | None = Field(default=None, title="H")
    """Pathways in 1..M-1 that are used; by default all; an empty list is FedAvg."""
    norm: Literal["used", "all"] = Field(default="used", title="D")
    """The number of pathways used, or always M-1 (the published code's ablations)."""
    detach_hybrid_target: bool = False
    """Whether the divergence's pathway side is a constant."""
    kl_t2: bool = False
    """Whether the divergence is multiplied by T²."""

    def check(self, blocks: int) -> None:
        """Pathways must lie in 1..M-1 and be distinct."""
        check_inner("method_options.pathways", "pathway", self.pathways or (), blocks)
