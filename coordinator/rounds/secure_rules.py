"""The rules of a run's secure aggregation: the protocol of a cohort, and who holds whose shares.

Holders of secagg+ stand beside each other on a ring that is drawn for each round (Bell et al., Secure Single-Server
Aggregation with (Poly)Logarithmic Overhead, CCS 2020).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.secure_aggregation import SecureAggregation
from edge.protocol.config import PrivacyConfig
from edge.protocol.rng import keyed_generator


@dataclass(frozen=True)
class SecureRules:
    """The facts that the secure aggregation of a run needs."""

    config: PrivacyConfig
    numbers: int
    """Numbers of an update"""
    seed: int
    invitation_nbytes: int = 0
    """Bytes of the message by which the server asks a client to take part, which opens its connection"""

    def protocol(self, clients: int) -> SecureAggregation:
        """The protocol of a cohort of so many."""
        config, kind = self.config, self.config.secagg
        assert kind is not None
        shares = clients
        if kind == "secagg+":
            shares = min(clients, config.secagg_shares or 2 * math.ceil(math.log2(max(clients, 2))) + 1)
        colluding = math.floor(config.secagg_colluding * clients) if kind == "lightsecagg" else 0
        quorum = max(math.ceil(config.secagg_quorum * shares - 1e-9), colluding + 1)
        return SecureAggregation(kind, clients, self.numbers + 1, shares, quorum, colluding, config.secagg_wire)

    def holders(self, clients: int, shares: int, round: int, station: int) -> NDArray[np.intp] | None:
        """(clients, shares) Places in the cohort of those that hold each client's shares, itself the first; None: all
        hold those of all."""
        if shares >= clients:
            return None
        ring = keyed_generator(self.seed, "secagg neighbours", round, station).permutation(clients)
        reach = (shares - 1) // 2
        ways = np.array([0, *range(-reach, 0), *range(1, shares - reach)])
        holders = np.empty((clients, shares), np.intp)
        holders[ring] = ring[(np.arange(clients)[:, None] + ways) % clients]
        return holders
