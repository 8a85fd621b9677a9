"""FjORD: each local step trains a part of a width that is drawn anew, at most as wide as the client can hold.

Horvath, Laskaridis, Almeida, Leontiadis, Venieris and Lane, FjORD: Fair and Accurate Federated Learning under
heterogeneous targets with Ordered Dropout, NeurIPS 2021, https://arxiv.org/abs/2102.13451. The client side is
`edge.methods.fjord`, the mean `coordinator.aggregation.submodels`.

p_max: the rate of a client's part, by the scenario's table ``submodel``; p: the rate of a step, uniform among the rates
of the run up to p_max. A part of rate p is the first ⌈p·C⌉ of the model's C channels, so that parts are nested. A
visit's clock, budgets and joules are those of its drawn widths: the compute plan repeats the client's draws.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.methods.compute import Compute, ComputeContext, fedavg_compute, fedavg_passes
from coordinator.methods.spec import Costs, ObjectiveSpec, SubmodelRules
from edge.protocol.options.fjord import WIDTHS, FjordOptions, draw_rates, rates_within
from edge.protocol.payload import step_flops


def compute(context: ComputeContext) -> Compute:
    """A step of the drawn width for each batch, and with ``distil`` one of p_max before it."""
    share, plan = context.variant.share, fedavg_compute(context)
    rates = rates_within(context.part_flops, share)
    if len(rates) < 2:
        return plan
    costs = {rate: step_flops(context.part_flops[rate]) for rate in rates}
    widest, narrower = 0, dict.fromkeys(rates[1:], 0.0)
    step_rates = draw_rates(context.rng(WIDTHS), rates, context.plan.steps)
    for examples, rate in zip(context.batches, step_rates, strict=True):
        if rate == share or context.options.distil:
            widest += examples
        if rate != share:
            narrower[rate] += examples * costs[rate]
    passes = widest * fedavg_passes(context.blocks)
    return replace(plan, passes=passes, further_flops=sum(narrower.values()), narrower_flops=narrower)


SPEC = ObjectiveSpec(
    name="fjord",
    title="ordered dropout: widths drawn for each step",
    source="Horvath et al., NeurIPS 2021",
    options=FjordOptions,
    neutral="submodel.rate = 1",
    client="edge.methods.fjord:FjordUpdate",
    submodels=SubmodelRules(
        trains_narrower=True,
        has_own_statistics=lambda options: options.statistics == "width",
    ),
    costs=Costs(compute=compute),
)
