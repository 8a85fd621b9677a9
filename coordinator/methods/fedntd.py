"""FedNTD (FedLS-NTD in FedMLB's tables): distillation over all classes but the true one. The server is FedAvg's.

Lee, Jeong, Shin, Bae and Yun, Preservation of the Global Knowledge by Not-True Distillation in Federated Learning,
NeurIPS 2022, https://arxiv.org/abs/2106.03097. The client side is `edge.methods.fedntd`.
"""

from __future__ import annotations

from coordinator.methods.compute import teacher_compute
from coordinator.methods.spec import Costs, ObjectiveSpec
from edge.protocol.options.fedntd import FedNTDOptions

SPEC = ObjectiveSpec(
    name="fedntd",
    title="not-true distillation (FedLS-NTD)",
    source="Lee, Jeong, Shin, Bae and Yun, NeurIPS 2022",
    options=FedNTDOptions,
    neutral="ce_weight = 1 and weight = 0",
    client="edge.methods.fedntd:FedNTDUpdate",
    costs=Costs(compute=teacher_compute),
)
