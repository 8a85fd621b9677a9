"""Training by the worker pool: tasks from visits, and validation of updates.

The trainer of every run that trains (`coordinator.rounds.ports.Trainer`).
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
"""Updates that a reorder buffer holds in memory, beyond one per worker"""


class PoolTrainer:
    """Trains the visits of one run. ``states`` is None if clients have no state."""

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
        """A reorder buffer whose overflow goes to a file of the run folder."""
        return ReorderBuffer(self.workers.size + SPARE_REPLIES, self.folder)

    def submit(
        self,
        visits: Sequence[PlannedVisit],
        on_update: Callable[[messages.Update], None],
        weights: Mapping[int, float] | None = None,
    ) -> TaskGroup:
        """Submit one task per visit, the longest first."""

        def on_reply(task: PoolTask, reply: Reply) -> None:
            assert isinstance(reply, messages.Update)
            on_update(reply)

        longest_first = sorted(visits, key=lambda visit: (-visit.work.flops, visit.client))
        base, up = dict(self.server.model), self.server.up_shapes()
        tasks = [self._task(visit, base, up, (weights or {}).get(visit.client, 0.0)) for visit in longest_first]
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
            # an update that the pool rejects ends its worker; a run that tolerates bad updates validates it itself
            up if self.checks.on_bad_update == "stop" else None,
            self._state_shapes,
            reports=self._reports,
            unfit=lambda update, state: self._invalid(update, state, visit, base, reach),
            unfit_sums=lambda totals, weight: sums_too_far(self.checks, totals, weight, base, reach),
            may_fail=self.checks.on_bad_client == "skip",
        )

    def reach(self, visit: PlannedVisit) -> Reach:
        """How far this visit can move the model."""
        return Reach(self._initial_norm, self._parameters, visit.lr * self.job.train.step_sum(visit.plan.steps))

    @cached_property
    def _state_shapes(self) -> Shapes | None:
        """The vectors of a client state; None if the method does not tell."""
        return None if self.method.keeps_slots else {MODEL: self.description.layout.shapes(self.job.kept_blocks)}

    @cached_property
    def _reports(self) -> frozenset[str]:
        return frozenset(self.job.reports)

    @cached_property
    def _parameters(self) -> int:
        return self.description.layout.nbytes() // ITEM_NBYTES

    @cached_property
    def _initial_norm(self) -> float:
        initial = self.server.setup.initial[MODEL].values()
        return math.sqrt(sum(float(np.square(vector.data.astype(np.float64)).sum()) for vector in initial))

    def _invalid(
        self, update: messages.Update, state: Payload, visit: PlannedVisit, base: Model, reach: Reach
    ) -> str | None:
        """Why a remote worker's update and client state of a visit are invalid, or None."""
        whose = f"client {visit.client}, {self.server.setup.numbering} {visit.rng_round}"
        for slot, key, vector in vectors(state):
            problem = not_summable(vector.data, math.inf)
            if problem is not None:
                return f"{whose}: client state: {slot}/{key} {problem}"
        return (
            unusable(self.checks, self.server, update, base, reach)
            or too_far(self.checks, f"{whose}: client state", state, base, reach)
            or self._wrong_flops(update, visit)
        )

    def validate(self, update: messages.Update, visit: PlannedVisit, base: Model) -> tuple[str, messages.Update]:
        """As `coordinator.aggregation.update_checks.validate`, with a check of FLOPs; RunFailed if the run ends."""
        try:
            kind, validated = validate(self.checks, self.server, update, visit, base, self.reach(visit))
        except InvalidUpdate as error:
            raise RunFailed(f"update rejected: {error}") from None
        if kind != FAILED and (problem := self._wrong_flops(update, visit)):
            raise RunFailed(problem)
        return kind, validated

    def _wrong_flops(self, update: messages.Update, visit: PlannedVisit) -> str | None:
        counted, predicted = update.numbers["flops"], visit.work.flops
        if math.isclose(counted, predicted, rel_tol=1e-9):
            return None
        whose = f"client {update.client}, {self.server.setup.numbering} {update.round}"
        return f"{whose}: executed {counted:.6g} FLOPs, but the spec of {self.method.name} predicts {predicted:.6g}"

    def accept_partial(self, totals: messages.Totals, visits: Sequence[PlannedVisit]) -> None:
        """Validate and accumulate the partial sums of these visits; RunFailed if they are invalid."""
        reach = max((self.reach(visit) for visit in visits), key=lambda reach: reach.scale)
        problem = check_partial_shapes(self.server, totals) or sums_too_far(
            self.checks, totals, 1.0, self.server.model, reach
        )
        if problem is not None:
            raise RunFailed(f"updates rejected: round {visits[0].round}: {problem}")
        self.server.accumulate_partial(totals)
