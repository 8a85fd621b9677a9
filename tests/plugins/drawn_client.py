"""Client sides of `tests.plugins.drawn`."""

from __future__ import annotations

import torch
from torch import Tensor

from edge.protocol.payload import Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import Batches, ClientUpdate, Step, VisitContext
from tests.plugins.drawn import MOST_FORWARDS


class DrawnForwards(ClientUpdate):
    """FedAvg, with a drawn number of further forward passes of each batch."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        super().begin(net, down, state, visit)
        self.draws = visit.rng("drawn")

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            for _ in range(int(self.draws.integers(MOST_FORWARDS))):
                net.run(x)
        return super().loss(net, x, y)


class TwoPhases(ClientUpdate):
    """FedAvg's training, twice."""

    def train(self, net: BlockModel, batches: Batches, step: Step) -> None:
        for _ in range(2):
            super().train(net, batches, step)
