"""Base of the objectives with a frozen teacher: cross-entropy and a term that compares the local model with it.

The teacher is the model at the start of the visit, or another downloaded model; it runs forward on each batch, without
gradient, and never changes. With weight 0 no teacher is run, and the objective is FedAvg's to the bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from edge.protocol.payload import Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import ClientUpdate, VisitContext


class DistillationUpdate(ClientUpdate):
    """ce_weight·CE + weight·(distance of the local model from the teacher).

    Subclasses can customise by overriding

    * ``begin``: the teacher and both weights of this visit;
    * ``compared``: the distance of the models, by default the divergence of their logits;
    * ``seen``: the logits that are compared.
    """

    capturable = True
    """The teacher's address is fixed, and steps depend on options alone."""

    options: Any
    """Those of the method, with ``weight``; where logits are compared, also with ``temperature`` and ``kl_t2``"""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.weight: float = options.weight
        """Weight of the term; 0: no teacher is run."""
        self.ce_weight = 1.0

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Start as FedAvg does, with a frozen copy of the local model as the teacher."""
        super().begin(net, down, state, visit)
        if self.weight:
            self.teacher = net.freeze()

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        """Both terms on the same batch; a weight of 1 changes no bit of the cross-entropy."""
        if not self.weight:
            return self.ce_weight * super().loss(net, x, y)
        cross_entropy, distance = self.compared(net, x, y)
        return self.ce_weight * self.record_loss(cross_entropy) + self.weight * distance

    def compared(self, net: BlockModel, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """(cross-entropy, distance from the teacher), scalars."""
        logits = net.run(x)  # (batch, classes)
        with torch.no_grad():
            teacher = self.teacher.run(x)
        return F.cross_entropy(logits, y), self.divergence(self.seen(teacher, y), self.seen(logits, y))

    def seen(self, logits: Tensor, y: Tensor) -> Tensor:
        """The compared part of (batch, classes) logits: by default, all."""
        return logits

    def divergence(self, teacher: Tensor, logits: Tensor) -> Tensor:
        """KL(σ_T(teacher) ‖ σ_T(logits)), sum over classes and mean over the batch; times T² with ``kl_t2``."""
        temperature: float = self.options.temperature
        reference, local = (F.log_softmax(values / temperature, dim=1) for values in (teacher, logits))
        value = F.kl_div(local, reference, log_target=True, reduction="batchmean")
        return value * temperature**2 if self.options.kl_t2 else value
