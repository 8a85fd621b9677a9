"""One visit of one client as it is known before it begins: what is sent, what it costs, and what it is keyed by.

Nothing here is timed or trained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coordinator.aggregation.server import Dispatch
from coordinator.records import names
from coordinator.rounds.budget import Cost
from costmodel.visits.work import Work
from edge.protocol.config import Plan


@dataclass(frozen=True)
class Visit:
    """One visit as it is known beforehand."""

    number: int
    """In the order of the beginnings."""
    turn: int
    """What the client's random streams and the file of its state are keyed by, beside the client: the round, or in
    asynchronous policies the visit's number, since a client may be visited twice in a round."""
    round: int
    """Server steps before it began"""
    lr: float
    dispatch: Dispatch
    kind: str
    """``train`` or ``listen``"""
    work: Work
    plan: Plan
    nominal_bytes: float
    nominal_flops: float

    @property
    def client(self) -> int:
        """Whom it visits."""
        return self.dispatch.client

    def numbered(self, number: int) -> Visit:
        """The same visit, once it is known how many begin before it."""
        return replace(self, number=number)

    def cost(self, joules: float, seconds: float) -> Cost:
        """What it spends at most, if it takes so much."""
        return Cost(self.work.bytes_down, self.work.bytes_up, self.work.flops, joules, seconds)

    @property
    def state_name(self) -> str:
        """The file of what its client keeps after it."""
        return names.of_visit(self.client, self.turn)
