"""FedAMP: each client has a model of its own, and is pulled to a mix of all clients' models that attends to like ones.

Huang, Chu, Zhou, Wang, Liu, Pei and Zhang, Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021,
https://arxiv.org/abs/2007.03797. The client side is `edge.methods.fedamp`.

The server stores w_i, the last upload of client i. Client i downloads its personal cloud model

    u_i = Σ_j ξ_ij w_j,    ξ_ij = α_k A'(‖w_i − w_j‖²) for j ≠ i,    ξ_ii = 1 − Σ_{j≠i} ξ_ij,    A(x) = 1 − exp(−x/σ)

and minimises f_i(w) + (λ/2α_k)·‖w − u_i‖². The heuristic form, the default, has ξ_ij ∝ exp(σ·cos(w_i, w_j)) and a fixed
ξ_ii, since raw distances of networks are so large that A' vanishes. The mix is over clients that have uploaded; before
its first upload a client downloads the initial model. w_i is evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.server import (
    LaterPayload,
    Model,
    ServerContext,
    ServerExtension,
    VisitFeedback,
)
from coordinator.methods.own_model import LAST, ONE_WRITER, OwnModelServer, PeerRow, peer_rows
from coordinator.methods.spec import MethodMap, ModelEvaluation, ObjectiveSpec, Records, Refusals, numbers_of_model
from coordinator.records.client_vectors import StoredVectors
from coordinator.records.schema import MethodTable
from edge.protocol.messages import Choice
from edge.protocol.options.fedamp import FedAMPOptions
from edge.protocol.payload import BUFFERS, MODEL, Payload, Vector


class FedAMPServer(OwnModelServer):
    """Stores updates, and mixes downloads."""

    options: FedAMPOptions

    def __init__(self, setup: ServerContext, extensions: Sequence[ServerExtension] = ()) -> None:
        super().__init__(setup, extensions)
        self._attention: dict[int, Mapping[int, float]] = {}
        """client -> weights of its newest download, from its building until its feedback"""

    def payload(self, client: int, round: int, choice: Choice) -> Payload | LaterPayload:
        """u_i, built later from the updates until now; the initial model before a client's first update."""
        if not self.has_model(client):
            return self.initial()
        one_model = {MODEL: self.setup.layout.shapes(self.setup.down)}
        return LaterPayload(one_model, partial(self._cloud_model, self.store.view(), client, round))

    def feedback(self, round: int, outcomes: Sequence[VisitFeedback]) -> Sequence[PeerRow]:
        """The weights of each download that was a mix."""
        clients = [outcome.dispatch.client for outcome in outcomes]
        return peer_rows(round, outcomes, {client: self._attention.pop(client, {}) for client in clients})

    def _cloud_model(self, stored: StoredVectors, client: int, round: int) -> Payload:
        """u_i. Reads the stored models one by one, twice, so that memory holds a few, however many there are."""
        weights = self._weights(stored, client, round)
        total = {key: np.zeros(size) for key, size in self.setup.layout.shapes(self.setup.down).items()}
        for peer, weight in weights.items():
            uploaded = self._of(stored, peer) if weight > 0 else {}
            for key in total.keys() & uploaded.keys():
                total[key] += weight * uploaded[key].data.astype(np.float64)
        self._attention[client] = weights
        return {MODEL: {key: Vector(numbers.astype(np.float32)) for key, numbers in total.items()}}

    def _weights(self, stored: StoredVectors, client: int, round: int) -> dict[int, float]:
        """client -> ξ_ij, of all clients that have uploaded, in ascending order."""
        options, clients = self.options, stored.clients(LAST)
        peers, own = [peer for peer in clients if peer != client], self._of(stored, client)
        if options.attention == "cosine":
            square, cosines = dot(own, own), np.zeros(len(peers))
            for index, peer in enumerate(peers):
                other = self._of(stored, peer)
                product = square * dot(other, other)
                cosines[index] = dot(own, other) / product**0.5 if product > 0 else 0.0
            of_own = 1 / len(clients) if options.self_weight is None else options.self_weight
            others = cosine_attention(cosines, options.sigma, of_own)
        else:
            squares = np.zeros(len(peers))  # ‖w_i − w_j‖² of parameters
            for index, peer in enumerate(peers):
                other = self._of(stored, peer)
                ways = (np.subtract(own[key].data, other[key].data, dtype=np.float64) for key in parameters(own))
                squares[index] = sum(float(np.square(way).sum()) for way in ways)
            alpha_k = options.alpha_k * options.alpha_decay ** (round // options.alpha_rounds)
            others = distance_attention(squares, options.sigma, alpha_k)
        weights = dict(zip(peers, others.tolist(), strict=True)) | {client: max(0.0, 1.0 - float(others.sum()))}
        return dict(sorted(weights.items()))

    def _of(self, stored: StoredVectors, client: int) -> Model:
        """The initial model with what the client uploaded."""
        return self.setup.initial_models[0] | (stored.get(client, LAST) or {})


def cosine_attention(cosines: NDArray[np.float64], sigma: float, self_weight: float) -> NDArray[np.float64]:
    """ξ_ij of the others, (peers,): proportional to exp(σ·cos), and 1 − ξ_ii in all."""
    if not len(cosines):
        return cosines
    powers = np.exp(sigma * (cosines - cosines.max()))
    return np.asarray((1 - self_weight) * powers / powers.sum())


def distance_attention(squares: NDArray[np.float64], sigma: float, alpha_k: float) -> NDArray[np.float64]:
    """ξ_ij of the others, (peers,): α_k·A'(‖w_i − w_j‖²), scaled down to a sum of 1 where that is exceeded."""
    weights = alpha_k * np.exp(-squares / sigma) / sigma
    return np.asarray(weights / max(1.0, float(weights.sum())))


def dot(one: Model, other: Model) -> float:
    """Of the parameters. Not by BLAS, whose sums depend on its threads."""
    products = (np.multiply(one[key].data, other[key].data, dtype=np.float64) for key in parameters(one))
    return sum(float(product.sum()) for product in products)


def parameters(model: Model) -> list[str]:
    """The keys of a model's parameters."""
    return [key for key in model if not key.endswith(BUFFERS)]


FIGURE = MethodMap(
    title="Attention to peers",
    text="The weight ξ of each peer's model (columns) in the model that a client (rows) is drawn to, as the mean over "
    "its visits in a part of the run.",
    across=("peer",),
    across_title="peer",
    value="weight",
    value_title="weight ξ",
)

SPEC = ObjectiveSpec(
    name="fedamp",
    title="attention between the clients' own models",
    source="Huang, Chu, Zhou, Wang, Liu, Pei and Zhang, AAAI 2021",
    options=FedAMPOptions,
    takes_losses=lambda options: True,
    neutral="none; lam = 0 trains each client alone",
    client="edge.methods.fedamp:FedAMPUpdate",
    server=FedAMPServer,
    client_state=numbers_of_model,
    individual_updates=lambda options: True,
    evaluation=ModelEvaluation(on="clients", has_global_model=False),
    records=Records(table=MethodTable("fedamp", PeerRow), figure=FIGURE),
    refusals=Refusals(
        tiers="the server makes each client's model from those of all others",
        server_optimizers=("plain",),
        asynchronous=lambda options: ONE_WRITER.format("fedamp"),
    ),
)
