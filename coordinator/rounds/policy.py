"""What a round policy is told: when a round is over, and how updates that come late to their model are used."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Staleness = Literal["constant", "hinge", "polynomial"]


@dataclass(frozen=True)
class RoundPolicy:
    """The round policy and its numbers; each is used by the policies named with it."""

    policy: str = "sync"
    participants: int = 1
    """Clients of a round; in asynchronous policies, visits under way at a time."""
    over_select: float = 1.3
    """over_select: so many times ``participants`` begin, and the first ``participants`` count."""
    deadline: float = 270.0
    """deadline: seconds from the beginning of the visits after which none counts."""
    min_fraction: float = 0.0
    """deadline: a round in which fewer of its visits are done changes nothing."""
    mixing: float = 0.6
    """fedasync: share of a fresh update in the new global model."""
    buffer: int = 10
    """fedbuff: updates per server step."""
    server_lr: float = 1.0
    """fedbuff: factor on the mean of the buffered changes, weighted as the method's replies are."""
    staleness: Staleness = "polynomial"
    """fedasync, fedbuff: how an update counts that was made from a model of s server steps ago."""
    staleness_power: float = 0.5
    """a of (s + 1)^-a (polynomial) and 1 / (a (s - b) + 1) (hinge, for which FedAsync's authors take 10)."""
    staleness_from: int = 4
    """b of the hinge, below which an update counts in full."""

    @property
    def cohort(self) -> int:
        """Clients that begin a round."""
        if self.policy != "over_select":
            return self.participants
        return math.ceil(round(self.over_select * self.participants, 9))

    @property
    def visits_per_round(self) -> int:
        """Training visits of a round of the ledger, where clients are there and nothing is lost."""
        return self.buffer if self.policy == "fedbuff" else self.cohort

    def discount(self, staleness: int) -> float:
        """s(t - tau) of FedAsync (Xie, Koyejo, Gupta, Asynchronous Federated Optimization, 2019, section 5.2)."""
        if self.staleness == "constant":
            return 1.0
        if self.staleness == "polynomial":
            return float((staleness + 1) ** -self.staleness_power)
        late = staleness - self.staleness_from
        return 1.0 if late <= 0 else 1.0 / (self.staleness_power * late + 1.0)
