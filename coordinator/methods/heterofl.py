"""HeteroFL: clients train the first channels of each layer, and the server averages element by element.

Diao, Ding and Tarokh, HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients,
ICLR 2021, https://arxiv.org/abs/2010.01264. Which part a client has is said by the scenario's table ``submodel``; the
client side is `edge.methods.heterofl`, the mean `coordinator.aggregation.submodels`.
"""

from __future__ import annotations

from coordinator.aggregation.block_exchange import EVERYTHING, PARAMETERS
from coordinator.methods.spec import Costs, ObjectiveSpec, SubmodelRules, Traffic
from edge.protocol.options.heterofl import HeteroFLOptions
from edge.protocol.payload import BUFFERS, MODEL, Layout, Shapes

STATIC = "static"


def sent(options: HeteroFLOptions) -> str:
    """Running statistics are sent unless they are static."""
    return PARAMETERS if options.statistics == STATIC else EVERYTHING


def statistics(layout: Layout, options: HeteroFLOptions) -> Shapes:
    """Shapes of the vectors that a client has added to the static statistics of its part."""
    sizes = {key: size for key, size in layout.sizes.items() if key.endswith(BUFFERS)}
    return {MODEL: sizes} if options.statistics == STATIC and sizes else {}


SPEC = ObjectiveSpec(
    name="heterofl",
    title="the first channels of each layer",
    source="Diao, Ding and Tarokh, ICLR 2021",
    options=HeteroFLOptions,
    takes_losses=lambda options: not options.mask,
    neutral="submodel.rate = 1, mask = false, and with BatchNorm statistics = running",
    client="edge.methods.heterofl:MaskedUpdate",
    traffic=Traffic(
        down=sent,
        up=sent,
        kept_blocks=lambda layout, down, options: (),
    ),
    costs=Costs(
        evaluation_forwards=lambda options: float(options.statistics == STATIC),
        evaluation_up=statistics,
    ),
    submodels=SubmodelRules(
        is_scaled=lambda options: options.scaler,
        is_static=lambda options: options.statistics == STATIC,
        masks_classes=lambda options: options.mask,
    ),
)
