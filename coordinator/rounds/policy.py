"""The round policy and its numbers: which visits count, when a round ends, and how stale updates are used."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from coordinator.rounds.budget import Seconds
from edge.protocol.config import Also, Section

SynchronousPolicy = Literal["sync", "over_select", "deadline"]
AsynchronousPolicy = Literal["fedasync", "fedbuff"]
PolicyName = Literal[SynchronousPolicy, AsynchronousPolicy]
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
ASYNCHRONOUS: tuple[str, ...] = get_args(AsynchronousPolicy)


@dataclass(frozen=True)
class RoundPolicy(Section):
    """A round policy. Fields whose text begins with names of policies are used by these alone."""

    policy: PolicyName = "sync"
    """Visits that a round waits for: all; the first ``participants`` of more; those in time; or none (asynchronous)."""
    participants: Annotated[int, Field(ge=1), Also("cohort", "clients_per_round")] = 10
    """Clients per round; in fedasync and fedbuff, visits in flight."""
    max: Annotated[int, Field(ge=1), Also("num_rounds", "n_rounds", "rounds")] = 100
    """The run ends after this many rounds; in fedasync a round is ``participants`` updates."""
    over_select: Annotated[float, Field(ge=1, le=1e6), Also("overcommit", "over_commit")] = 1.3
    """over_select: factor on ``participants``; this many visits start, and the first ``participants`` count."""
    deadline: Annotated[Seconds, Also("timeout")] = 270.0
    """deadline: from the start of the visits until they are interrupted."""
    min_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    """deadline: a round with a smaller fraction of visits in time changes nothing."""
    mixing: Annotated[float, Field(gt=0, le=1)] = 0.6
    """fedasync: mixing factor of an update without staleness."""
    buffer: Annotated[int, Field(ge=1, le=1_000_000), Also("buffer_size")] = 10
    """fedbuff: updates per server step."""
    server_lr: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    """fedbuff: factor on the weighted mean of the buffered changes."""
    staleness: Literal["constant", "hinge", "polynomial"] = "polynomial"
    """fedasync, fedbuff: discount of an update with a staleness of s server steps."""
    staleness_power: Annotated[float, Field(ge=0, le=1e6)] = 0.5
    """a of (s + 1)^-a (polynomial) and 1 / (a (s - b) + 1) (hinge, for which FedAsync's authors take 10)."""
    staleness_from: Annotated[int, Field(ge=0)] = 4
    """b of the hinge: updates up to this staleness are not discounted."""
    selection: Annotated[str, Also("sampler", "selector", "client_selection")] = "uniform"
    """Client selector (``fedbr list selections``), or ``module:ROW``."""
    selection_options: dict[str, Any] = field(default_factory=dict)
    """The client selector's options."""

    @property
    def is_asynchronous(self) -> bool:
        """Whether visits begin and end one by one."""
        return self.policy in ASYNCHRONOUS

    @property
    def updates_per_step(self) -> int:
        """Updates per server step in an asynchronous policy."""
        return self.buffer if self.policy == "fedbuff" else 1

    @property
    def steps_per_round(self) -> int:
        """Server steps per round of the ledger in an asynchronous policy."""
        return 1 if self.policy == "fedbuff" else self.participants

    @property
    def cohort(self) -> int:
        """Training visits that a synchronous round starts."""
        if self.policy != "over_select":
            return self.participants
        return math.ceil(round(self.over_select * self.participants, 9))

    @property
    def visits_per_round(self) -> int:
        """Training visits per round of the ledger if none is lost."""
        return self.buffer if self.policy == "fedbuff" else self.cohort

    def discount(self, staleness: int) -> float:
        """s(t - tau) of FedAsync (Xie, Koyejo, Gupta, Asynchronous Federated Optimization, 2019, section 5.2)."""
        if self.staleness == "constant":
            return 1.0
        if self.staleness == "polynomial":
            return float((staleness + 1) ** -self.staleness_power)
        excess = staleness - self.staleness_from
        return 1.0 if excess <= 0 else 1.0 / (self.staleness_power * excess + 1.0)
