"""HeteroFL and FedRolex, client side: FedAvg's training of a part of the model, with a masked cross-entropy.

Diao, Ding and Tarokh, ICLR 2021, https://arxiv.org/abs/2010.01264, section 4. The specs are
`coordinator.methods.heterofl` and `coordinator.methods.fedrolex`; parts are made by `edge.training.narrowed`.
"""

from __future__ import annotations

from torch import Tensor

from edge.protocol.options.heterofl import MaskedOptions
from edge.protocol.payload import Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import ClientUpdate, VisitContext


class MaskedUpdate(ClientUpdate):
    """One visit of a client that has a part of the model."""

    options: MaskedOptions

    capturable = True

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Start as FedAvg does, with the client's classes."""
        super().begin(net, down, state, visit)
        if self.options.mask:
            self.classes = net.logit_scratch("classes", (visit.class_counts > 0).astype(float))

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        """The loss; with a mask, of logits that are 0 for classes without examples."""
        outputs = net.run(x)
        return self.record_loss(net.criterion(outputs * self.classes if self.options.mask else outputs, y))
