"""Replays the rounds of a run on another clock: losses and evaluations come from its ledger, all else is computed.

The rounds are those of `coordinator.rounds.synchronous`, and the method's server side decides who takes part and what
is sent; both receive the recorded losses and evaluations. A replay that would train other visits than the run did is
refused. Where a budget alone decides how long a run lasts, a replay may end before the record does, or with it. Nothing
is written, no worker is started, and the only model is one of zeros.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from coordinator.aggregation.server import Download, ServerStrategy
from coordinator.records.round_record import EvalResult, RoundRecord
from coordinator.records.schema import (
    COUNTED,
    DOWNLOAD_ONLY,
    FAULTY,
    NO_TRAINING,
    TRAIN,
    TRAINED,
    AggregatorRow,
    EvaluationRow,
    Lengths,
    MethodTable,
    PayloadShapeRow,
    RoundRow,
    VisitRow,
    payloads_of,
)
from coordinator.rounds.budget import CLIENTS, CONVERGED, EARLY, FLEET_RULES, ROUNDS, SECONDS, TARGET
from coordinator.rounds.ports import PendingCommit, PendingEvaluation, RunMemory, Snapshot
from coordinator.rounds.synchronous import run_synchronous
from coordinator.rounds.untrained import DecisionOnlyServer, KnownEvaluation, Untrained
from coordinator.rounds.visit import PlannedVisit
from costmodel.clock import Clock
from costmodel.fleet.carbon import Intensity
from costmodel.fleet.fleet import Fleet
from costmodel.units import format_seconds
from edge.protocol.messages import Update, numbers_of_loss
from scenarios.config import plugin_errors
from scenarios.config.load import Loaded, ScenarioError
from scenarios.report.run_reader import RecordedRun
from scenarios.run.folder_files import DESCRIPTION
from scenarios.run.setup import Setup

BUDGETS = (*FLEET_RULES, SECONDS)
"""Rules whose budgets decide how long a run lasts, and nothing else"""


@dataclass(frozen=True)
class RecordedRounds:
    rounds: Sequence[RoundRow]
    visits: Mapping[int, Mapping[int, VisitRow]]
    """Round -> client -> its visit, without those that were meant to train nothing."""
    method_rows: Mapping[tuple[int, int], Any]
    """(round, client) -> row of the method's own table: the server's choices, and what it learned."""
    stopped_by: str | None
    """None while the run is unfinished."""
    evaluations: Mapping[int, Sequence[EvaluationRow]] = field(default_factory=dict)
    """Round -> values of its evaluation beside its accuracy and loss."""
    payloads: Mapping[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    """Name -> slot -> key -> bytes of the vectors of a message."""
    messages: Mapping[int, Sequence[AggregatorRow]] = field(default_factory=dict)
    """Round -> messages of aggregators, in the order in which they were recorded."""

    @classmethod
    def of(cls, run: RecordedRun, method_table: MethodTable | None) -> RecordedRounds:
        """The rows of one run folder; ``method_table``: its method's own table."""

        def rows(table: str, kind: type[Any], order: str) -> list[Any]:
            columns = ", ".join(f'"{name}"' for name in kind._fields)
            return [kind(*row) for row in run.query(f"SELECT {columns} FROM {table} ORDER BY {order}")]

        visits: defaultdict[int, dict[int, VisitRow]] = defaultdict(dict)
        for visit in rows("visits", VisitRow, "visit"):
            if visit.kind not in NO_TRAINING:
                visits[visit.round][visit.client] = visit
        learned = [] if method_table is None else rows(method_table.name, method_table.row, "rowid")
        by_visit = {(row.round, row.client): row for row in learned}
        values: defaultdict[int, list[EvaluationRow]] = defaultdict(list)
        for row in run.evaluations:
            values[row.round].append(row)
        messages: defaultdict[int, list[AggregatorRow]] = defaultdict(list)
        for message in rows("aggregators", AggregatorRow, "rowid") if run.has_tiers else ():
            messages[message.round].append(message)
        stopped_by = (run.summary or {}).get("stopped_by")
        payloads = payloads_of(rows("payload_shapes", PayloadShapeRow, "rowid"))
        return cls(rows("rounds", RoundRow, "round"), visits, by_visit, stopped_by, values, payloads, messages)

    def of_kinds(self, round: int, kinds: Collection[str]) -> dict[int, VisitRow]:
        """Client -> its visit, for the visits of these kinds."""
        return {client: row for client, row in self.visits.get(round, {}).items() if row.kind in kinds}

    @property
    def completed(self) -> int:
        return sum(not row.cut_by and row.round in self.visits for row in self.rounds)


class OtherVisits(ScenarioError):  # noqa: N818 - named by what happened
    """Other visits would have been trained than the run did."""

    def __init__(self, reason: str, fresh: str) -> None:
        """``reason``: the round, and the first difference in it; ``fresh``: the command that trains anew."""
        super().__init__(f"{reason}; to train anew: {fresh}")
        self.reason = reason


class _EndOfRecord(Exception):  # noqa: N818 - no error, but the end of the ledger
    """The ledger has no further round, but the run would go on: it was unfinished, or a budget ended it."""


@dataclass(frozen=True)
class PreparedReplay:
    """A run that is read once, and can be replayed on several fleets."""

    record: RecordedRounds
    setup: Setup
    """The scenario with the overrides"""
    target: float | None
    """The recorded scenario's target accuracy, which may have ended the run"""
    fresh: str
    """The command that trains anew"""
    carbon: Intensity | None
    """That of the run, unless an override changes it"""
    is_cut_anew: bool = False
    """Whether another part of the model is trained by a server's device, so that visits cost otherwise"""

    @property
    def loaded(self) -> Loaded:
        return self.setup.loaded

    @property
    def fleet(self) -> Fleet:
        """As the scenario draws it"""
        return self.setup.fleet

    def play(self, fleet: Fleet, may_end_elsewhere: bool = False) -> RetimedRun:
        """The run, replayed to its end on a fleet.

        `OtherVisits` if other visits would have been trained on it, or more or fewer rounds unless that
        ``may_end_elsewhere``.
        """
        with plugin_errors.named(self.loaded.scenario.model_dump(), ScenarioError, self.loaded.name):
            new = RetimedRun(self, fleet)
            new.play()
        if new.other_end and not may_end_elsewhere:
            raise OtherVisits(new.other_end, self.fresh)
        return new


class RetimedServer(DecisionOnlyServer):
    """A server side that also remembers whose visits began."""

    def __init__(self, server_side: ServerStrategy) -> None:
        super().__init__(server_side)
        self.begun: set[int] = set()
        """Clients whose visits began in the last round."""

    def started(self, round: int, dispatches: Sequence[Download]) -> None:
        self.begun = {dispatch.client for dispatch in dispatches}
        super().started(round, dispatches)


class RetimedRun(Untrained):
    """A run whose visits have been trained before; round policies run it like any other.

    It is the trainer, the evaluator and the recorder of ``run``, which has no workers and writes no ledger.
    """

    def __init__(self, ready: PreparedReplay, fleet: Fleet) -> None:
        super().__init__(len(ready.setup.description.samples))
        self.record, self.loaded, self.fresh = ready.record, ready.loaded, ready.fresh
        self.carbon, self.is_cut_anew = ready.carbon, ready.is_cut_anew
        setup = ready.setup
        self.rounds_done: list[RoundRow] = []
        self.visits_done: list[VisitRow] = []
        self.evaluations_done: list[EvaluationRow] = []
        self.messages_done: list[AggregatorRow] = []
        self.other_end: str | None = None
        """The difference, if a budget ends the replay before the record's end, or does not end it there"""

        def is_stopped() -> bool:
            if self.run.rounds == len(self.record.rounds) and self.record.stopped_by in (None, *EARLY):
                raise _EndOfRecord  # of an unfinished run's ledger
            return False

        # A target ends the replay only if it ended the run.
        ending = ready.target if self.record.stopped_by == TARGET else None
        self.server = RetimedServer(setup.server_of_zeros())
        self.run = setup.federated(
            *(self.server, Clock(fleet), self, self, self), refused=setup.refused, target=ending, is_stopped=is_stopped
        )

    @property
    def rounds(self) -> int:
        return self.run.rounds

    def play(self) -> None:
        """Replay all recorded rounds. `OtherVisits`, with the round, if other visits would have been trained."""
        try:
            stopped_by = run_synchronous(self.run)
        except _EndOfRecord:
            return
        if self.run.rounds < self.record.completed:
            reason = "no client could take part" if stopped_by == CLIENTS else f"{_rule(stopped_by)} would end the run"
            reason += f", which lasted to round {self.record.completed}"
            if stopped_by not in BUDGETS:
                self._refuse(reason, self.run.rounds)
            self.other_end = f"round {self.run.rounds + 1}: {reason}"

    def _refuse(self, reason: str, round: int) -> NoReturn:
        raise OtherVisits(f"round {round + 1}: {reason}", self.fresh)

    # --- in place of workers and ledger -------------------------------------------------------------------------------

    def encoded(self, visit: PlannedVisit) -> Lengths:
        """As recorded; bounds for a visit that was not made then."""
        row = self.record.visits[self.run.rounds].get(visit.client)
        return self.record.payloads.get("" if row is None else row.up_payload, visit.price.up)

    def kind(self, visit: PlannedVisit) -> str:
        return self.record.visits[self.run.rounds][visit.client].kind

    def updates(self, visits: Sequence[PlannedVisit]) -> list[Update]:
        number = self.run.rounds
        recorded = self.record.of_kinds(number, (TRAIN, *FAULTY))
        if not visits and not recorded and number < len(self.record.rounds):
            return []  # the seconds of the run ended within its visits, or it has none
        differing = set(recorded).symmetric_difference(visit.client for visit in visits)
        if number >= self.record.completed and (differing or not recorded):
            assert self.record.stopped_by is not None, number
            reason = f"the run ended here ({_rule(self.record.stopped_by)}), but would continue"
            if self.record.stopped_by not in BUDGETS:
                self._refuse(reason, number)
            self.other_end = f"round {number + 1}: {reason}"
            raise _EndOfRecord
        if differing:
            self._refuse(self._difference(min(differing), number), number)
        return [self._update(visit, recorded[visit.client], number) for visit in visits]

    def _difference(self, client: int, number: int) -> str:
        """The reason why a client would take part although it did not, or the other way round."""
        run = self.run
        before, name = self.record.visits.get(number, {}).get(client), run.rules.selection
        depends = "" if name == "uniform" else f" by {name}, whose choice may depend on times and on earlier cohorts"
        if before is None:
            return f"client {client} would take part, but was not selected{depends}"
        if before.kind not in COUNTED:
            return f"client {client} would take part, but was {before.kind}"
        is_there = run.clock.is_there
        reason = f"would not be selected{depends}"
        if client in self.server.begun:
            reason = "its visit would be lost" if run.rules.policy == "sync" else "its visit would be late or lost"
        elif client in run.refused:
            reason = run.refused[client]
        elif not run.clock.has_power(client):
            reason = "its battery would be empty"
        elif is_there is not None and not is_there(client):
            reason = f"would not be available at {format_seconds(run.clock.now)}"
        elif client in run.selection.cohort or not run.eligible([client], number):
            reason = "its visit would not be within the budget"
        return f"client {client} took part, but {reason}"

    def _update(self, visit: PlannedVisit, row: VisitRow, number: int) -> Update:
        """The recorded report of the visit's client; `OtherVisits` if another visit would have been trained."""
        if row.kind not in TRAINED:
            return Update(visit.client, visit.rng_round, {}, {})
        objective = self.run.method.objective
        learned = self.record.method_rows.get((number, visit.client))
        for name in objective.traffic.choices:
            before, after = getattr(learned, name, None), visit.dispatch.choice[name]
            if before not in (None, after):
                self._refuse(
                    f"client {visit.client} would receive {name} = {after} instead of {before}, since the choices of "
                    f"{self.run.method.name} depend on times",
                    number,
                )
        work = visit.work
        recorded = (row.bytes_down, row.bytes_up, row.flops)
        if not self.is_cut_anew and (work.bytes_down, work.bytes_up, work.flops) != recorded:
            self._refuse(f"the ledger and {DESCRIPTION} disagree about the visit of client {visit.client}", number)
        steps = self.run.job.train.plan(int(self.run.description.samples[visit.client])).steps
        if row.loss is None and steps:
            self._refuse(f"the ledger has no loss of client {visit.client}", number)
        columns = {} if learned is None or objective.records.table is None else objective.records.table.reports
        reported = {name: float(getattr(learned, column)) for name, column in columns.items()}
        return Update(visit.client, visit.rng_round, {**numbers_of_loss(row.loss), **reported}, {})

    def evaluate(self, round: int, clients: Sequence[int] | None = None) -> PendingEvaluation:
        def recorded() -> EvalResult:
            index = len(self.rounds_done)
            row = self.record.rounds[index] if index < len(self.record.rounds) else None
            if row is None or row.judged is None:
                self._refuse("the run would end here, but its model was not evaluated in this round", index)
            loss = float("inf") if row.test_loss is None else row.test_loss
            return EvalResult(row.accuracy, loss, self.record.evaluations.get(row.round, ()), row.score)

        return KnownEvaluation(recorded)

    def snapshot(self, record: RoundRecord, memory: RunMemory) -> Snapshot:
        """The recorded hash of the model; `OtherVisits` if other clients would have downloaded only."""
        if record.visits and not record.cut_by:
            downloaded = {visit.client for visit in record.visits if visit.kind == DOWNLOAD_ONLY}
            differing = downloaded.symmetric_difference(self.record.of_kinds(record.round, (DOWNLOAD_ONLY,)))
            if differing:
                self._refuse(self._difference(min(differing), record.round), record.round)
        index = len(self.rounds_done)
        before = self.record.rounds[index] if index < len(self.record.rounds) else None
        if before is not None and not (before.cut_by or record.cut_by):
            sent, sent_before = (
                [(row.tier, row.aggregator, row.direction, row.end_s is None) for row in messages]
                for messages in (record.aggregators, self.record.messages.get(index, ()))
            )
            if sent != sent_before:
                self._refuse("aggregators would meet what is above them in other rounds or another order", index)
        is_step = record.meets or any(kind in TRAINED for kind in record.visits["kind"])
        if index and not is_step and not self.run.hides_cohorts:  # a budget may have cut it
            return Snapshot(self.rounds_done[-1].model_sha256)
        return Snapshot(self.record.rounds[index].model_sha256 if index < len(self.record.rounds) else "")

    def commit(self, pending: PendingCommit, row: RoundRow, stopped_by: str | None) -> None:
        self.rounds_done.append(row)
        self.visits_done += pending.record.visits
        self.evaluations_done += pending.record.evaluations
        self.messages_done += pending.record.aggregators


def _rule(rule: str) -> str:
    return {CLIENTS: "no client was left", ROUNDS: "rounds.max", CONVERGED: "stop.patience"}.get(rule, f"budget.{rule}")
