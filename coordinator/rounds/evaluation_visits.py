"""Evaluation visits: an evaluation on clients as it costs on their devices, where it is charged (``eval.charged``).

They are a second batch of visits of a synchronous round, which begins when the server has made its step and ends the
round. Each sends the client its model and the values back, and computes the forward passes and the adaptation. Visited
are the clients with examples that are available, have power, and whose visits the budgets can pay for. The evaluation
covers those whose visits end: not those whose clients are lost, or that are cut where the run's virtual seconds end.
Nothing is evaluated here (`coordinator.rounds.evaluation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from coordinator.records.round_record import RoundRecord
from coordinator.records.schema import EVALUATE, NOT_SCORED
from coordinator.rounds.budget import Cost
from coordinator.rounds.run import FederatedRun
from coordinator.rounds.visit import PlannedVisit

if TYPE_CHECKING:  # the clock brings SimPy, which this package runs but never loads
    from costmodel.fleet.conditions import Conditions
    from costmodel.visits.timeline import Timeline


def visit_for_evaluation(run: FederatedRun, record: RoundRecord) -> list[int] | None:
    """Visit clients for an evaluation that begins now, and advance the clock to its end.

    Returns the clients that are evaluated, in ascending order; None: all, since evaluations are not charged.
    """
    if run.charged_examples is None:
        return None
    with_examples = [int(client) for client in np.flatnonzero(run.charged_examples)]
    planned = [run.prepare_evaluation(client) for client in _present(run, with_examples)]
    affordable, _ = run.within_budgets(planned, lambda visits: _costs(run, record.round, visits))
    visits = run.numbered(affordable)
    if not visits:
        return []
    conditions, timeline = _timed(run, record.round, visits)
    ended = np.isfinite(timeline.up_end)
    run.clock.advance(_end(run, timeline))
    _account(run, record, visits, conditions, timeline)
    return [visit.client for visit in compress(visits, ended)]


def _present(run: FederatedRun, clients: Sequence[int]) -> list[int]:
    """Those of these clients that can be visited now."""
    clock, is_there = run.clock, run.clock.is_there
    if clock.now >= run.budget.ends_at:
        return []
    return [client for client in clients if clock.has_power(client) and (is_there is None or is_there(client))]


def _timed(run: FederatedRun, round: int, visits: Sequence[PlannedVisit]) -> tuple[Conditions, Timeline]:
    clock, works = run.clock, [visit.work for visit in visits]
    conditions = clock.conditions([visit.client for visit in visits], round, is_second=True)
    return conditions, clock.solve(np.full(len(visits), clock.now), works, conditions, run.budget.ends_at)


def _end(run: FederatedRun, timeline: Timeline) -> float:
    return min(float(timeline.end.max()), run.budget.ends_at)


def _costs(run: FederatedRun, round: int, visits: Sequence[PlannedVisit]) -> list[Cost]:
    conditions, timeline = _timed(run, round, visits)
    end = _end(run, timeline)
    joules = timeline.joules_spent + timeline.waiting_joules(end, conditions)
    return [
        visit.cost(float(energy), float(seconds))
        for visit, energy, seconds in zip(visits, joules, timeline.seconds(end), strict=True)
    ]


def _account(
    run: FederatedRun, record: RoundRecord, visits: Sequence[PlannedVisit], conditions: Conditions, timeline: Timeline
) -> None:
    """Record and charge all visits until now."""
    clock, now = run.clock, run.clock.now
    waiting = timeline.waiting_joules(now, conditions)
    kinds = [EVALUATE if ended else NOT_SCORED for ended in np.isfinite(timeline.up_end).tolist()]
    run.charge(record.add(visits, clock.fleet, timeline, kinds, now, waiting, up={}))
    clock.passed(conditions, timeline, waiting)
