"""Visits really trained, by the worker pool: tasks made of visits, and updates judged.

This is the trainer of every run that trains (`coordinator.rounds.ports.Trainer`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from coordinator.aggregation.server import Model, ServerStrategy, check_partial_shapes
from coordinator.aggregation.update_checks import (
    InvalidUpdate,
    Reach,
    UpdateChecks,
    sums_too_far,
    too_far,
    unusable,
    validate,
)
from coordinator.methods.registry import Method
from coordinator.records.client_states import ClientStates
from coordinator.records.schema import FAILED
from coordinator.rounds.reorder_buffer import ReorderBuffer
from coordinator.rounds.run import RunFailed
from coordinator.rounds.visit import PlannedVisit
from coordinator.workers.task import PoolTask, Reply, TaskGroup, Workers
from edge.protocol import messages
from edge.protocol.config import Job, ModelProfile
from edge.protocol.fixed_point import not_summable
from edge.protocol.payload import ITEM_NBYTES, MODEL, Payload, Shapes, vectors

SPARE_REPLIES = 2
"""So many more replies than workers may wait in memory for their turn."""


class PoolTrainer:
    """Trains the visits of one run. ``states`` is None where clients keep nothing between visits."""

    def __init__(
        self,
        job: Job,
        method: Method,
        description: ModelProfile,
        server: ServerStrategy,
        workers: Workers,
        folder: Path,
        checks: UpdateChecks,
        states: ClientStates | None,
    ) -> None:
        self.job, self.method, self.description, self.server = job, method, description, server
        self.workers, self.folder, self.checks, self.states = workers, folder, checks, states

    def reorder_buffer(self) -> ReorderBuffer:
        """Updates in memory, a few more than there are workers; the others in a file of the run folder."""
        return ReorderBuffer(self.workers.size + SPARE_REPLIES, self.folder)

    def submit(
        self,
        visits: Sequence[PlannedVisit],
        on_update: Callable[[messages.Update], None],
        weights: Mapping[int, float] | None = None,
    ) -> TaskGroup:
        """One task per visit, the longest first."""

        def on_reply(task: PoolTask, reply: Reply) -> None:
            assert isinstance(reply, messages.Update)
            on_update(reply)

        longest_first = sorted(visits, key=lambda visit: (-visit.work.flops, visit.client))
        parts, base, up = weights or {}, dict(self.server.model), self.server.up_shapes()
        tasks = [self._task(visit, base, up, parts.get(visit.client, 0.0)) for visit in longest_first]
        return self.workers.submit(tasks, on_reply)

    def _task(self, visit: PlannedVisit, base: Model, up: Shapes, weight: float) -> PoolTask:
        dispatch, states, reach = visit.dispatch, self.states, self.reach(visit)
        return PoolTask(
            messages.Train(visit.client, visit.rng_round, visit.lr, dispatch.choice, dispatch.payload),
            None if states is None else states.newest(visit.client),
            None if states is None else str(states.path(visit.state_name)),
            self.server.setup.numbering,
            visit.work.flops,
            weight,
            # what is refused in the pool ends its worker; where runs go on without a bad update, it is judged instead
            up if self.checks.on_bad_update == "stop" else None,
            None if self.method.keeps_slots else {MODEL: self.description.layout.shapes(self.job.kept_blocks)},
            reports=frozenset(self.job.reports),
            unfit=lambda update, state: self._unfit(update, state, visit, base, reach),
            unfit_sums=lambda totals, part: sums_too_far(self.checks, totals, part, base, reach),
            may_fail=self.checks.on_bad_client == "skip",
        )

    def reach(self, visit: PlannedVisit) -> Reach:
        """How far this visit can lead."""
        moved = visit.lr * self.job.train.step_sum(visit.plan.steps)
        return Reach(self._initial_norm, self._parameters, moved)

    @cached_property
    def _parameters(self) -> int:
        return self.description.layout.nbytes() // ITEM_NBYTES

    @cached_property
    def _initial_norm(self) -> float:
        named = self.server.setup.initial[MODEL].values()
        return math.sqrt(sum(float(np.square(vector.data.astype(np.float64)).sum()) for vector in named))

    def _unfit(
        self, update: messages.Update, state: Payload, visit: PlannedVisit, base: Model, reach: Reach
    ) -> str | None:
        """Why what another machine sends of a visit cannot be true or be used, or None."""
        whose = f"client {visit.client}, {self.server.setup.numbering} {visit.rng_round}"
        for slot, key, vector in vectors(state):
            problem = not_summable(vector.data, math.inf)
            if problem is not None:
                return f"{whose}: of what the client keeps, {slot}/{key} {problem}"
        return (
            unusable(self.checks, self.server, update, base, reach)
            or too_far(self.checks, f"{whose}: what the client keeps", state, base, reach)
            or self._wrong_flops(update, visit)
        )

    def validate(self, update: messages.Update, visit: PlannedVisit, base: Model) -> tuple[str, messages.Update]:
        """As `coordinator.aggregation.update_checks.validate`, and FLOPs as the method foresees them."""
        try:
            kind, judged = validate(self.checks, self.server, update, visit, base, self.reach(visit))
        except InvalidUpdate as error:
            raise RunFailed(f"update rejected: {error}") from None
        if kind != FAILED and (problem := self._wrong_flops(update, visit)):
            raise RunFailed(problem)
        return kind, judged

    def _wrong_flops(self, update: messages.Update, visit: PlannedVisit) -> str | None:
        counted, foreseen = update.numbers["flops"], visit.work.flops
        if math.isclose(counted, foreseen, rel_tol=1e-9):
            return None
        whose = f"client {update.client}, {self.server.setup.numbering} {update.round}"
        return f"{whose}: executed {counted:.6g} FLOPs, but the row of {self.method.name} foresees {foreseen:.6g}"

    def accept_partial(self, totals: messages.Totals, visits: Sequence[PlannedVisit]) -> None:
        """RunFailed for sums of other shapes, and for sums that no honest training leads to."""
        reach = max((self.reach(visit) for visit in visits), key=lambda each: each.scale)
        problem = check_partial_shapes(self.server, totals) or sums_too_far(
            self.checks, totals, 1.0, self.server.model, reach
        )
        if problem is not None:
            raise RunFailed(f"updates rejected: round {visits[0].round}: {problem}")
        self.server.accumulate_partial(totals)
