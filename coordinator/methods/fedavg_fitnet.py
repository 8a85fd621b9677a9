"""FedAvg+FitNet: outputs of local blocks are matched to those of the received model. The server is FedAvg's.

The baseline of Kim, Kim and Han, ICML 2022, https://arxiv.org/abs/2207.06936, Table 2, which does not print weight,
layers or reduction. The client side is `edge.methods.fedavg_fitnet`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coordinator.methods.compute import Compute, ComputeContext, distillation_passes, trained
from coordinator.methods.spec import ObjectiveSpec, Options, check_inner


class FedAvgFitNetOptions(Options):
    """CE(z_L, y) + β/|H| Σ_{m in H} mean((f_L^m − f_G^m)²), f^m being the output of block m."""

    weight: float = Field(default=1.0, ge=0, title="β")
    """Weight of the squared differences; a grid to search is {0.01, 0.1, 1, 10}. 0 is FedAvg."""
    layers: tuple[int, ...] | None = Field(default=None, title="H")
    """Blocks in 1..M-1 that are compared; by default all; an empty list is FedAvg."""
    reduction: Literal["mean", "sum"] = "mean"
    """Reduction over the numbers of one example's output; examples are averaged."""

    def check(self, blocks: int) -> None:
        """Layers must lie in 1..M-1 and be distinct."""
        check_inner("method_options.layers", "layer", self.layers or (), blocks)


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
    compute=compute,
)
