"""FedMLB: hybrid pathways of local and frozen global blocks regularise local training. The server is FedAvg's.

Kim, Kim and Han, Multi-Level Branched Regularization for Federated Learning, ICML 2022,
https://arxiv.org/abs/2207.06936. The client side is `edge.methods.fedmlb`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coordinator.methods.compute import Compute, ComputeContext, add_frozen_suffix, fedavg_passes, trained
from coordinator.methods.spec import ObjectiveSpec, Options, check_inner
from edge.protocol.payload import FORWARD, INPUT_GRADIENT


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


def used(blocks: int, options: FedMLBOptions) -> tuple[int, ...]:
    """The pathways in use."""
    return tuple(range(1, blocks)) if options.pathways is None else options.pathways


def compute(context: ComputeContext) -> Compute:
    """LG: each pathway adds its frozen suffix. GL: one frozen prefix, and each pathway a trained suffix."""
    options: FedMLBOptions = context.options
    total, pathways = fedavg_passes(context.blocks), used(context.blocks, options)
    for m in pathways:
        if options.order == "LG":
            add_frozen_suffix(total, m)
        else:
            total[m:] += 1
            total[m, INPUT_GRADIENT] -= 1  # the frozen prefix needs none
    if options.order == "GL":
        total[: max(pathways, default=0), FORWARD] += 1
    return trained(context, total)


SPEC = ObjectiveSpec(
    name="fedmlb",
    title="multi-level branched regularisation",
    source="Kim, Kim and Han, ICML 2022",
    options=FedMLBOptions,
    neutral="lambda1 = lambda2 = 0, or pathways = []",
    client="edge.methods.fedmlb:FedMLBUpdate",
    compute=compute,
    nominal_alpha=lambda blocks, options, choice: blocks - 1,
)
