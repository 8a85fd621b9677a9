"""GradAug: the model teaches narrower sub-networks of itself on smaller images. The server is FedAvg's.

Yang, Zhu and Chen, GradAug: A New Regularization Method for Deep Neural Networks, NeurIPS 2020,
https://arxiv.org/abs/2006.07989; as a local objective: Mendieta et al., Local Learning Matters: Rethinking Data
Heterogeneity in Federated Learning, CVPR 2022, https://arxiv.org/abs/2111.14213. The client side is
`edge.methods.gradaug`.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.methods.compute import Compute, ComputeContext, SizeFactors, fedavg_compute
from coordinator.methods.spec import Costs, ModelChange, ObjectiveSpec
from edge.protocol.options.gradaug import SUBNETWORKS, GradAugOptions, draw_subnetworks, widths_from
from edge.protocol.payload import step_flops


def compute(context: ComputeContext) -> Compute:
    """FedAvg's training, and a step of each drawn sub-network."""
    options: GradAugOptions = context.options
    plan = fedavg_compute(context)
    if not variants(options):
        return plan
    costs = {variant: step_flops(context.flops_at(*variant)) for variant in variants(options)}
    rng, further, has_least = context.rng(SUBNETWORKS), 0.0, options.widths == "code"
    for examples in context.batches:
        subnetworks = draw_subnetworks(rng, options.subnets, options.width, options.resolutions, has_least)
        further += examples * sum(costs[variant] for variant in subnetworks)
    return replace(plan, further_flops=further)


def variants(options: GradAugOptions) -> tuple[SizeFactors, ...]:
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
    model=ModelChange(wrap_model=lambda options: "edge.training.slimmable:slimmable"),
    costs=Costs(compute=compute, variants=variants),
)
