"""A method that also runs narrower models on smaller images, a drawn one for each batch. FedAvg otherwise.

The client side is `tests.plugins.slim_client`.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.methods.compute import Compute, ComputeContext, Variant, fedavg_compute
from coordinator.methods.spec import Costs, ObjectiveSpec
from edge.protocol.options.base import Options
from edge.protocol.payload import FORWARD

VARIANTS: tuple[Variant, ...] = ((0.5, 1.0), (0.25, 0.5))


def compute(context: ComputeContext) -> Compute:
    """One forward pass of a drawn variant for each batch."""
    rng = context.rng("variants")
    drawn = [(VARIANTS[rng.integers(len(VARIANTS))], examples) for examples in context.batches]
    further = sum(examples * context.flops_at(*variant)[:, FORWARD].sum() for variant, examples in drawn)
    return replace(fedavg_compute(context), further_flops=float(further))


SPEC = ObjectiveSpec(
    name="slim",
    title="narrower models",
    source="a test",
    options=Options,
    neutral="none",
    client="tests.plugins.slim_client:SlimUpdate",
    costs=Costs(compute=compute, variants=lambda options: VARIANTS),
)
SMALLER = replace(SPEC, name="smaller", costs=Costs(compute=compute, variants=lambda options: ((1.0, 0.5),)))
