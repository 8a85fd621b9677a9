"""FedAlign: the last stage's Lipschitz constant is aligned with that of a narrower stage. The server is FedAvg's.

Mendieta et al., Local Learning Matters: Rethinking Data Heterogeneity in Federated Learning, CVPR 2022,
https://arxiv.org/abs/2111.14213. The client side is `edge.methods.fedalign`.

Block L is the last one before the head. It and the block before it must be blocks of the model's own stages
(``model.blocks = "stages"``), of which the second ends in maps or features.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coordinator.methods.compute import Compute, ComputeContext, SizeFactors, fedavg_compute
from coordinator.methods.spec import Costs, ModelChange, ObjectiveSpec
from edge.protocol.options.fedalign import FedAlignOptions, alignment_flops
from edge.protocol.options.gradaug import channels
from edge.protocol.payload import step_flops

LEAST_BLOCKS = 3
"""One before block L, block L, and the head"""


def compute(context: ComputeContext) -> Compute:
    """FedAvg's training, and block L at ``width`` without a gradient for its input, matrices and spectral norms."""
    options: FedAlignOptions = context.options
    plan, last = fedavg_compute(context), context.blocks - 2
    if not options.weight:
        return plan
    before, after = (tuple(map(int, context.outputs[index])) for index in (last - 1, last))
    block = context.flops_at(options.width, 1.0)[last : last + 1]
    aligned = alignment_flops(before, after, options.width, options.multiple, options.iterations)
    narrower = channels(after[0], options.width, options.multiple) / after[0]  # activations are as many as channels
    stored = plan.stored_forwards + np.eye(1, context.blocks, last)[0] * narrower
    further = context.plan.samples * (step_flops(block) + aligned)
    return replace(plan, stored_forwards=stored, further_flops=further)


def variants(options: FedAlignOptions) -> tuple[SizeFactors, ...]:
    """The narrower form."""
    return ((options.width, 1.0),) if options.weight else ()


SPEC = ObjectiveSpec(
    name="fedalign",
    title="alignment of Lipschitz constants",
    source="Mendieta et al., CVPR 2022",
    options=FedAlignOptions,
    neutral="weight = clip = 0",
    client="edge.methods.fedalign:FedAlignUpdate",
    model=ModelChange(wrap_model=lambda options: "edge.methods.fedalign:aligned"),
    costs=Costs(compute=compute, variants=variants),
)
