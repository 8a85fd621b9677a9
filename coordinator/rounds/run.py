"""One run: the state and the services that every round policy needs. No torch, sockets or SQL.

`FederatedRun` prices visits, has the model evaluated when it is due, and closes rounds; the policies in
`coordinator.rounds.synchronous` and `coordinator.rounds.asynchronous` decide when. Training, evaluation and records are
behind ports (`coordinator.rounds.ports`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from coordinator.aggregation.download_codec import DownloadCodec
from coordinator.aggregation.level_schedule import LevelSchedule
from coordinator.aggregation.server import GLOBAL, NEVER, Download, ServerStrategy, payload_shapes
from coordinator.methods.registry import Method
from coordinator.privacy.accountant import Accountant, VisitCounts
from coordinator.records.client_states import ClientStates
from coordinator.records.round_record import NOT_EVALUATED, EvalResult, RoundRecord, logged_means, validation_score
from coordinator.records.schema import (
    DOWNLOAD_ONLY,
    EVALUATE,
    LEFTOVER,
    NO_TRAINING,
    EvaluationRow,
    Lengths,
    RoundRow,
    VisitRow,
)
from coordinator.records.visit_columns import VisitColumns
from coordinator.rounds.budget import EPSILON, Budget, Cost
from coordinator.rounds.policy import RoundPolicy
from coordinator.rounds.ports import (
    Arrays,
    Evaluator,
    PendingCommit,
    PendingEvaluation,
    Recorder,
    RunMemory,
    Trainer,
)
from coordinator.rounds.selection import ClientSelection, IdleClients, SelectionFailed
from coordinator.rounds.split import SplitModel
from coordinator.rounds.stations import Stations
from coordinator.rounds.visit import PlannedVisit, VisitPrice, VisitPricing, begins
from coordinator.rounds.visits_in_flight import uncontended_cost
from coordinator.workers.task import Stopped
from costmodel.visits.work import Work
from edge.protocol.codecs.update_codec import most_levels
from edge.protocol.config import Job, ModelProfile, TrainingPlan
from edge.protocol.fixed_point import not_summable
from edge.protocol.options.base import Options
from edge.protocol.payload import MODEL, Shapes

if TYPE_CHECKING:  # the clock brings SimPy, which this package runs but never loads
    from coordinator.rounds.secure_rules import SecureRules
    from coordinator.rounds.tiers import Tiers
    from costmodel.clock import Clock


SELECTOR = "selector|"
"""Prefix of the names of the client selector's arrays in a checkpoint"""
LEVELS_STATE = "levels|"
"""Prefix of the names of the arrays of `LevelSchedule`"""
HELD = "held|"
"""Prefix of the names of arrays of the versions that clients hold"""


VisitedClients = Callable[[], Sequence[int] | None]
"""Makes the evaluation visits, and gives the clients that they have evaluated; None: all, at no cost"""


class RunFailed(RuntimeError):  # noqa: N818 - named by what happened
    """The run cannot continue; the text says where and why."""


@dataclass(frozen=True)
class RoundFinished:
    """The progress that the user is shown after each round."""

    row: RoundRow
    rounds: int
    """Server steps so far"""
    bytes_down: int
    """In the whole run, as ``bytes_up``"""
    bytes_up: int
    chosen: Mapping[float, int]
    """Value of the method's progress column (`coordinator.methods.spec.ProgressColumn`) -> visits of this round, or
    rate of a part of the model -> training visits; empty for methods with neither"""
    logged: Mapping[str, float | None] = field(default_factory=dict)
    """As of `coordinator.records.round_record.logged_means`"""


@dataclass(frozen=True)
class RunTotals:
    """Totals of the committed rounds."""

    rounds: int = 0
    """Server steps"""
    virtual_seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    model_sha256: str = ""
    """Empty before the first commit"""


@dataclass(frozen=True)
class History:
    """The committed rounds of an asynchronous run, and its last checkpoint."""

    rounds: Sequence[RoundRow]
    visits: Sequence[VisitRow]
    method_rows: Sequence[object]
    """Rows of the method's own table, in the order of writing"""
    checkpoint: Arrays
    evaluations: Mapping[int, Sequence[EvaluationRow]] = field(default_factory=dict)
    """Round -> values of its evaluation by which the best round is chosen, if other than its accuracy"""
    payloads: Mapping[str, Lengths] = field(default_factory=dict)
    """Name -> lengths of the vectors of a message"""


@dataclass
class FederatedRun:
    """One run, put together by `scenarios.run.setup.Setup.federated`."""

    job: Job
    method: Method
    options: Options
    description: ModelProfile
    server: ServerStrategy
    clock: Clock
    trainer: Trainer
    evaluator: Evaluator
    recorder: Recorder
    states: ClientStates | None
    """None if clients have no state, or nothing is trained"""
    budget: Budget
    rules: RoundPolicy
    selection: ClientSelection
    downloads: DownloadCodec
    eval_every: int
    on_round: Callable[[RoundFinished], None]
    is_stopped: Callable[[], bool]
    """Whether the user has asked to stop"""
    cohort_levels: Mapping[int, int] = field(default_factory=dict)
    """client of the last cohort -> levels of its codec, where these change between visits"""
    refused: Mapping[int, str] = field(default_factory=dict)
    """client -> why it cannot take part, such as too little memory for the model"""
    privacy: Accountant | None = None
    """The accountant of runs with differential privacy"""
    secure: SecureRules | None = None
    """The rules of secure aggregation, in runs with it"""
    split: SplitModel | None = None
    """The model's cut, of runs in which a server trains its later blocks"""
    tiers: Tiers | None = None
    """The aggregators between clients and server, of runs with any"""
    charged_examples: NDArray[np.int64] | None = None
    """(clients,) examples that each client's model is evaluated on, if evaluations are charged as visits"""
    solves_for_bottlenecks: bool = True
    """Whether rounds on shared links are solved again to find their bottleneck, which else is the one foreseen"""
    rounds: int = 0
    visits: int = 0
    """Visits begun so far"""
    evaluated: bool = True
    """Whether the current model has been evaluated; the initial one need not be"""
    committed: RunTotals = field(default_factory=RunTotals)
    history: History | None = None
    """The past of a resumed asynchronous run, for `coordinator.records.history_replay`"""

    # --- before a visit -------------------------------------------------------------------------------------------

    @cached_property
    def stations(self) -> Stations:
        """Where visits end: the aggregators, or the server alone."""
        return self.tiers or Stations(self.clock, self.budget.ends_at)

    @cached_property
    def candidates(self) -> list[int]:
        """Clients that hold data and can train the model."""
        return [k for k in np.flatnonzero(self.description.samples).tolist() if k not in self.refused]

    def select(self, eligible: Sequence[int], is_there: Callable[[int], bool] | None = None) -> list[int]:
        """The cohort of the next round, in ascending order. RunFailed for an invalid choice.

        ``is_there``: where visits do not begin now, whether a client is available when its visit would.
        """
        clock, wanted = self.clock, self.rules.cohort
        with self._named_failure(SelectionFailed):
            cohort = self.selection.select(self.rounds, eligible, wanted, clock.now, is_there or clock.is_there)
        if self.levels is not None and cohort:
            self.cohort_levels = self.levels.of_cohort(self.server.aggregation_weights(cohort))
        return cohort

    @property
    def hides_cohorts(self) -> bool:
        """Whether a step of noise is made of an empty cohort, too, so that nobody learns that it was empty."""
        return self.privacy is not None and self.privacy.config.is_central and self.privacy.sampling == "poisson"

    @property
    def participation(self) -> VisitCounts:
        """The visits of clients so far, for the accountant."""
        history = self.selection.history
        return VisitCounts(self.rounds, history.visits, history.counted, history.steps)

    def allows_privacy(self, cohort: Sequence[int]) -> bool:
        """Whether ``budget.epsilon`` allows a round of these clients; otherwise notes what it lacks."""
        accountant = self.privacy
        if accountant is None or accountant.allows(self.participation, cohort):
            return True
        self.budget.lacks(EPSILON, len(cohort), accountant.after_round(self.participation, cohort))
        return False

    def take(self, idle: IdleClients) -> int | None:
        """The client of the next visit of an asynchronous policy; None if none is there. RunFailed as of `select`."""
        with self._named_failure(SelectionFailed):
            return self.selection.take(idle, self.rounds, self.visits, self.clock.now)

    @contextmanager
    def _named_failure(self, kind: type[ValueError] = ValueError) -> Iterator[None]:
        """Turn the failure of a plug-in into RunFailed with the round."""
        try:
            yield
        except kind as error:
            raise RunFailed(f"round {self.rounds + 1}: {error}") from error

    def check_stop(self) -> None:
        """Stopped if the user has asked to stop; called wherever a policy may compute long without its workers."""
        if self.is_stopped():
            raise Stopped

    def eligible(self, candidates: Sequence[int], round: int) -> list[int]:
        """Clients whose batteries and budgets can pay for a visit that starts after ``round`` server steps."""
        if self.clock.fleet.battery_joules == math.inf and not self.budget.limits_clients:
            return list(candidates)

        def can_pay(client: int) -> bool:
            if not self.budget.limits_clients:
                return True
            visit = self.prepare(client, round, self.visits if self.is_asynchronous else None)
            return self.budget.admits(client, self.uncontended_cost(visit))

        return [client for client in candidates if self.clock.has_power(client) and can_pay(client)]

    def uncontended_cost(self, visit: PlannedVisit) -> Cost:
        """Cost of a visit that starts now, on links without contention."""
        return uncontended_cost(self.clock, visit, self.rounds, visit.number if self.is_asynchronous else None)

    def prepare(self, client: int, round: int, rng_round: int | None = None) -> PlannedVisit:
        """Plan a training visit; changes nothing. ``rng_round`` is the round by default."""
        dispatch, encoded = self.downloads.planned(self.server.download(client, round))
        if client in self.cohort_levels:
            variant = structs.replace(dispatch.variant, levels=self.cohort_levels[client])
            dispatch = replace(dispatch, variant=variant)
        down, samples = dispatch.shapes, int(self.description.samples[client])
        rng_round = round if rng_round is None else rng_round
        choice, variant = dispatch.choice, dispatch.variant
        since = int(self.selection.history.downloaded[client])
        charged = self.server.charged(down, since)
        price = self.pricing.train(choice, charged, samples, client, rng_round, encoded, variant)
        if self.job.model.base == "download" and since == NEVER:
            price = self.pricing.with_base(price)
        with self._named_failure():
            lr = self.job.train.lr_in(self.rounds)
        return PlannedVisit(self.visits, rng_round, round, lr, dispatch, "train", price, down)

    def prepare_download_only(self, client: int, round: int) -> PlannedVisit:
        """Plan a visit that only downloads the whole model."""
        model = self.server.select(self.description.layout.keys())
        dispatch = Download(client, model, dict.fromkeys(self.method.objective.traffic.choices, 0))
        price = self.pricing.download_only()
        return PlannedVisit(self.visits, round, round, 0.0, dispatch, "listen", price, dispatch.shapes)

    def prepare_evaluation(self, client: int) -> PlannedVisit:
        """Plan a visit that evaluates the current model of a client; only where evaluations are charged."""
        assert self.charged_examples is not None, client
        dispatch, down = Download(client, {}), payload_shapes(self.server.evaluation_model(client))
        down = self.server.charged(down, int(self.selection.history.downloaded[client]))
        samples = int(self.description.samples[client])
        pricing = self.pricing.of_visit(self.server.evaluation_variant(client))
        price = pricing.evaluation(down, int(self.charged_examples[client]), samples)
        return PlannedVisit(self.visits, self.rounds, self.rounds, 0.0, dispatch, EVALUATE, price, down)

    @staticmethod
    def phase_price(work: Work) -> VisitPrice:
        """The price of a phase of secure aggregation."""
        return VisitPrice(work, TrainingPlan(0, 0, 0), 0.0, 0.0)

    def prepare_phase(self, kind: str, client: int, price: VisitPrice) -> PlannedVisit:
        """Plan a phase of secure aggregation as a visit of its own."""
        return PlannedVisit(self.visits, self.rounds, self.rounds, 0.0, Download(client, {}), kind, price, {})

    def prepare_leftover(self, client: int, station: int) -> PlannedVisit:
        """Plan what is left of a late visit to a station as a visit of its own."""
        price = VisitPrice(self.clock.leftovers[station].rest(client), TrainingPlan(0, 0, 0), 0.0, 0.0)
        return PlannedVisit(self.visits, self.rounds, self.rounds, 0.0, Download(client, {}), LEFTOVER, price, {})

    def within_budgets(
        self,
        visits: Sequence[PlannedVisit],
        costs_of: Callable[[Sequence[PlannedVisit]], Sequence[Cost]],
        needed: Callable[[Sequence[PlannedVisit]], Sequence[PlannedVisit]] = begins,
    ) -> tuple[list[PlannedVisit], str | None]:
        """The visits within the budgets, and the rule that refused the first of the others, if any; changes nothing.

        The cost of a visit depends on the others that share its links, so after each refusal ``costs_of`` is called for
        the rest. None are admitted without some that are ``needed``: late visits that go on, which are also ``visits``,
        beside others alone.
        """
        refused_by: str | None = None
        while needed(visits):
            costs = costs_of(visits)
            admitted = [self.budget.admits(visit.client, cost) for visit, cost in zip(visits, costs, strict=True)]
            if not all(admitted):
                # Each client can pay for a visit without contention: if none can pay beside the others, one stays.
                kept = list(compress(visits, admitted))
                visits = kept if needed(kept) else (needed(visits)[:1] if len(visits) > 1 else [])
                continue
            fits, rule = self.budget.reserve(costs)
            if needed(list(compress(visits, np.logical_not(fits)))):
                refused_by = refused_by or rule
            self.budget.release(list(compress(costs, fits)))
            if all(fits):
                break
            visits = list(compress(visits, fits))
        return list(visits) if needed(visits) else [], refused_by

    def numbered(self, visits: Sequence[PlannedVisit]) -> list[PlannedVisit]:
        """These visits, which begin now, with the next numbers."""
        first, self.visits = self.visits, self.visits + len(visits)
        return [visit.numbered(first + i) for i, visit in enumerate(visits)]

    def kept_out(self, cohort: Sequence[int], candidates: Sequence[int] | None = None) -> int:
        """Clients that this cohort would also have if clients had no budgets of their own.

        ``candidates``: those that it is drawn from; by default all.
        """
        missing = self.rules.cohort - len(cohort)
        if not self.budget.limits_clients or missing <= 0:
            return 0
        clock, is_there = self.clock, self.clock.is_there
        others = set(self.candidates if candidates is None else candidates).difference(cohort)
        there = sum(clock.has_power(client) and (is_there is None or is_there(client)) for client in others)
        return min(missing, there)

    @cached_property
    def up_shapes(self) -> Shapes:
        """Shapes of one client's upload, including the slots of corrections."""
        return self.server.up_shapes()

    @cached_property
    def levels(self) -> LevelSchedule | None:
        """The levels of codecs, where they change between visits."""
        codec = self.job.codec
        return LevelSchedule(codec.levels, most_levels(codec.up), self.rules.max) if codec.levels.is_used else None

    @cached_property
    def pricing(self) -> VisitPricing:
        """Prices of this run's visits."""
        codecs = self.downloads.codecs
        return VisitPricing(self.job, self.method, self.options, self.description, self.up_shapes, codecs, self.split)

    @property
    def trains_first(self) -> bool:
        """Whether visits are trained before they are timed: the lengths of uploads, or all times, are known then."""
        return self.clock.is_measured or not self.pricing.is_fixed_length

    @property
    def is_asynchronous(self) -> bool:
        """Whether visits begin and end one by one."""
        return self.server.setup.asynchronous

    def received(self, round: int, visits: Sequence[PlannedVisit]) -> None:
        """Visits that began in ``round`` count: their clients have their downloads."""
        self.server.received(round, [visit.dispatch for visit in visits])
        if self.server.setup.submodels is not None:
            for visit in visits:
                self.server.setup.submodels.received(visit.client, visit.dispatch.variant)
        if self.job.codec.is_used:
            for visit in visits:
                self.downloads.held.received(visit.client, self.trainer.downloaded(visit))

    # --- the model ------------------------------------------------------------------------------------------------

    def step(self, meet: Callable[[], None] = lambda: None) -> None:
        """Make the server's step; RunFailed if the new model is not finite, since it must never be committed.

        ``meet``: lets aggregators meet what is above them after it.
        """
        self.server.step()
        meet()
        self.server.store.publish()
        for name, model in self.server.models.items():
            for key, vector in model.items():
                problem = not_summable(vector.data, math.inf)
                if problem is not None:
                    whose = MODEL if name == GLOBAL else name
                    raise RunFailed(f"round {self.rounds + 1}: after the server's step, {whose}/{key} {problem}")

    def evaluate_if_due(self, is_last: bool, visited: VisitedClients = lambda: None) -> PendingEvaluation | None:
        """Submit an evaluation after a server step, if one is due or the run ends."""
        self.evaluated = is_last or self.rounds % self.eval_every == 0
        return self.evaluator.evaluate(self.rounds, visited()) if self.evaluated else None

    def late_evaluation(self, visited: VisitedClients = lambda: None) -> PendingEvaluation | None:
        """Submit an evaluation of the final model, unless it was evaluated."""
        evaluation = None if self.evaluated else self.evaluator.evaluate(self.rounds, visited())
        self.evaluated = True
        return evaluation

    def charge(self, visits: VisitColumns) -> None:
        """Settle the costs of visits that have ended; client selection learns from them."""
        self.budget.settle(visits["client"], visits.costs)
        self.selection.history.record(visits)

    # --- the commit -----------------------------------------------------------------------------------------------

    def close_round(
        self,
        record: RoundRecord,
        evaluation: PendingEvaluation | None,
        stopped_by: str | None = None,
        policy_state: Arrays | None = None,
    ) -> PendingCommit:
        """The commit of a round that has ended, unaffected by what the run does next.

        ``policy_state``: arrays of the round policy, for the checkpoint.
        """
        selector = {f"{SELECTOR}{name}": array for name, array in self.selection.selector.state().items()}
        held = {f"{HELD}{name}": array for name, array in self.downloads.held.state().items()}
        levels = {} if self.levels is None else self.levels.state()
        held |= {f"{LEVELS_STATE}{name}": array for name, array in levels.items()}
        state = selector | held | dict(policy_state or {})
        memory = RunMemory(self.rounds, self.visits, self.evaluated, self.clock.state(), state)
        record.log(None, self.server.take_logged())
        if self.privacy is not None:
            record.epsilon = self.privacy.spent(self.participation)
        snapshot = self.recorder.snapshot(record, memory)
        return PendingCommit(record, evaluation, self.rounds, self.clock.now, snapshot, stopped_by)

    def reached(self, rounds: int, result: EvalResult) -> str | None:
        """The rule that ends the run after this many rounds with this evaluation, or None."""
        selecting = result.judged
        if self.job.eval_select is not None:
            selecting = validation_score(result.values, self.job.train.score)
        return self.budget.reached(rounds, result.judged, selecting)

    def commit_when_evaluated(self, pending: PendingCommit) -> str | None:
        """Wait for the evaluation and commit the round; returns the rule that stops the run, or None."""
        result = NOT_EVALUATED if pending.evaluation is None else pending.evaluation.wait()
        pending.record.evaluations = [row._replace(round=pending.record.round) for row in result.values]
        row = pending.record.round_row(pending.virtual_seconds, result, pending.snapshot.model_sha256)
        reached = self.reached(pending.rounds, result)
        stopped_by = reached or pending.stopped_by
        # A row without a server step was added because the run had already ended.
        ended_by = stopped_by if pending.rounds > row.round else pending.stopped_by or reached
        self.recorder.commit(pending, row, ended_by)
        down, up = self.committed.bytes_down + row.bytes_down, self.committed.bytes_up + row.bytes_up
        self.committed = RunTotals(pending.rounds, pending.virtual_seconds, down, up, row.model_sha256)
        objective, visits = self.method.objective, pending.record.visits
        progress, chosen = objective.records.progress, list[float]()
        if progress is not None:
            chosen = [getattr(row, progress.column) for row in pending.record.method_rows]
        elif objective.submodels is not None:
            kinds = zip(visits["kind"], visits["rate"], strict=True)
            chosen = [rate for kind, rate in kinds if kind not in (*NO_TRAINING, DOWNLOAD_ONLY)]
        logged = logged_means(pending.record.logged)
        self.on_round(RoundFinished(row, pending.rounds, down, up, Counter(chosen), logged))
        return stopped_by
