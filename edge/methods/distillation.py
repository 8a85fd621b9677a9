"""Base of the objectives with a frozen teacher: cross-entropy beside a term that compares the local model with it.

The teacher is where the visit starts, or another model that came down; it runs forward on each batch, without gradient,
and never changes. Where the term's weight is 0 no teacher is run, and what is left is FedAvg to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from edge.protocol.payload import Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import ClientUpdate, VisitContext


class DistillationUpdate(ClientUpdate):
    """ce_weight·CE + weight·(how far the local model is from the teacher).

    Subclasses can customise by overriding

    * ``begin``: which model is the teacher, and both weights for this visit;
    * ``compared``: how far the models are from each other, by default the divergence of their logits;
    * ``seen``: what of the logits is compared.
    """

    capturable = True
    """The teacher stays in its place, and all else that a step needs are options."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.weight: float = options["weight"]
        """Of the term; 0: no teacher is run."""
        self.ce_weight = 1.0

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Start as FedAvg does, with the teacher where the local model starts."""
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
            taught = self.teacher.run(x)
        return F.cross_entropy(logits, y), self.divergence(self.seen(taught, y), self.seen(logits, y))

    def seen(self, logits: Tensor, y: Tensor) -> Tensor:
        """What is compared of (batch, classes) logits: by default, all."""
        return logits

    def divergence(self, taught: Tensor, logits: Tensor) -> Tensor:
        """KL(σ_T(taught) ‖ σ_T(logits)), sum over classes and mean over the batch; times T² with ``kl_t2``."""
        temperature: float = self.options["temperature"]
        reference, local = (F.log_softmax(one / temperature, dim=1) for one in (taught, logits))
        value = F.kl_div(local, reference, log_target=True, reduction="batchmean")
        return value * temperature**2 if self.options["kl_t2"] else value
