"""Each client gets a model of its own: the mean of its last update and of its peers' mean.

After Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data (FedAMP), AAAI 2021,
https://arxiv.org/abs/2007.03797, with fixed weights. Unlike `fedamp` it runs without rounds, and evaluates the mixes.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from pydantic import Field

from coordinator.aggregation.server import LaterPayload
from coordinator.methods.own_model import LAST, OwnModelServer
from coordinator.methods.spec import ModelEvaluation, ObjectiveSpec
from coordinator.records.client_vectors import StoredVectors
from edge.protocol.messages import Choice
from edge.protocol.options.base import Options
from edge.protocol.payload import MODEL, Payload, Vector


class PeerOptions(Options):
    """u_i = (1 - w) w_i + w mean_j w_j over the clients that have uploaded."""

    peers: float = Field(default=0.5, ge=0, le=1, title="w")
    """Weight of the mean over all clients; 0 trains each client alone."""


class PeerServer(OwnModelServer):
    """Stores updates and mixes downloads."""

    options: PeerOptions

    def payload(self, client: int, round: int, choice: Choice) -> LaterPayload:
        """A mix that is built later, of the updates until now."""
        one_model = {MODEL: self.setup.layout.shapes(self.setup.down)}
        return LaterPayload(one_model, partial(self.mix, self.store.view(), client))

    def evaluation_model(self, client: int) -> LaterPayload:
        """The client's mix."""
        return self.payload(client, 0, {})

    def mix(self, stored: StoredVectors, client: int) -> Payload:
        """u_i, or before all updates the initial model."""
        peers, initial = stored.clients(LAST), self.setup.initial_models[0]
        if not peers:
            return {MODEL: initial}
        total = {key: np.zeros(size, np.float64) for key, size in self.setup.layout.sizes.items()}
        for peer in peers:
            for key, vector in (stored.get(peer, LAST) or {}).items():
                total[key] += vector.data
        own, weight = stored.get(client, LAST) or initial, self.options.peers
        mixed = {key: (1 - weight) * own[key].data + weight * total[key] / len(peers) for key in total}
        return {MODEL: {key: Vector(numbers.astype(np.float32)) for key, numbers in mixed.items()}}


SPEC = ObjectiveSpec(
    name="peers",
    title="a mix of models per client",
    source="after Huang et al., AAAI 2021",
    options=PeerOptions,
    neutral="none",
    server=PeerServer,
    evaluation=ModelEvaluation(on="clients", has_global_model=False),
)
