"""FedFomo: each client downloads others' models, and mixes those that fit its validation examples into its own.

Zhang, Sapra, Fidler, Yeung and Alvarez, Personalized Federated Learning with First Order Model Optimization, ICLR 2021,
https://arxiv.org/abs/2012.08565. The client side is `edge.methods.fedfomo`.

The server stores the last upload θ_n of each client and preferences P. Client i downloads the M_d models with the
largest P_in; with probability ε, models drawn at random. Its weights are

    w_n = (L_i(θ_i^prev) − L_i(θ_n)) / (‖θ_n − θ_i^prev‖ + 1e-5)

for these and its own newest model θ_i, with L_i its loss on validation examples and θ_i^prev the start of its visit
before. It starts from θ_i + Σ w_n (θ_n − θ_i), where negative w_n count as 0 and the others are normalised to a sum of
1. It uploads its model and w; P_in grows by w_n as it was before that, which may be negative. A client's first visit
starts from the initial model. Its own newest model is evaluated. P ties are broken at random.

The authors' code (https://github.com/NVlabs/FedFomo) measures distances by the L1 norm where the paper has the L2 norm,
which is the one here; draws with probability ε for each downloaded model, and not once for all of a visit; lets ε fall
per round, and not per visit of the client; adds to P the weights over the absolute value of their sum; and starts from
θ_i^prev, and not from θ_i, if no weight is positive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from coordinator.aggregation.server import (
    LaterPayload,
    Models,
    ServerContext,
    ServerExtension,
    State,
    VisitFeedback,
)
from coordinator.methods.compute import Compute, ComputeContext, fedavg_compute, forward_passes
from coordinator.methods.own_model import LAST, ONE_WRITER, OwnModelServer, PeerRow, peer_rows
from coordinator.methods.spec import Costs, MethodMap, ModelEvaluation, ObjectiveSpec, Records, Refusals, Traffic
from coordinator.records.client_vectors import StoredVectors
from coordinator.records.schema import MethodTable
from edge.protocol.messages import Choice, Update
from edge.protocol.options.fedfomo import CANDIDATES, PEER, WEIGHTS, FedFomoOptions, mix_weights
from edge.protocol.payload import Layout, Payload
from edge.protocol.rng import keyed_generator

FIRST, PEERS = "first", "peers"
"""Numbers in a download: whether it is the initial model, and the number of peers' models"""


class FedFomoServer(OwnModelServer):
    """Stores updates and preferences, and sends models of peers."""

    options: FedFomoOptions

    def __init__(self, setup: ServerContext, extensions: Sequence[ServerExtension] = ()) -> None:
        super().__init__(setup, extensions)
        self.preferences: dict[int, dict[int, float]] = {}
        """P, by client and peer; what is missing is 0. Rows are replaced, never changed in place."""
        self.visits = np.zeros(len(setup.samples), np.int64)
        """(clients,) visits that counted"""
        self._weights: dict[int, dict[int, float]] = {}
        """client -> w of its update, until the round's feedback"""

    def up_shapes(self) -> dict[str, dict[str, int]]:
        """The model, and the weights if models are downloaded."""
        weights = {WEIGHTS: {CANDIDATES: self.options.peers + 1}} if self.options.peers else {}
        return super().up_shapes() | weights

    def choose(self, client: int, round: int) -> Choice:
        """The number of models."""
        if not self.has_model(client):
            return {FIRST: 1, PEERS: 0}
        # A model of which nothing is uploaded is nobody's to mix.
        stored = len(self.store.view().names)
        return {FIRST: 0, PEERS: min(self.options.peers, stored - 1) if self.setup.up else 0}

    def payload(self, client: int, round: int, choice: Choice) -> Payload | LaterPayload:
        """The peers' models, chosen and read later from what is known now."""
        if choice[FIRST]:
            return self.initial()
        if not choice[PEERS]:
            return {}
        uploaded = self.setup.layout.shapes(self.setup.up)
        slots = {f"{PEER}{index}": uploaded for index in range(choice[PEERS])}
        return LaterPayload(slots, partial(self._read, *self._known(client), client))

    def accumulate(self, reply: Update) -> None:
        """Store the update; its weights change P with the next step."""
        client = reply.client
        peers = self._chosen(*self._known(client), client) if self.choose(client, reply.round)[PEERS] else []
        super().accumulate(reply)
        weights = reply.payload[WEIGHTS][CANDIDATES].data.tolist() if peers else []
        self._weights[client] = dict(zip((*peers, client), (*weights[: len(peers)], *weights[-1:]), strict=False))

    def step(self) -> None:
        """P_in += w_n, for the clients with updates."""
        super().step()
        for client, weights in self._weights.items():
            row = self.preferences.get(client, {})
            added = {peer: row.get(peer, 0.0) + weight for peer, weight in weights.items() if peer != client and weight}
            self.preferences[client] = row | added
            self.visits[client] += 1

    def feedback(self, round: int, outcomes: Sequence[VisitFeedback]) -> Sequence[PeerRow]:
        """The positive weights of each visit's mix."""
        weights, self._weights = self._weights, {}
        mixes = {
            client: dict(zip(each, mix_weights(np.array([*each.values()])).tolist(), strict=True))
            for client, each in weights.items()
        }
        return peer_rows(round, outcomes, mixes)

    def state(self) -> State:
        """P as its entries, and the visits."""
        entries = sorted((client, peer, of) for client, row in self.preferences.items() for peer, of in row.items())
        clients, peers, values = zip(*entries, strict=True) if entries else ((), (), ())
        return super().state() | {
            "clients": np.array(clients, np.int64),
            "peers": np.array(peers, np.int64),
            "values": np.array(values, np.float64),
            "visits": self.visits.copy(),
        }

    def restore(self, models: Models, state: State) -> None:
        super().restore(models, state)
        self.preferences = {}
        for client, peer, value in zip(*(state[name].tolist() for name in ("clients", "peers", "values")), strict=True):
            self.preferences.setdefault(client, {})[peer] = value
        self.visits[:] = state["visits"]

    def _known(self, client: int) -> tuple[StoredVectors, Mapping[int, float], int]:
        """All that the choice of a client's peers depends on, as it is now."""
        return self.store.view(), self.preferences.get(client, {}), int(self.visits[client])

    def _read(self, stored: StoredVectors, preferences: Mapping[int, float], visits: int, client: int) -> Payload:
        peers = self._chosen(stored, preferences, visits, client)
        return {f"{PEER}{index}": stored.get(peer, LAST) or {} for index, peer in enumerate(peers)}

    def _chosen(self, stored: StoredVectors, preferences: Mapping[int, float], visits: int, client: int) -> list[int]:
        """The other clients with the largest preferences, or with probability ε any."""
        rng = keyed_generator(self.setup.seed, "fedfomo", visits, client)
        probability = self.options.explore - self.options.explore_decay * (visits - 1)
        others = [peer for peer in stored.clients(LAST) if peer != client]
        explores = rng.random() < probability
        shuffled = [others[index] for index in rng.permutation(len(others)).tolist()]
        if not explores:
            shuffled.sort(key=lambda peer: -preferences.get(peer, 0.0))
        return shuffled[: self.options.peers]


def possible_choices(blocks: int, clients: int, options: FedFomoOptions) -> Sequence[Choice]:
    """The initial model, or any number of peers' models."""
    most = min(options.peers, clients - 1)
    return [{FIRST: 1, PEERS: 0}, *({FIRST: 0, PEERS: peers} for peers in range(most + 1))]


def compute(context: ComputeContext) -> Compute:
    """FedAvg's training; the peers' models, the own one and the previous start forward over validation examples."""
    peers, training = context.choice[PEERS], fedavg_compute(context)
    forwards = context.validation * (peers + 2) if peers else 0
    return replace(training, passes=training.passes + forward_passes(context.blocks, forwards))


def state_numbers(layout: Layout, options: FedFomoOptions) -> int:
    """The client's own model, and the start of its visit before unless that is never needed."""
    return (2 if options.peers else 1) * sum(layout.sizes.values())


FIGURE = MethodMap(
    title="Peers",
    text="The weight that each client (rows) gave to the models of its peers (columns), as the mean over its visits in "
    "a part of the run; a model that it did not download has no cell.",
    across=("peer",),
    across_title="peer",
    value="weight",
    value_title="weight",
)

SPEC = ObjectiveSpec(
    name="fedfomo",
    title="first-order mixing of other clients' models",
    source="Zhang, Sapra, Fidler, Yeung and Alvarez, ICLR 2021",
    options=FedFomoOptions,
    takes_losses=lambda options: True,
    neutral="none; peers = 0 trains each client alone",
    client="edge.methods.fedfomo:FedFomoUpdate",
    server=FedFomoServer,
    client_state=state_numbers,
    individual_updates=lambda options: True,
    traffic=Traffic(
        down=lambda options: None,
        kept_blocks=lambda layout, down, options: (),
        choices=(FIRST, PEERS),
        possible_choices=possible_choices,
    ),
    costs=Costs(compute=compute),
    evaluation=ModelEvaluation(
        validation=0.2, uses_validation=lambda options: options.peers > 0, on="clients", has_global_model=False
    ),
    records=Records(table=MethodTable("fedfomo", PeerRow), figure=FIGURE),
    refusals=Refusals(
        tiers="the server sends clients the models of others, which are with other aggregators",
        server_optimizers=("plain",),
        asynchronous=lambda options: ONE_WRITER.format("fedfomo"),
    ),
)
