"""FedAvg+KD: the received model teaches local training. The server is FedAvg's.

The baseline of Kim, Kim and Han, ICML 2022, https://arxiv.org/abs/2207.06936, Table 2, which does not print weight or
temperature; the defaults are those of Flower's reproduction of FedMLB. The client side is `edge.methods.fedavg_kd`.
"""

from __future__ import annotations

from coordinator.methods.compute import teacher_compute
from coordinator.methods.spec import Costs, ObjectiveSpec
from edge.protocol.options.fedavg_kd import FedAvgKDOptions

SPEC = ObjectiveSpec(
    name="fedavg-kd",
    title="distillation from the received model",
    source="Hinton, Vinyals and Dean, 2015; as a baseline Kim, Kim and Han, ICML 2022",
    options=FedAvgKDOptions,
    neutral="weight = 0",
    client="edge.methods.fedavg_kd:FedAvgKDUpdate",
    costs=Costs(compute=teacher_compute),
)
