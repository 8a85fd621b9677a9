"""Planned visits: the download, the price and the keys of a visit before it starts.

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
    """One visit before it starts."""

    number: int
    """In the order in which visits start"""
    rng_round: int
    """Key of the client's random streams and of its state's file, beside the client: the round, or in asynchronous
    policies the visit's number, since a client may be visited twice in a round"""
    round: int
    """Server steps before it starts"""
    lr: float
    dispatch: Download
    kind: str
    """``train`` or ``listen``"""
    price: VisitPrice

    @property
    def client(self) -> int:
        """The visited client."""
        return self.dispatch.client

    @property
    def work(self) -> Work:
        """Bytes, FLOPs and steps."""
        return self.price.work

    @property
    def plan(self) -> TrainingPlan:
        """Amount of local training."""
        return self.price.plan

    def numbered(self, number: int) -> PlannedVisit:
        """The same visit with this number."""
        return replace(self, number=number)

    def cost(self, joules: float, seconds: float) -> Cost:
        """Upper bound of its cost, with this energy and duration."""
        return Cost(self.work.bytes_down, self.work.bytes_up, self.work.flops, joules, seconds)

    @property
    def state_name(self) -> str:
        """The file of its client's state after it."""
        return names.of_visit(self.client, self.rng_round)
