"""One visit of one client as it is known before it begins: what is sent, what it costs, and what it is keyed by.

Nothing here is timed or trained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coordinator.aggregation.server import Download
from coordinator.records import names
from coordinator.rounds.budget import Cost
from coordinator.rounds.pricing import VisitPrice
from costmodel.visits.work import Work
from edge.protocol.config import TrainingPlan


@dataclass(frozen=True)
class PlannedVisit:
    """One visit as it is known beforehand."""

    number: int
    """In the order of the beginnings."""
    rng_round: int
    """What the client's random streams and the file of its state are keyed by, beside the client: the round, or in
    asynchronous policies the visit's number, since a client may be visited twice in a round."""
    round: int
    """Server steps before it began"""
    lr: float
    dispatch: Download
    kind: str
    """``train`` or ``listen``"""
    price: VisitPrice

    @property
    def client(self) -> int:
        """Whom it visits."""
        return self.dispatch.client

    @property
    def work(self) -> Work:
        """Bytes, FLOPs and steps."""
        return self.price.work

    @property
    def plan(self) -> TrainingPlan:
        """How much it trains."""
        return self.price.plan

    def numbered(self, number: int) -> PlannedVisit:
        """The same visit, once it is known how many begin before it."""
        return replace(self, number=number)

    def cost(self, joules: float, seconds: float) -> Cost:
        """What it spends at most, if it takes so much."""
        return Cost(self.work.bytes_down, self.work.bytes_up, self.work.flops, joules, seconds)

    @property
    def state_name(self) -> str:
        """The file of what its client keeps after it."""
        return names.of_visit(self.client, self.rng_round)
