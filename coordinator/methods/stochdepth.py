"""Stochastic depth: each step leaves out the bodies of drawn residual units. The server is FedAvg's.

Huang, Sun, Liu, Sedra and Weinberger, Deep Networks with Stochastic Depth, ECCV 2016, https://arxiv.org/abs/1603.09382;
as a regulariser of local training in Mendieta et al., Local Learning Matters: Rethinking Data Heterogeneity in
Federated Learning, CVPR 2022, https://arxiv.org/abs/2111.14213 (FedAlign). The client side is
`edge.methods.stochdepth`.

L: residual units; p_ℓ: probability that unit ℓ of 1..L keeps its body in a step. A visit's clock, budgets and joules
are those of the drawn units: the compute plan repeats the client's draws.
"""

from __future__ import annotations

from dataclasses import replace

from coordinator.methods.compute import Compute, ComputeContext, fedavg_compute
from coordinator.methods.spec import Costs, ModelChange, ObjectiveSpec, Records
from edge.protocol.config import ModelProfile
from edge.protocol.options.stochdepth import DRAWS, StochasticDepthOptions, keep_probabilities


def compute(context: ComputeContext) -> Compute:
    """FedAvg's training without the bodies that the client's draws leave out."""
    keep = keep_probabilities(len(context.unit_flops), context.options.keep_last, context.options.schedule)
    rng, saved = context.rng(DRAWS), 0.0
    for examples in context.batches if len(keep) else ():
        saved += examples * float(context.unit_flops[rng.random(len(keep)) >= keep].sum())
    return replace(fedavg_compute(context), further_flops=-saved)


def note(profile: ModelProfile, options: StochasticDepthOptions) -> str | None:
    """Of a model without residual units."""
    if len(profile.unit_blocks) or options.keep_last == 1:
        return None
    return "the model has no residual units to leave out, so that it trains as FedAvg; take a ResNet"


SPEC = ObjectiveSpec(
    name="stochdepth",
    title="stochastic depth",
    source="Huang et al., ECCV 2016; Mendieta et al., CVPR 2022",
    options=StochasticDepthOptions,
    neutral="keep_last = 1",
    client="edge.methods.stochdepth:StochasticDepthUpdate",
    model=ModelChange(
        wrap_model=lambda options: None if options.keep_last == 1 else "edge.methods.stochdepth:with_keep_probabilities"
    ),
    costs=Costs(compute=compute),
    records=Records(note=note),
)
