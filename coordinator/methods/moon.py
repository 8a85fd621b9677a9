"""MOON: each client's representation is pulled to the received model's, and away from that of its own previous model.

Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021, https://arxiv.org/abs/2103.16257, with FedAlign's
projections (Mendieta et al., CVPR 2022, https://arxiv.org/abs/2111.14213). The client side is `edge.methods.moon`, the
server FedAvg's.

A projection of two layers comes between the pooled features and the classifier; it is sent and averaged like all else.
MOON's code lets gradients of both other models be computed, which nothing uses; here they only run forward, as far as
the projection.
"""

from __future__ import annotations

from coordinator.methods.compute import Compute, ComputeContext, fedavg_passes, trained
from coordinator.methods.spec import Costs, ModelChange, ObjectiveSpec, numbers_of_model
from edge.protocol.options.moon import PROJECTION, MoonOptions
from edge.protocol.payload import FORWARD, BlockShape, Layout

PRICED_CLASSES = 100
"""Of the model that methods are priced for (`projected_layout`)"""


def compute(context: ComputeContext) -> Compute:
    """FedAvg's training, and two more models forward up to the projection."""
    passes = fedavg_passes(context.blocks)
    if context.options.weight:
        passes[:-1, FORWARD] += 2
    return trained(context, passes)


def wrapped_blocks(names: tuple[str, ...], options: MoonOptions) -> tuple[str, ...]:
    """The projection is before the head."""
    return (*names[:-1], PROJECTION, names[-1])


def projected_layout(layout: Layout, options: MoonOptions) -> Layout:
    """The layout with the projection, for the prices of methods, of which the model has `PRICED_CLASSES` classes."""
    *trunk, head = layout.blocks
    features = head.params // PRICED_CLASSES - 1
    out = min(options.projection, features)
    projection = BlockShape(PROJECTION, (features + 1) * (features + out))
    return Layout((*trunk, projection, BlockShape(head.name, PRICED_CLASSES * (out + 1))))


def state_numbers(layout: Layout, options: MoonOptions) -> int:
    """The client's previous model."""
    return numbers_of_model(layout, options) if options.weight else 0


SPEC = ObjectiveSpec(
    name="moon",
    title="contrast with the received and the client's previous model",
    source="Li, He and Song, CVPR 2021",
    options=MoonOptions,
    neutral="weight = 0, against FedAvg on the model with the projection",
    client="edge.methods.moon:MoonUpdate",
    client_state=state_numbers,
    model=ModelChange(
        wrap_model=lambda options: "edge.methods.moon:projected",
        wrapped_blocks=wrapped_blocks,
        wrapped_layout=projected_layout,
    ),
    costs=Costs(compute=compute),
)
