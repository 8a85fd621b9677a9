"""The client side of `tests.plugins.clusters`."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from edge.protocol.payload import Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import ClientUpdate, VisitContext


class ClusterUpdate(ClientUpdate):
    """Chooses the downloaded model with the smallest training loss; ties go to the lowest number."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Load and evaluate each model, then start from the best."""
        self.visit = visit
        names = [f"cluster{index}" for index in range(len(down))]
        self.cluster = int(np.argmin([self._loss(net, down, name) for name in names]))
        net.load(down[names[self.cluster]])

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """The update, and the number of its model."""
        up, state, numbers = super().end(net, visit)
        return up, state, numbers | {"cluster": float(self.cluster)}

    def _loss(self, net: BlockModel, down: Payload, name: str) -> float:
        net.load(down[name])
        with torch.no_grad():
            return sum(float(F.cross_entropy(net.run(x), y, reduction="sum")) for x, y in self.visit.local())
