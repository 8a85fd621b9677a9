"""The server side of methods in which each client has a model of its own, whose last update the server stores.

What a client downloads, and what is made of the stored models, is the method's (`fedfomo`, `fedamp`). The client side
is `edge.methods.own_model`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coordinator.aggregation.server import LaterPayload, Models, ServerStrategy, VisitFeedback
from edge.protocol.messages import Update
from edge.protocol.payload import MODEL, Payload, Shapes

LAST = "last"
"""Slot of the server's store: the last update of a client"""
OWN = "own"
"""The model that a visit's update replaces, for checks of updates"""
ONE_WRITER = (
    "rounds.policy: {} stores each client's newest model as it is, and asynchronous policies would mix it with the "
    "client's model before, as if other clients had changed that since"
)


class PeerRow(NamedTuple):
    """The weight of one model in what a client was sent, or made of it."""

    round: int
    client: int
    peer: int
    """The client whose model it is; itself for its own"""
    weight: float


class OwnModelServer(ServerStrategy):
    """Stores updates; a client that has one has its model, and is sent no other to be evaluated."""

    def store_shapes(self) -> Shapes:
        """The last update of each client."""
        return {LAST: self.setup.layout.shapes(self.setup.up)}

    def start_model(self, client: int) -> Models:
        """The client's last update, which its next one replaces."""
        return {OWN: self.store.get(client, LAST) or self.setup.initial_models[0]}

    def targets(self, update: Update) -> Mapping[str, str]:
        """Its own model."""
        return {MODEL: OWN}

    def evaluation_model(self, client: int) -> Payload | LaterPayload:
        """Nothing: the client has its model; before its first update the initial one."""
        return {} if self.has_model(client) else self.initial()

    def accumulate(self, reply: Update) -> None:
        """Store the update."""
        self.store.put(reply.client, LAST, reply.payload.get(MODEL, {}))

    def has_model(self, client: int) -> bool:
        """Whether an update of the client is stored."""
        return (client, LAST) in self.store.view().names

    def initial(self) -> Payload:
        """The download of a client without an update."""
        return {MODEL: {key: self.setup.initial_models[0][key] for key in self.setup.down}}


def peer_rows(
    round: int, outcomes: Sequence[VisitFeedback], weights: Mapping[int, Mapping[int, float]]
) -> list[PeerRow]:
    """The positive weights of these visits; ``weights``: client -> peer -> weight."""
    return [
        PeerRow(round, outcome.dispatch.client, peer, weight)
        for outcome in outcomes
        for peer, weight in sorted(weights.get(outcome.dispatch.client, {}).items())
        if weight > 0
    ]
