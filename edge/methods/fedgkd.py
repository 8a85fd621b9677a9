"""FedGKD, client side: distillation from the mean of the server's last models.

Yao, Pan, Dai, Wan, Ding, Jin, Xu and Sun, Local-Global Knowledge Distillation in Heterogeneous Federated Learning with
Non-IID Data, 2021, https://arxiv.org/abs/2107.00051

CE(z_L, y) + w·T²·KL(σ_T(z_G) ‖ σ_T(z_L)), z_G being the teacher's logits. The teacher is downloaded in its own slot; if
the server averages one model, the teacher is the received model, which is FedAvg+KD in its additive form. w = 0 is
FedAvg.
"""

from __future__ import annotations

from edge.methods.distillation import DistillationUpdate
from edge.protocol.options.fedgkd import FedGKDOptions
from edge.protocol.payload import TEACHER, Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import VisitContext


class FedGKDUpdate(DistillationUpdate):
    """One visit under FedGKD, without client state."""

    options: FedGKDOptions

    capturable = True
    """Whether a visit has a teacher is a choice of the visit."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Freeze the model at the start of the visit, overlaid with the downloaded teacher."""
        if not visit.choice.get("distil", 1):
            self.weight = 0.0
        super().begin(net, down, state, visit)
        if self.weight:
            self.teacher.load(down.get(TEACHER, {}))
