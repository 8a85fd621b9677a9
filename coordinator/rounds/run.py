"""One run: what every round policy is made of. Never torch, never a socket.

`FederatedRun` knows how to prepare a visit, have visits trained, score the model and commit a round; the policies in
`coordinator.rounds.synchronous` decide when each of these happens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.server import Download, Model, ServerStrategy, check_partial_shapes
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
from coordinator.methods.spec import Options
from coordinator.records import names
from coordinator.records.checkpoints import Arrays, CheckpointStore
from coordinator.records.round_record import NOT_EVALUATED, RoundRecord
from coordinator.records.store import FAILED, Ledger, RoundRow
from coordinator.rounds import evaluation
from coordinator.rounds.budget import Budget, ClientLimits, Cost
from coordinator.rounds.cohort_training import CohortTraining
from coordinator.rounds.evaluation import Evaluation
from coordinator.rounds.policy import RoundPolicy
from coordinator.rounds.visit import PlannedVisit
from coordinator.workers.task import PoolTask, Reply, Stopped, TaskGroup, Workers
from costmodel.visits.work import Work, nominal_bytes, nominal_bytes_plain, nominal_flops
from edge.protocol import client_state, codec, messages
from edge.protocol.config import Job, ModelProfile, TrainingPlan
from edge.protocol.fixed_point import not_summable
from edge.protocol.payload import INPUT_GRADIENT, ITEM_NBYTES, MODEL, Payload, Shapes, Vector, sha256, shapes, vectors

if TYPE_CHECKING:  # the clock brings SimPy, which this package runs but never loads
    from costmodel.clock import Clock

PROGRESS = "progress"
"""Of a checkpoint's arrays: server steps so far, visits begun so far, and whether the model has been scored."""


class RunFailed(RuntimeError):  # noqa: N818 - it says what happened, and is raised to say just that
    """The run cannot go on; the text says what, where and why."""


@dataclass(frozen=True)
class RoundFinished:
    """What the user is shown after each round."""

    row: RoundRow
    rounds: int
    """Server steps so far."""
    bytes_down: int
    """In the whole run."""
    bytes_up: int
    alphas: Mapping[int, int]
    """How many visits got which alpha in this round; empty for methods that choose none."""


@dataclass(frozen=True)
class RunTotals:
    """How far a run has come, as its ledger has it."""

    rounds: int = 0
    """Server steps."""
    virtual_seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    model_sha256: str = ""
    """Of the model; empty before the first commit."""


@dataclass(frozen=True)
class PendingCommit:
    """A round that has ended: all that its commit needs but the score, which may still be under way."""

    rows: RoundRecord
    scoring: Evaluation | None
    rounds: int
    """Server steps so far"""
    virtual_seconds: float
    model: Model
    model_sha256: str
    vectors: Mapping[str, NDArray[np.generic]]
    """What a checkpoint holds beside the model"""
    stopped_by: str | None
    """The rule that ends the run here, whatever the score"""


@dataclass
class FederatedRun:
    """The parts of one run, put together by the runner."""

    job: Job
    method: Method
    options: Options
    description: ModelProfile
    server: ServerStrategy
    workers: Workers
    clock: Clock
    budget: Budget
    ledger: Ledger
    folder: Path
    rules: RoundPolicy
    eval_every: int
    on_round: Callable[[RoundFinished], None]
    is_stopped: Callable[[], bool] = lambda: False
    """Whether the user has asked for an end"""
    faults: UpdateChecks = field(default_factory=UpdateChecks)
    """What becomes of updates that cannot be used, and of visits that no worker can train"""
    refused: Mapping[int, str] = field(default_factory=dict)
    """client -> why it can take no part, such as a device that the model does not fit"""
    rounds: int = 0
    visits: int = 0
    """Begun so far."""
    scored: bool = True
    """Whether the model as it stands has been scored; the initial one need not be."""
    committed: RunTotals = field(default_factory=RunTotals)
    """How far the ledger is"""
    uncommitted: Mapping[int, str] = field(default_factory=dict)
    """client -> file name of what it has kept since the last commit, where it may be visited again before the next"""
    taken_up: Arrays | None = None
    """The checkpoint of a run that goes on, where its policy has to find the way back to it
    (`coordinator.records.history_replay`)"""

    def __post_init__(self) -> None:
        self.archive = CheckpointStore(self.ledger, self.folder)

    # --- before a visit -------------------------------------------------------------------------------------------

    @cached_property
    def candidates(self) -> list[int]:
        """Clients that hold data and can train the model."""
        return [int(k) for k in np.flatnonzero(self.description.samples) if int(k) not in self.refused]

    def check_stop(self) -> None:
        """Stopped if the user has asked for an end; policies ask wherever they may be long without their workers."""
        if self.is_stopped():
            raise Stopped

    def eligible(self, candidates: Sequence[int], round: int) -> list[int]:
        """Those whose batteries and budgets pay for another visit, if it began after ``round`` server steps."""
        if self.clock.fleet.battery_joules == math.inf and self.budget.limits.client == ClientLimits():
            return list(candidates)
        return [client for client in candidates if self.clock.has_power(client) and self._affords(client, round)]

    def _affords(self, client: int, round: int) -> bool:
        if self.budget.limits.client == ClientLimits():
            return True
        visit = self.prepare(client, round)
        return self.budget.admits(client, self.uncontended_cost(visit))

    def uncontended_cost(self, visit: PlannedVisit) -> Cost:
        """What a visit that began now would spend if nobody else used the links."""
        clock = self.clock
        conditions = clock.conditions([visit.client], self.rounds, visit.number if self.is_asynchronous else None)
        timeline = clock.solve([clock.now], [visit.work], conditions)
        return visit.cost(float(timeline.joules_spent[0]), float(timeline.seconds(math.inf)[0]))

    def prepare(self, client: int, round: int, turn: int | None = None) -> PlannedVisit:
        """What a training visit to this client would be; changes nothing. ``turn`` is the round by default."""
        dispatch = self.server.download(client, round)
        row, blocks, choice = self.method.objective, len(self.description.layout), dispatch.choice
        held = int(self.description.samples[client])
        plan = self.job.train.plan(held)
        passes = row.pass_counts(blocks, self.options, choice) * plan.samples
        passes = passes + row.once_per_visit_pass_counts(blocks, self.options, choice) * held
        work = Work(
            codec.train_nbytes(self.job.run_id, tuple(choice), shapes(dispatch.payload)),
            self._bytes_up,
            float((passes * self.description.flops).sum()),
            plan.steps,
        )
        alpha, tau = row.nominal_alpha(blocks, self.options, choice), row.nominal_period(self.options)
        model = self.description.layout.nbytes()
        return PlannedVisit(
            self.visits,
            round if turn is None else turn,
            round,
            self.job.train.lr_in(self.rounds),
            dispatch,
            "train",
            work,
            plan,
            nominal_bytes_plain(model) if tau is None else nominal_bytes(alpha, blocks, tau, model),
            nominal_flops(alpha, blocks, plan.samples, self.plain_flops),
        )

    def prepare_download_only(self, client: int, round: int) -> PlannedVisit:
        """A visit that only downloads the whole model."""
        whole = self.server.select(self.description.layout.keys())
        choice = dict.fromkeys(self.method.objective.choices, 0)
        work = Work(codec.train_nbytes(self.job.run_id, tuple(choice), shapes(whole)), 0, 0.0)
        nominal = float(self.description.layout.nbytes())
        dispatch = Download(client, whole, choice)
        return PlannedVisit(
            self.visits, round, round, 0.0, dispatch, "listen", work, TrainingPlan(0, 0, 0), nominal, 0.0
        )

    @cached_property
    def up_shapes(self) -> Shapes:
        """Shapes of what one client sends, corrections' slots among them."""
        return self.server.up_shapes()

    @cached_property
    def _bytes_up(self) -> int:
        return codec.update_nbytes(self.job.run_id, self.job.reports, self.up_shapes)

    @cached_property
    def plain_flops(self) -> float:
        """FLOPs of an ordinary training step per example."""
        flops = self.description.flops
        return float(flops.sum() - flops[0, INPUT_GRADIENT])

    @property
    def is_asynchronous(self) -> bool:
        """Whether visits begin and end one by one."""
        return self.server.setup.asynchronous

    # --- training and scoring -------------------------------------------------------------------------------------

    def submit(
        self,
        visits: Sequence[PlannedVisit],
        heard: Callable[[messages.Update], None],
        shares: Mapping[int, float] | None = None,
    ) -> TaskGroup:
        """Have these visits really trained, the longest first; ``heard`` gets each reply as it comes, unchecked.

        ``shares``: client -> its part of the mean, with which its worker adds the update up; the order then collects.
        """

        def hear(task: PoolTask, reply: Reply) -> None:
            assert isinstance(reply, messages.Update)
            heard(reply)

        longest_first = sorted(visits, key=lambda visit: (-visit.work.flops, visit.client))
        given, base = shares or {}, dict(self.server.model)
        tasks = [self._task(visit, given.get(visit.client, 0.0), base) for visit in longest_first]
        return self.workers.submit(tasks, hear)

    def _task(self, visit: PlannedVisit, share: float, base: Model) -> PoolTask:
        dispatch = visit.dispatch
        message = messages.Train(visit.client, visit.rng_round, visit.lr, dispatch.choice, dispatch.payload)
        state_out = str(self.archive.state(visit.state_name)) if self.has_client_state else None
        turns, flops = self.server.setup.numbering, visit.work.flops
        # what is refused in the pool ends its worker; where runs go on without a bad update, it is judged instead
        up = self.up_shapes if self.faults.on_bad_update == "stop" else None
        may_fail = self.faults.on_bad_client == "skip"
        kept = None if self._keeps_slots else {MODEL: self.description.layout.shapes(self.job.kept_blocks)}
        reach = self.reach(visit)
        return PoolTask(
            message,
            self.client_state_name(visit.client),
            state_out,
            turns,
            flops,
            share,
            up,
            kept,
            reports=frozenset(self.job.reports),
            unfit=lambda update, kept: self._unfit(update, kept, visit, base, reach),
            unfit_sums=lambda totals, part: sums_too_far(self.faults, totals, part, base, reach),
            may_fail=may_fail,
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
        self, update: messages.Update, kept: Payload, visit: PlannedVisit, base: Model, reach: Reach
    ) -> str | None:
        """Why what another machine sends of a visit cannot be true or be used, or None."""
        whose = f"client {visit.client}, {self.server.setup.numbering} {visit.rng_round}"
        for slot, key, vector in vectors(kept):
            problem = not_summable(vector.data, math.inf)
            if problem is not None:
                return f"{whose}: of what the client keeps, {slot}/{key} {problem}"
        return (
            unusable(self.faults, self.server, update, base, reach)
            or too_far(self.faults, f"{whose}: what the client keeps", kept, base, reach)
            or self._wrong_flops(update, visit)
        )

    def train(self, visits: Sequence[PlannedVisit]) -> CohortTraining:
        """Have these visits really trained, and their replies folded into the server's next step."""
        return CohortTraining(self, visits)

    def validate(self, reply: messages.Update, visit: PlannedVisit, base: Model) -> tuple[str, messages.Update]:
        """As `coordinator.aggregation.update_checks.validate`. RunFailed where a fault ends the run."""
        try:
            kind, judged = validate(self.faults, self.server, reply, visit, base, self.reach(visit))
        except InvalidUpdate as error:
            raise RunFailed(f"update refused: {error}") from None
        if kind != FAILED and (problem := self._wrong_flops(reply, visit)):
            raise RunFailed(problem)
        return kind, judged

    def _wrong_flops(self, reply: messages.Update, visit: PlannedVisit) -> str | None:
        counted, foreseen = reply.numbers["flops"], visit.work.flops
        if math.isclose(counted, foreseen, rel_tol=1e-9):
            return None
        whose = f"client {reply.client}, {self.server.setup.numbering} {reply.round}"
        return f"{whose}: executed {counted:.6g} FLOPs, but the row of {self.method.name} foresees {foreseen:.6g}"

    def accept_partial(self, totals: messages.Totals, visits: Sequence[PlannedVisit]) -> None:
        """Hand the server what workers have added up of these visits; RunFailed if it cannot be used."""
        reach = max((self.reach(visit) for visit in visits), key=lambda each: each.scale)
        problem = check_partial_shapes(self.server, totals) or sums_too_far(
            self.faults, totals, 1.0, self.server.model, reach
        )
        if problem is not None:
            raise RunFailed(f"updates refused: round {self.rounds}: {problem}")
        self.server.accumulate_partial(totals)

    def step(self) -> None:
        """The server's step. RunFailed if its model is not finite: such a one is never committed."""
        self.server.step()
        for key, vector in self.server.model.items():
            problem = not_summable(vector.data, math.inf)
            if problem is not None:
                raise RunFailed(f"round {self.rounds}: after the server's step, {MODEL}/{key} {problem}")

    def client_state_name(self, client: int) -> str | None:
        """The file of what a client has kept; None if it has kept nothing yet."""
        return self.archive.client_state_path(client, self.uncommitted)

    @property
    def has_client_state(self) -> bool:
        """Whether clients keep anything between visits."""
        return bool(self.job.kept_blocks) or self._keeps_slots

    @property
    def _keeps_slots(self) -> bool:
        return any(part.has_client_state for part in self.method.parts)

    def evaluate(self, kept: Mapping[int, str]) -> Evaluation:
        """Ask for the score: of the global model on the test set, or the mean over clients of each one's own.

        ``client_state_name``: client -> file name of what it kept since the last commit.
        """
        if self.method.objective.evaluated == "clients":
            files = partial(self.archive.client_state_path, later=kept)
            return evaluation.evaluate_clients(self.workers, self.server, self.description, files)
        count = self.job.scored(self.description.test_count)
        return evaluation.evaluate_global_model(self.workers, self.server, self.description, self.job.eval_batch, count)

    def evaluate_if_due(self, kept: Mapping[int, str], is_last: bool) -> Evaluation | None:
        """Ask for the model's score after a server step, if it is its turn or the last."""
        self.scored = is_last or self.rounds % self.eval_every == 0
        return self.evaluate(kept) if self.scored else None

    def late_evaluation(self) -> Evaluation | None:
        """Ask for the score of a model that no further step will change, if it has none."""
        late = None if self.scored else self.evaluate({})
        self.scored = True
        return late

    # --- the commit -----------------------------------------------------------------------------------------------

    def close_round(
        self, rows: RoundRecord, scoring: Evaluation | None, stopped_by: str | None = None, more: Arrays | None = None
    ) -> PendingCommit:
        """A round has ended; what comes after it no longer changes what will be committed.

        ``more``: what the checkpoint is to hold beside the model and what server side and clock remember.
        """
        self.uncommitted = rows.kept
        vectors = {f"server|{key}": np.array(array) for key, array in self.server.state().items()}
        vectors |= {f"clock|{key}": np.array(array) for key, array in self.clock.state().items()}
        vectors |= {PROGRESS: np.array([self.rounds, self.visits, self.scored]), **(more or {})}
        return PendingCommit(
            rows,
            scoring,
            self.rounds,
            self.clock.now,
            dict(self.server.model),
            self.model_sha256(),
            vectors,
            stopped_by,
        )

    def commit_when_evaluated(self, ending: PendingCommit) -> str | None:
        """Wait for the score and commit the round; returns the rule that stops the run, or None."""
        scored = NOT_EVALUATED if ending.scoring is None else ending.scoring.wait()
        row = ending.rows.round_row(ending.virtual_seconds, scored, ending.model_sha256)
        reached = self.budget.reached(ending.rounds, scored[0])
        stopped_by = reached or ending.stopped_by
        # A row that is no server step was added because the run had ended.
        ended_by = stopped_by if ending.rounds > row.round else ending.stopped_by or reached
        self.commit(replace(ending, stopped_by=ended_by), row)
        self._say(ending, row)
        return stopped_by

    def commit(self, ending: PendingCommit, row: RoundRow) -> None:
        """Put a round down for good, with all that a run needs to go on from its end."""
        checkpoint = {f"model|{key}": vector.data for key, vector in ending.model.items()} | dict(ending.vectors)
        self.archive.commit(ending.rows, row, checkpoint, ending.stopped_by)

    def restore(self, arrays: Arrays) -> None:
        """Set the model, and what the server side remembers, to a checkpoint's."""
        model = _under("model|", arrays)
        named = {key: Vector(np.asarray(model[key], np.float32)) for key in self.server.model}
        self.server.restore(named, _under("server|", arrays))

    def clock_state(self, arrays: Arrays) -> dict[str, NDArray[np.float64]]:
        """What the clock remembers in a checkpoint."""
        return {key: np.asarray(array, np.float64) for key, array in _under("clock|", arrays).items()}

    def _say(self, ending: PendingCommit, row: RoundRow) -> None:
        down, up = self.committed.bytes_down + row.bytes_down, self.committed.bytes_up + row.bytes_up
        self.committed = RunTotals(ending.rounds, ending.virtual_seconds, down, up, row.model_sha256)
        alphas: dict[int, int] = {}
        for choice in ending.rows.choices:
            alphas[choice.alpha] = alphas.get(choice.alpha, 0) + 1
        self.on_round(RoundFinished(row, ending.rounds, down, up, alphas))

    def store_broadcast(self, listeners: Sequence[PlannedVisit]) -> dict[int, str]:
        """Let clients that only listened keep the whole model they were sent, and all else that they kept before.

        Where nothing else is kept, one file serves them all. Returns client -> file name.
        """
        if not listeners or not self.has_client_state:
            return {}
        sent, round = listeners[0].dispatch.payload[MODEL], listeners[0].rng_round
        whole: Payload = {MODEL: {key: sent[key] for key in self.job.kept_blocks}}
        if not self._keeps_slots:
            name = names.of_listeners(round)
            client_state.write(str(self.archive.state(name)), whole)
            return {visit.client: name for visit in listeners}
        for visit in listeners:
            before = client_state.read(self.client_state_name(visit.client))
            client_state.write(str(self.archive.state(visit.state_name)), before | whole)
        return {visit.client: visit.state_name for visit in listeners}

    def model_sha256(self) -> str:
        """The hash of the global model."""
        return sha256({MODEL: self.server.model})


def _under(prefix: str, arrays: Arrays) -> dict[str, NDArray[np.generic]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
