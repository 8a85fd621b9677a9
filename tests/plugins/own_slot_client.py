"""The client side of `tests.plugins.own_slot`."""

from __future__ import annotations

from edge.protocol.payload import MODEL, Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import ClientUpdate, VisitContext


class OwnSlotUpdate(ClientUpdate):
    """FedAvg's, with another name for the upload."""

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """The trained model in the slot ``theta``."""
        up, state, numbers = super().end(net, visit)
        return {"theta": up[MODEL]}, state, numbers
