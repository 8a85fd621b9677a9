"""The options of FedFomo, one object for both of its sides, the names of its slots, and the weights of a mix."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edge.protocol.options.base import Options

PEER = "peer"
"""Slot ``peer{m}`` of a download has the m-th chosen model"""
WEIGHTS, CANDIDATES = "weights", "candidates"
"""Slot and key of an upload: (M_d + 1,) weights w_n of the downloaded models in their order, zeros, and last of the
client's own model; they may be negative, and are not normalised"""


class FedFomoOptions(Options):
    """The start of a visit is a mix of the client's own model and those of other clients."""

    peers: int = Field(default=5, ge=0, le=1000, title="M_d")
    """Number of models of other clients that a visit downloads; 0 trains each client alone."""
    explore: float = Field(default=0.3, ge=0, le=1, title="ε")
    """Probability that the models of a visit are drawn at random, at a client's first download of any."""
    explore_decay: float = Field(default=0.05, ge=0, le=1)
    """Decrease of that probability per visit of the client, down to 0."""


def mix_weights(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """(candidates,): negative weights as 0, and the others as parts of their sum; or all 0."""
    positive = np.maximum(weights, 0.0)
    total = positive.sum()
    return np.asarray(positive / total if total > 0 else positive)
