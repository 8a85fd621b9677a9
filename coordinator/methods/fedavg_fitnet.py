"""FedAvg+FitNet: outputs of local blocks are matched to those of the received model. The server is FedAvg's.

The baseline of Kim, Kim and Han, ICML 2022, https://arxiv.org/abs/2207.06936, Table 2, which does not print weight,
layers or reduction. The client side is `edge.methods.fedavg_fitnet`.
"""

from __future__ import annotations

from coordinator.methods.compute import Compute, ComputeContext, distillation_passes, trained
from coordinator.methods.spec import Costs, ObjectiveSpec
from edge.protocol.options.fedavg_fitnet import FedAvgFitNetOptions


def compute(context: ComputeContext) -> Compute:
    """The teacher runs up to the last output that is compared."""
    options: FedAvgFitNetOptions = context.options
    layers = range(1, context.blocks) if options.layers is None else options.layers
    return trained(context, distillation_passes(context.blocks, max(layers, default=0) if options.weight else 0))


SPEC = ObjectiveSpec(
    name="fedavg-fitnet",
    title="feature matching to the received model",
    source="Romero et al., ICLR 2015; as a baseline Kim, Kim and Han, ICML 2022",
    options=FedAvgFitNetOptions,
    neutral="weight = 0, or layers = []",
    client="edge.methods.fedavg_fitnet:FedAvgFitNetUpdate",
    costs=Costs(compute=compute),
)
