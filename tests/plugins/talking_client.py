"""The client sides of `tests.plugins.talking`."""

from __future__ import annotations

import torch

from edge.protocol.payload import Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import ClientUpdate, GradientCorrection, VisitContext


class Talking(ClientUpdate):
    """FedAvg's visit with a pull to its start."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Logs what it got, and a tensor."""
        super().begin(net, down, state, visit)
        self.log("mu", visit.choice["mu"])
        self.log("norm", torch.linalg.vector_norm(net.flat))
        if visit.client == 0:
            self.log("first", float("inf"))


class AlsoTalking(GradientCorrection):
    """Changes nothing."""

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """Logs the client's number."""
        self.log("client-number", visit.client)
        return super().end(net, visit)
