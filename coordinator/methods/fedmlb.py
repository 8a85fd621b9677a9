"""FedMLB: hybrid pathways of local and frozen global blocks regularise local training. The server is FedAvg's.

Kim, Kim and Han, Multi-Level Branched Regularization for Federated Learning, ICML 2022,
https://arxiv.org/abs/2207.06936. The client side is `edge.methods.fedmlb`.
"""

from __future__ import annotations

from coordinator.methods.compute import Compute, ComputeContext, add_frozen_suffix, fedavg_passes, trained
from coordinator.methods.spec import Costs, ObjectiveSpec
from edge.protocol.options.fedmlb import FedMLBOptions
from edge.protocol.payload import FORWARD, INPUT_GRADIENT


def compute(context: ComputeContext) -> Compute:
    """LG: each pathway adds its frozen suffix. GL: one frozen prefix, and each pathway a trained suffix."""
    options: FedMLBOptions = context.options
    total, pathways = fedavg_passes(context.blocks), options.pathways
    if pathways is None:
        pathways = tuple(range(1, context.blocks))
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
    costs=Costs(compute=compute, nominal_alpha=lambda blocks, options, choice: blocks - 1),
)
