"""MOON, client side: contrast of the local model's projections with the received and the client's previous model's.

Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021, https://arxiv.org/abs/2103.16257

CE + μ·ℓ with ℓ = −log(e^(s(z, z_g)/τ) / (e^(s(z, z_g)/τ) + e^(s(z, z_p)/τ))), s being the cosine similarity, and z,
z_g, z_p the projections of one batch by the local, the received and the previous local model. The client state is the
model as its last visit left it; before the first visit it is the received model, so that ℓ = ln 2 with a gradient of 0.
Both other models run forward without gradient, and never change. μ = 0 is FedAvg on the model with the projection.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge.protocol.options.moon import PROJECTION, MoonOptions
from edge.protocol.payload import Payload
from edge.training.block_model import BlockModel
from edge.training.blocks import Block
from edge.training.client_update import ClientUpdate, VisitContext
from edge.training.heads import cut_head

RECEIVED = "moon: received"
PREVIOUS = "previous"
"""Slot of the client state, and name of the frozen copy"""
SHORTEST = 1e-8
"""Length of a projection below which it has no direction, as in torch's ``cosine_similarity``"""


def projected(blocks: list[Block], options: MoonOptions, classes: int, width: int | None) -> list[Block]:
    """The model with the block ``projection`` (linear, ReLU, linear) between its features and its classifier.

    Its input is as long as the features, its output ``options.projection``, at most as long; the classifier's first
    layer takes that. Pooling and flattening stay in the block before. ValueError as of `cut_head`.
    """
    cut = cut_head(blocks)
    features, first = cut.features, cut.head[0]
    assert isinstance(first, nn.Linear)
    out = min(options.projection, features)
    layers = nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, out))
    if out != features:
        cut.head[0] = nn.Linear(out, first.out_features, bias=first.bias is not None)
    *trunk, (last, maps) = cut.trunk
    head = cut.head[0] if len(cut.head) == 1 else nn.Sequential(*cut.head)
    pooled = nn.Sequential(maps, *cut.joint) if cut.joint else maps
    return [*trunk, (last, pooled), (PROJECTION, layers), (cut.name, head)]


class MoonUpdate(ClientUpdate):
    """One visit; the client state is its model after the last one."""

    options: MoonOptions

    capturable = True
    """The copies' addresses are fixed, and steps depend on options alone."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Start as FedAvg does, with frozen copies of the received and of the previous model."""
        super().begin(net, down, state, visit)
        if self.options.weight:
            self.statistics: Literal["batch", "running"] = "batch" if self.options.auxiliary == "train" else "running"
            self.received, self.previous = (net.freeze(name, self.statistics) for name in (RECEIVED, PREVIOUS))
            self.previous.load(state.get(PREVIOUS, {}))

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy and contrast of one batch."""
        if not self.options.weight:
            return super().loss(net, x, y)
        head = len(net) - 1
        z = net.run(x, 0, head)  # (batch, projection)
        with torch.no_grad():
            received, previous = (model.run(x, 0, head) for model in (self.received, self.previous))
        cross_entropy = self.record_loss(F.cross_entropy(net.run(z, head), y))
        return cross_entropy + self.options.weight * contrast(z, received, previous, self.options.temperature)

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """The update, and the model, which the client keeps."""
        up, state, numbers = super().end(net, visit)
        return up, state | {PREVIOUS: net.views(net.layout.sizes)} if self.options.weight else state, numbers

    def prepare_score(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Load the model that a visit starts from."""
        super().begin(net, down, state, visit)


def contrast(z: Tensor, received: Tensor, previous: Tensor, temperature: float) -> Tensor:
    """Mean over the batch of ℓ, a scalar, for projections (batch, ..); similarities are computed in float32.

    ℓ = ln(1 + e^((s(z, previous) − s(z, received))/temperature)). The directions of both others are subtracted first,
    so that where they are equal no bit of the gradient changes.
    """
    local, near, far = (F.normalize(each.float().flatten(1), eps=SHORTEST) for each in (z, received, previous))
    return F.softplus((local * (far - near)).sum(1) / temperature).mean()
