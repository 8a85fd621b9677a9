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
from coordinator.methods.spec import ModelChange, ObjectiveSpec, Refusals, SubmodelRules, Traffic
from edge.protocol.options.depthfl import STEM, DepthFLOptions
from edge.protocol.payload import Layout
from edge.protocol.submodels import RATE


def layout_with_exits(layout: Layout, options: DepthFLOptions) -> Layout:
    """The layout with exits, for the prices of methods: of a ResNet, whose stages double the channels."""
    *stages, last, head = layout.blocks
    channels = head.params // PRICED_CLASSES - 1
    made = [head, last]
    for block in reversed(stages):
        channels //= 2
        added = 0 if block.name == STEM or not options.exits else PRICED_CLASSES * (channels + 1)
        made.append(structs.replace(block, params=block.params + added))
    return Layout(tuple(reversed(made)))


SPEC = ObjectiveSpec(
    name="depthfl",
    title="the first blocks, with classifiers that teach each other",
    source="Kim, Yu, Kim and Moon, ICLR 2023",
    options=DepthFLOptions,
    neutral="exits = false, with weights = uniform",
    client="edge.methods.depthfl:DepthFLUpdate",
    weights="uniform",
    traffic=Traffic(choices=(RATE,)),
    model=ModelChange(
        wrap_model=lambda options: "edge.training.exits:with_exits" if options.exits else None,
        wrapped_layout=layout_with_exits,
    ),
    submodels=SubmodelRules(by="depth"),
    refusals=Refusals(kinds=("image", "features", "series")),
)
