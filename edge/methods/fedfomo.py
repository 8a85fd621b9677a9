"""FedFomo, client side: other clients' models are weighed by the client's validation loss, and mixed into its own.

Zhang, Sapra, Fidler, Yeung and Alvarez, Personalized Federated Learning with First Order Model Optimization, ICLR 2021,
https://arxiv.org/abs/2012.08565

w_n = (L(θ_prev) − L(θ_n)) / (‖θ_n − θ_prev‖ + 1e-5) for the downloaded models and the client's own newest model θ, with
θ_prev the start of its visit before. These are uploaded; for the mix, negative ones are 0, and the others are divided
by their sum. The visit starts from θ + Σ w_n (θ_n − θ), which is θ itself if no other model has a positive weight.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from edge.methods.own_model import OWN, OwnModelUpdate
from edge.protocol.options.fedfomo import CANDIDATES, PEER, WEIGHTS, FedFomoOptions, mix_weights
from edge.protocol.payload import MODEL, Payload, Vector
from edge.training.block_model import BlockModel
from edge.training.client_update import VisitContext, mean_loss

PREVIOUS = "previous"
"""Slot of the client state: θ_prev; that of θ is `OWN`"""
DISTANCE = 1e-5
"""Added to distances"""


class FedFomoUpdate(OwnModelUpdate):
    """One visit under FedFomo; the client keeps its model, and what the visit started from."""

    options: FedFomoOptions

    capturable = True

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        """Start from the mix; from the download before a client's first update."""
        peers = [named for slot, named in down.items() if slot.startswith(PEER)]
        own = state.get(OWN, {})
        super().begin(net, {MODEL: {**down.get(MODEL, {}), **own}}, state, visit)
        self.weights = np.zeros(self.options.peers + 1, np.float32)
        if peers:
            self.weights = self._weights(net, peers, own, state[PREVIOUS])
            self._mix(net, peers, own)
        self.start = net.dump(net.layout.sizes) if self.options.peers else {}

    def end(self, net: BlockModel, visit: VisitContext) -> tuple[Payload, Payload, dict[str, float]]:
        """The update with the weights; the client keeps its model and the start of this visit."""
        up, state, numbers = super().end(net, visit)
        if not self.options.peers:
            return up, state, numbers
        weights = {CANDIDATES: Vector(self.weights)}
        return up | {WEIGHTS: weights}, state | {PREVIOUS: self.start}, numbers

    def _weights(
        self, net: BlockModel, peers: list[dict[str, Vector]], own: dict[str, Vector], previous: dict[str, Vector]
    ) -> NDArray[np.float32]:
        """(M_d + 1,): w_n of the peers in their order, zeros, and last of the client's own model."""
        net.load(previous)
        before, loss = net.scratch("fedfomo: previous").copy_(net.flat), mean_loss(net, self.visit.validation)
        falls, distances = np.zeros(len(peers) + 1), np.zeros(len(peers) + 1)
        for index, candidate in enumerate((*peers, own)):
            net.load({**own, **candidate})
            falls[index] = loss - mean_loss(net, self.visit.validation)
            distances[index] = float(torch.linalg.vector_norm(net.flat - before))
        weights = np.zeros(self.options.peers + 1, np.float32)
        weights[[*range(len(peers)), -1]] = first_order_weights(falls, distances)
        return weights

    def _mix(self, net: BlockModel, peers: list[dict[str, Vector]], own: dict[str, Vector]) -> None:
        """Load θ + Σ w_n (θ_n − θ), for parameters and buffers."""
        net.load(own)
        own_flat, own_buffers = net.flat.clone(), net.buffers.clone()
        mixed, buffers = own_flat.clone(), own_buffers.clone()
        for weight, peer in zip(mix_weights(self.weights.astype(np.float64)).tolist(), peers, strict=False):
            if weight > 0:
                net.load({**own, **peer})
                mixed.add_(net.flat - own_flat, alpha=weight)
                buffers.add_(net.buffers - own_buffers, alpha=weight)
        net.flat.copy_(mixed)
        net.buffers.copy_(buffers)


def first_order_weights(falls: NDArray[np.float64], distances: NDArray[np.float64]) -> NDArray[np.float32]:
    """w_n, (candidates,): how far the loss falls per distance; 0 where that is not finite."""
    slopes = (falls / (distances + DISTANCE)).astype(np.float32)
    return np.where(np.isfinite(slopes), slopes, np.float32(0))
