"""The client sides of `tests.plugins.broken`."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from edge.training.block_model import BlockModel
from edge.training.client_update import ClientUpdate


class Unseeded(ClientUpdate):
    """Its loss depends on the worker that happens to train the visit."""

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy times a factor of this process."""
        return super().loss(net, x, y) * (1 + (os.getpid() % 1000) / 1000)


class Unforeseen(ClientUpdate):
    """Runs each batch forward once more than its spec says."""

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        """FedAvg's."""
        with torch.no_grad():
            net.run(x)
        return super().loss(net, x, y)
