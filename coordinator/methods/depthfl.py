"""DepthFL: clients train the first blocks of the model, each block with a classifier, and classifiers teach each other.

Kim, Yu, Kim and Moon, DepthFL: Depthwise Federated Learning for Heterogeneous Clients, ICLR 2023,
https://openreview.net/forum?id=pf8RIZTMU58; its options follow the author's code, Flower's baseline
(https://github.com/adap/flower, baselines/depthfl). Which part a client has is said by the scenario's table
``submodel``: with rate r the first ⌈r·D⌉ of the D depths, and nothing else is sent, stored or trained. The client side
is `edge.methods.depthfl`, exits are `edge.training.exits`; the server takes the mean of each block over the clients
that hold it, by default unweighted, as that code does. The paper's DepthFL also has FedDyn's terms, which need the
whole model; this is FedAvg with exits, and with ``distil`` = false the paper's DepthFL (FedAvg).
"""

from __future__ import annotations

from msgspec import structs

from coordinator.methods.moon import PRICED_CLASSES
from coordinator.methods.spec import ModelChange, ObjectiveSpec, Refusals, SubmodelRules
from edge.protocol.options.depthfl import STEM, DepthFLOptions
from edge.protocol.payload import Layout


def layout_with_exits(layout: Layout, options: DepthFLOptions) -> Layout:
    """The layout with exits, for the prices of methods: of a ResNet with GroupNorm, whose stages double the channels.

    The exits' FLOPs, 4 % of a ResNet-18's, are not in these prices.
    """
    if options.exits == "none":
        return layout
    *stages, last, head = layout.blocks
    features = channels = head.params // PRICED_CLASSES - 1
    made, convolutions = [head, last], 0
    for block in reversed(stages):
        channels //= 2
        # (9 + channels + 2) and (9 + 2·channels) weights for each channel, and 2 for each of 2·channels outputs.
        convolutions += 3 * channels**2 + 24 * channels
        numbers = PRICED_CLASSES * (channels + 1)
        if options.exits == "convolutional":
            numbers = convolutions + PRICED_CLASSES * (features + 1)
        made.append(block if block.name == STEM else structs.replace(block, params=block.params + numbers))
    return Layout(tuple(reversed(made)))


SPEC = ObjectiveSpec(
    name="depthfl",
    title="the first blocks, with classifiers that teach each other",
    source="Kim, Yu, Kim and Moon, ICLR 2023",
    options=DepthFLOptions,
    neutral='exits = "none", with uniform weights',
    client="edge.methods.depthfl:DepthFLUpdate",
    weights="uniform",
    model=ModelChange(
        wrap_model=lambda options: None if options.exits == "none" else "edge.training.exits:with_exits",
        wrapped_layout=layout_with_exits,
    ),
    submodels=SubmodelRules(by="depth"),
    refusals=Refusals(kinds=("image", "features", "series")),
)
