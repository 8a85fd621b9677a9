"""MOON in short, as a user's method: a projection before the head, and a contrast of three models' projections.

Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021, https://arxiv.org/abs/2103.16257. The client side is
`tests.plugins.projected_client`.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from coordinator.methods.compute import Compute, ComputeContext, distillation_passes, trained
from coordinator.methods.spec import Costs, ModelChange, ObjectiveSpec, numbers_of_model
from edge.protocol.options.base import Options
from edge.protocol.payload import FORWARD

CLIENT = "tests.plugins.projected_client"


class ProjectedOptions(Options):
    """CE + μ·contrast of the projections of the local, the received and the previous model."""

    mu: float = Field(default=1.0, ge=0, title="μ")
    """Weight of the contrast; 0 is FedAvg on the projected model."""
    out: int = Field(default=16, ge=1)
    """Length of the projection."""


def compute(context: ComputeContext) -> Compute:
    """Two more models run forward up to the projection."""
    if not context.options.mu:
        return trained(context, distillation_passes(context.blocks, 0))
    passes = distillation_passes(context.blocks, context.blocks - 1)
    passes[:-1, FORWARD] += 1
    return trained(context, passes)


def wrapped_blocks(names: tuple[str, ...], options: ProjectedOptions) -> tuple[str, ...]:
    """The projection is before the head."""
    return (*names[:-1], "projection", names[-1])


SPEC = ObjectiveSpec(
    name="projected",
    title="model contrast",
    source="Li, He and Song, CVPR 2021",
    options=ProjectedOptions,
    neutral="mu = 0, against FedAvg on the projected model",
    client=f"{CLIENT}:ProjectedUpdate",
    client_state=numbers_of_model,
    model=ModelChange(wrap_model=lambda options: f"{CLIENT}:projected", wrapped_blocks=wrapped_blocks),
    costs=Costs(compute=compute),
)
PLAIN = replace(SPEC, name="plain", client="edge.training.client_update:ClientUpdate", client_state=None)
UNFORESEEN = replace(PLAIN, model=replace(PLAIN.model, wrapped_blocks=lambda names, options: names))
