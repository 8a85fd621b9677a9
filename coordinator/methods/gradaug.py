"""GradAug: the model teaches narrower sub-networks of itself on smaller images. The server is FedAvg's.

Yang, Zhu and Chen, GradAug: A New Regularization Method for Deep Neural Networks, NeurIPS 2020,
https://arxiv.org/abs/2006.07989; as a local objective: Mendieta et al., Local Learning Matters: Rethinking Data
Heterogeneity in Federated Learning, CVPR 2022, https://arxiv.org/abs/2111.14213. The client side is
`edge.methods.gradaug`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from coordinator.methods.compute import Compute, ComputeContext, Variant, fedavg_compute
from coordinator.methods.spec import ObjectiveSpec, Options
from edge.protocol.payload import step_flops
from edge.protocol.slim import SUBNETWORKS, draw_subnetworks, widths_from


class GradAugOptions(Options):
    """CE + μ Σ_i KL(σ(z) ‖ σ(z_i)), z_i being the logits of the i-th of n sub-networks and z fixed in it."""

    subnets: int = Field(default=2, ge=0, le=32, title="n")
    """Sub-networks per step. 0 is FedAvg."""
    width: float = Field(default=0.8, gt=0, le=1, title="ω_b")
    """The least width. Widths are drawn from this and the hundredths above it up to 1, as far as ``widths`` says."""
    weight: float | None = Field(default=None, ge=0, title="μ")
    """Weight of the divergence. By default the paper's: 2, 1.75, 1.5 for 1, 2, 3 sub-networks, and 1.25 for more. 0 is
    FedAvg."""
    widths: Literal["code", "paper"] = "code"
    """code: one sub-network always has the least width, and the others are drawn; paper: all are drawn."""
    resolutions: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(
        default=(1.0, 0.875, 0.75, 0.625), min_length=1
    )
    """Factors on the images' height and width, of which each sub-network draws one: of 32x32 images 32, 28, 24, 20.
    FedAlign's code has 224, 192, 160, 128 of 224x224 images, which are 1 and 6/7, 5/7, 4/7 (0.8571, 0.7143, 0.5714).
    A model that takes images of one size gets them reduced and enlarged again."""
    multiple: int = Field(default=8, ge=1)
    """Channels in use are a multiple of this, as far as there are so many."""


def compute(context: ComputeContext) -> Compute:
    """FedAvg's training, and a step of each drawn sub-network."""
    options: GradAugOptions = context.options
    plan = fedavg_compute(context)
    if not variants(options):
        return plan
    costs = {each: step_flops(context.flops_at(*each)) for each in variants(options)}
    rng, further, has_least = context.rng(SUBNETWORKS), 0.0, options.widths == "code"
    for examples in context.batches:
        drawn = draw_subnetworks(rng, options.subnets, options.width, options.resolutions, has_least)
        further += examples * sum(costs[each] for each in drawn)
    return replace(plan, further_flops=further)


def variants(options: GradAugOptions) -> tuple[Variant, ...]:
    """All sub-networks that may be drawn."""
    if not options.subnets or options.weight == 0:
        return ()
    widths = (options.width,) if options.widths == "code" and options.subnets == 1 else widths_from(options.width)
    return tuple((width, height) for width in widths for height in dict.fromkeys(options.resolutions))


SPEC = ObjectiveSpec(
    name="gradaug",
    title="self-guided narrower sub-networks",
    source="Yang, Zhu and Chen, NeurIPS 2020",
    options=GradAugOptions,
    neutral="subnets = 0, or weight = 0",
    client="edge.methods.gradaug:GradAugUpdate",
    compute=compute,
    variants=variants,
    wrap_model=lambda options: "edge.training.slimmable:slimmable",
)
