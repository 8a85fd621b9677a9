"""A client side that raises an error in training."""

from __future__ import annotations

from torch import Tensor

from edge.protocol.payload import Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import ClientUpdate, VisitContext


class Untrained(ClientUpdate):
    """Its loss is none."""

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        """LookupError."""
        raise LookupError("no loss")


class Undeclared(ClientUpdate):
    """Gives a number that its spec does not name."""

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """FedAvg's, and a margin."""
        up, state, numbers = super().end(net, visit)
        return up, state, numbers | {"margin": 1.0}


class Counted(ClientUpdate):
    """Gives a number that the trainer counts."""

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """FedAvg's, and steps of its own."""
        up, state, numbers = super().end(net, visit)
        return up, state, numbers | {"steps": 1.0}
