"""HeteroFL: clients train the first channels of each layer, and the server averages element by element.

Diao, Ding and Tarokh, HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients,
ICLR 2021, https://arxiv.org/abs/2010.01264. Which part a client has is said by the scenario's table ``submodel``; the
client side is `edge.methods.heterofl`, the mean `coordinator.aggregation.submodels`.
"""

from __future__ import annotations

from coordinator.methods.spec import ObjectiveSpec, SubmodelRules, Traffic
from edge.protocol.options.heterofl import HeteroFLOptions
from edge.protocol.submodels import RATE

SPEC = ObjectiveSpec(
    name="heterofl",
    title="the first channels of each layer",
    source="Diao, Ding and Tarokh, ICLR 2021",
    options=HeteroFLOptions,
    neutral="submodel.rate = 1 and mask = false",
    client="edge.methods.heterofl:MaskedUpdate",
    traffic=Traffic(choices=(RATE,)),
    submodels=SubmodelRules(
        is_scaled=lambda options: options.scaler,
        masks_classes=lambda options: options.mask,
    ),
)
