"""Each client gets a model of its own: the mean of its last update and of its peers' mean.

After Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data (FedAMP), AAAI 2021,
https://arxiv.org/abs/2007.03797, with fixed weights. The server stores each client's last update; a download takes
arithmetic over all of them, so it is built when it is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
from pydantic import Field

from coordinator.aggregation.server import Download, Models, ServerStrategy
from coordinator.methods.spec import ModelEvaluation, ObjectiveSpec
from coordinator.records.client_vectors import StoredVectors
from edge.protocol.messages import Update
from edge.protocol.options.base import Options
from edge.protocol.payload import MODEL, Payload, Shapes, Vector

LAST = "last"
OWN = "own"


class PeerOptions(Options):
    """u_i = (1 - w) w_i + w mean_j w_j over the clients that have uploaded."""

    peers: float = Field(default=0.5, ge=0, le=1, title="w")
    """Weight of the mean over all clients; 0 trains each client alone."""


class PeerServer(ServerStrategy):
    """Stores updates and mixes downloads."""

    options: PeerOptions

    def store_shapes(self) -> Shapes:
        """The last update of each client."""
        return {LAST: self.setup.layout.shapes(self.setup.up)}

    def start_model(self, client: int) -> Models:
        """The client's last update, which its next one replaces."""
        return {OWN: self.store.get(client, LAST) or self.setup.initial_models[0]}

    def targets(self, update: Update) -> Mapping[str, str]:
        """Its own model."""
        return {MODEL: OWN}

    def download_shapes(self, client: int, round: int, choice: Mapping[str, int]) -> Shapes:
        """As the model, without building it."""
        return {MODEL: self.setup.layout.shapes(self.setup.down)}

    def download(self, client: int, round: int) -> Download:
        """A mix that is built later, of the updates until now."""
        return Download(client, {}, build=partial(self._mix, self.store.view(), client))

    def evaluation_model(self, client: int) -> Payload:
        """The client's mix."""
        return self.download(client, 0).built()

    def evaluation_shapes(self, client: int) -> Shapes:
        """As the model, without building it."""
        return self.download_shapes(client, 0, {})

    def _mix(self, stored: StoredVectors, client: int) -> Payload:
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

    def accumulate(self, reply: Update) -> None:
        """Store the update."""
        self.store.put(reply.client, LAST, reply.payload[MODEL])


SPEC = ObjectiveSpec(
    name="peers",
    title="a mix of models per client",
    source="after Huang et al., AAAI 2021",
    options=PeerOptions,
    neutral="none",
    server=PeerServer,
    evaluation=ModelEvaluation(on="clients", has_global_model=False),
)
