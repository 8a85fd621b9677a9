"""The projection head and the client side of `tests.plugins.projected`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge.protocol.payload import Payload
from edge.training.block_model import BlockModel
from edge.training.blocks import Block
from edge.training.client_update import ClientUpdate, VisitContext
from tests.plugins.projected import ProjectedOptions

PREVIOUS = "previous"


def projected(blocks: list[Block], options: ProjectedOptions, classes: int, width: int | None) -> list[Block]:
    """Two linear layers before the head, which then reads the projection."""
    *body, (name, head) = blocks
    assert isinstance(head, nn.Linear)
    inputs, out = head.in_features, options.out
    layers = nn.Sequential(nn.Linear(inputs, inputs), nn.ReLU(), nn.Linear(inputs, out))
    return [*body, ("projection", layers), (name, nn.Linear(out, classes))]


class ProjectedUpdate(ClientUpdate):
    """One visit; the client state is its model after the last one."""

    options: ProjectedOptions

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        super().begin(net, down, state, visit)
        self.received, self.previous = net.freeze(), net.freeze(PREVIOUS)
        self.previous.load(state.get(PREVIOUS, {}))

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        if not self.options.mu:
            return super().loss(net, x, y)
        last = len(net) - 1
        z = net.run(x, 0, last)
        with torch.no_grad():
            others = [model.run(x, 0, last) for model in (self.received, self.previous)]
        similar = torch.stack([F.cosine_similarity(z, other) / 0.5 for other in others], dim=1)
        contrast = F.cross_entropy(similar, torch.zeros_like(y))
        return self.record_loss(F.cross_entropy(net.run(z, last), y)) + self.options.mu * contrast

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        up, state, numbers = super().end(net, visit)
        return up, state | {PREVIOUS: net.dump(net.layout.sizes)}, numbers
