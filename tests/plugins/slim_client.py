"""The client side of `tests.plugins.slim`."""

from __future__ import annotations

from torch import Tensor

from edge.protocol.payload import FORWARD, Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import ClientUpdate, VisitContext
from tests.plugins.slim import VARIANTS


class SlimUpdate(ClientUpdate):
    """FedAvg, which counts passes of variants as if it made them."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        super().begin(net, down, state, visit)
        self.draws = visit.rng("variants")

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        variant = VARIANTS[self.draws.integers(len(VARIANTS))]
        net.add_flops(len(y) * float(self.visit.variants[variant][:, FORWARD].sum()))
        return super().loss(net, x, y)
