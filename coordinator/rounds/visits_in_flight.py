"""Visits that begin and end one by one, of asynchronous policies and of Flower apps: prices, reservations, accounts.

A visit is priced on links without contention, since visits that begin later may slow it down. The price stays reserved
in the budgets until the visit ends, is cut, or has lost its client.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coordinator.records.round_record import RoundRecord
from coordinator.records.visit_columns import VisitColumns
from coordinator.rounds.budget import Budget, Cost
from coordinator.rounds.visit import PlannedVisit, upper_bounds

if TYPE_CHECKING:  # the clock brings SimPy, which this package runs but never loads
    from costmodel.clock import Clock, VisitEnded


def uncontended_cost(clock: Clock, visit: PlannedVisit, round: int, number: int | None = None) -> Cost:
    """The cost of a visit that starts now, on links without contention.

    ``round`` and ``number``: as of `Clock.conditions`.
    """
    conditions = clock.fleet.of_parts(clock.conditions([visit.client], round, number), [visit.price.rates])
    timeline = clock.solve([clock.now], [visit.work], conditions)
    (cost,) = upper_bounds([visit], timeline.joules_spent, timeline.seconds(math.inf))
    return cost


class VisitsInFlight:
    """The visits under way on a clock, one of a client at a time."""

    def __init__(self, clock: Clock, budget: Budget) -> None:
        self.clock, self.budget = clock, budget
        self._reserved: dict[int, Cost] = {}
        """Client -> price of its visit"""

    def reserve(self, client: int, cost: Cost) -> str | None:
        """Reserve the price of a client's visit; returns the rule that refuses it, or None."""
        _, refused_by = self.budget.reserve([cost])
        if refused_by is None:
            self._reserved[client] = cost
        return refused_by

    def begin(self, visits: Sequence[PlannedVisit], round: int) -> None:
        """Begin visits now whose prices are reserved; `Clock.next` returns each when it has ended."""
        beginning = []
        for visit in visits:
            conditions = self.clock.conditions([visit.client], round, visit.number)
            beginning.append((visit.work, self.clock.fleet.of_parts(conditions, [visit.price.rates])))
        for place, (visit, (work, conditions)) in enumerate(zip(visits, beginning, strict=True), 1):
            self.clock.begin(work, conditions, visit.client, beginning[place:])

    def ended(self, client: int) -> None:
        """A client's visit has ended, or has lost its client: nothing of it is reserved any more."""
        self.budget.release([self._reserved.pop(client)])

    def cut(self, client: int) -> VisitEnded:
        """Cut a client's visit now; returns its costs so far."""
        self.ended(client)
        return self.clock.cut(client)

    def account(
        self, record: RoundRecord, visit: PlannedVisit, ended: VisitEnded, kind: str, staleness: int, loss: float | None
    ) -> VisitColumns:
        """Record and charge a visit that has ended; returns its row."""
        added = record.add(
            [visit],
            self.clock.fleet,
            ended.timeline,
            [kind],
            self.clock.now,
            staleness=staleness,
            losses=[loss],
            conditions=ended.conditions,
        )
        self.budget.settle(added["client"], added.costs)
        self.clock.passed(ended.conditions, ended.timeline)
        return added
