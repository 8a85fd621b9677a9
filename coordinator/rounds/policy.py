"""What a round policy is told: when a round is over, and how updates that come late to their model are used."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from pydantic import Field

from coordinator.rounds.quantities import Seconds
from edge.protocol.config import Also, Section

SynchronousPolicy = Literal["sync", "over_select", "deadline"]
AsynchronousPolicy = Literal["fedasync", "fedbuff"]
PolicyName = Literal[SynchronousPolicy, AsynchronousPolicy]
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
ASYNCHRONOUS: tuple[str, ...] = get_args(AsynchronousPolicy)


@dataclass(frozen=True)
class RoundPolicy(Section):
    """Who takes part, and for how long; some numbers are used by the policies named with them alone."""

    policy: PolicyName = "sync"
    """Who is waited for: everyone; the first ``participants`` of more; those in time; or nobody."""
    participants: Annotated[int, Field(ge=1), Also("cohort", "clients_per_round")] = 10
    """Clients per round; in fedasync and fedbuff, visits under way at a time."""
    max: Annotated[int, Field(ge=1), Also("num_rounds", "n_rounds", "rounds")] = 100
    """The run ends after so many rounds; in fedasync a round is ``participants`` updates."""
    over_select: Annotated[float, Field(ge=1, le=1e6), Also("overcommit", "over_commit")] = 1.3
    """over_select: so many times ``participants`` begin, and the first ``participants`` count."""
    deadline: Annotated[Seconds, Also("timeout")] = 270.0
    """deadline: from the beginning of the visits until they are broken off."""
    min_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    """deadline: a round in which a smaller share of the visits is done changes nothing."""
    mixing: Annotated[float, Field(gt=0, le=1)] = 0.6
    """fedasync: share of a fresh update in the new global model."""
    buffer: Annotated[int, Field(ge=1, le=1_000_000), Also("buffer_size")] = 10
    """fedbuff: updates per server step."""
    server_lr: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """fedbuff: factor on the mean of the buffered changes, weighted as the method's replies are."""
    staleness: Literal["constant", "hinge", "polynomial"] = "polynomial"
    """fedasync, fedbuff: how an update counts that was made from a model of s server steps ago."""
    staleness_power: Annotated[float, Field(ge=0, le=1e6)] = 0.5
    """a of (s + 1)^-a (polynomial) and 1 / (a (s - b) + 1) (hinge, for which FedAsync's authors take 10)."""
    staleness_from: Annotated[int, Field(ge=0)] = 4
    """b of the hinge: up to there an update counts in full."""

    @property
    def is_asynchronous(self) -> bool:
        """Whether visits begin and end one by one."""
        return self.policy in ASYNCHRONOUS

    @property
    def updates_per_step(self) -> int:
        """Updates that an asynchronous policy's server step needs."""
        return self.buffer if self.policy == "fedbuff" else 1

    @property
    def steps_per_round(self) -> int:
        """Server steps of a round of the ledger in an asynchronous policy."""
        return 1 if self.policy == "fedbuff" else self.participants

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
