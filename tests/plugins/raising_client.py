"""A client side that raises an error in training."""

from __future__ import annotations

from torch import Tensor

from edge.training.block_model import BlockModel
from edge.training.client_update import ClientUpdate


class Untrained(ClientUpdate):
    """Its loss is none."""

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        """LookupError."""
        raise LookupError("no loss")
