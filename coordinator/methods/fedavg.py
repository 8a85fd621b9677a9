"""FedAvg: local SGD and the clients' mean. The base classes of both sides implement it.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017,
https://arxiv.org/abs/1602.05629
"""

from __future__ import annotations

from coordinator.methods.spec import ObjectiveSpec
from edge.protocol.options.base import Options

SPEC = ObjectiveSpec(
    name="fedavg",
    title="federated averaging",
    source="McMahan et al., AISTATS 2017",
    options=Options,
    takes_losses=lambda options: True,
    neutral="is FedAvg",
)
