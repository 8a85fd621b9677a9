"""A visit whose local model is measured afterwards: it uploads the whole model, and nothing of it enters a run.

It trains exactly as the method's own client side, whatever that uploads.
"""

from __future__ import annotations

from torch import Tensor

from edge.protocol.messages import LOCAL_MODEL
from edge.protocol.payload import Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import Batches, ClientUpdate, Step, VisitContext


class MeasuredVisit(ClientUpdate):
    """The method's client side up to the end of training."""

    def __init__(self, own: ClientUpdate) -> None:
        super().__init__(own.options)
        self.own = own

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """As the method's."""
        self.own.begin(net, down, state, visit)

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        """As the method's."""
        return self.own.loss(net, x, y)

    def correct(self, net: BlockModel) -> None:
        """As the method's."""
        self.own.correct(net)

    def train(self, net: BlockModel, batches: Batches, step: Step) -> None:
        """As the method's."""
        self.own.train(net, batches, step)

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """The local model whole; no client state, no numbers."""
        return {LOCAL_MODEL: net.views(net.layout.sizes)}, {}, {}

    def prepare_score(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Load the local model of a visit before."""
        net.load(down[LOCAL_MODEL])
