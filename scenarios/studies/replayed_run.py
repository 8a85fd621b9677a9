"""A finished run's rounds played again on another clock: what was learned comes from the ledger, all else is reckoned.

The rounds are those of `coordinator.rounds.synchronous`, and who takes part and what is sent is decided by the method's
own server side. Both are told of losses and scores as they were. A replay that would train other visits than the run
did is refused. Nothing is written, no worker is started, and no model but one of zeros is held.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, cast

from coordinator.aggregation.server import Download, ServerStrategy
from coordinator.methods.fedbr import FedBRServer
from coordinator.records.checkpoints import Arrays
from coordinator.records.history_replay import DecisionOnlyServer
from coordinator.records.round_record import RoundRecord
from coordinator.records.store import (
    COUNTED,
    DOWNLOAD_ONLY,
    FAULTY,
    TRAIN,
    TRAINED,
    ChoiceRow,
    Ledger,
    RoundRow,
    VisitRow,
)
from coordinator.rounds import selection
from coordinator.rounds.budget import CLIENTS, ROUNDS, TARGET, USER, Budget
from coordinator.rounds.cohort_training import CohortTraining
from coordinator.rounds.evaluation import Evaluation
from coordinator.rounds.run import FederatedRun, PendingCommit
from coordinator.rounds.synchronous import run_synchronous
from coordinator.rounds.visit import PlannedVisit
from coordinator.workers.task import Workers
from costmodel.clock import Clock
from costmodel.units import format_seconds
from edge.protocol.config import ModelProfile
from edge.protocol.messages import Update
from scenarios import builder
from scenarios.config.load import Loaded, ScenarioError
from scenarios.report.run_reader import RecordedRun
from scenarios.studies.estimate import server as server_of_zeros


@dataclass(frozen=True)
class RecordedRounds:
    """What a ledger knows of a run."""

    rounds: Sequence[RoundRow]
    visits: Mapping[int, Mapping[int, VisitRow]]
    """round -> client -> its visit"""
    choices: Mapping[tuple[int, int], ChoiceRow]
    """(round, client) -> what the server chose and learned"""
    stopped_by: str | None
    """None while the run is unfinished"""

    @classmethod
    def of(cls, run: RecordedRun) -> RecordedRounds:
        """Everything of one run folder."""

        def rows(table: str, kind: type[Any], order: str) -> list[Any]:
            columns = ", ".join(kind._fields)
            return [kind(*row) for row in run.query(f"SELECT {columns} FROM {table} ORDER BY {order}")]

        visits: defaultdict[int, dict[int, VisitRow]] = defaultdict(dict)
        for visit in rows("visits", VisitRow, "visit"):
            visits[visit.round][visit.client] = visit
        choices = {(row.round, row.client): row for row in rows("choices", ChoiceRow, "round, client")}
        return cls(rows("rounds", RoundRow, "round"), visits, choices, (run.summary or {}).get("stopped_by"))

    def of_kinds(self, round: int, kinds: Collection[str]) -> dict[int, VisitRow]:
        """client -> its visit, of those of these kinds."""
        return {client: row for client, row in self.visits.get(round, {}).items() if row.kind in kinds}

    @property
    def completed(self) -> int:
        """Rounds that were played to their end."""
        return sum(_is_complete(self.visits.get(row.round, {}).values()) for row in self.rounds)


class _Unfinished(Exception):  # noqa: N818 - no error, but the end of an unfinished run's ledger
    """The ledger of a run that no rule has ended has no further round."""


class RetimedServer(DecisionOnlyServer):
    """Remembers, too, whose visits began."""

    def __init__(self, server_side: ServerStrategy) -> None:
        super().__init__(server_side)
        self.begun: set[int] = set()
        """Clients whose visits began in the last round."""

    def started(self, round: int, dispatches: Sequence[Download]) -> None:
        self.begun = {dispatch.client for dispatch in dispatches}
        super().started(round, dispatches)


class RetimedRun(FederatedRun):
    """A run whose visits were trained before; the round policies play it as they play any other.

    It has neither workers nor a ledger to write: what would need them is overridden here.
    """

    def __init__(
        self,
        record: RecordedRounds,
        loaded: Loaded,
        target: float | None,
        description: ModelProfile,
        clock: Clock,
        refused: Mapping[int, str],
        fresh: str,
    ) -> None:
        self.record, self.loaded, self.fresh = record, loaded, fresh
        self.rounds_done: list[RoundRow] = []
        self.visits_done: list[VisitRow] = []
        self.still = RetimedServer(self._decisive(loaded, server_of_zeros(loaded, description)))
        # Beside the run that it ended, a target is a yardstick.
        ending = target if record.stopped_by == TARGET else None
        limits = replace(builder.limits(loaded, stop_at_target=False), target_accuracy=ending)
        super().__init__(
            job=builder.job(loaded, description, "cpu", Path()),
            method=loaded.method,
            options=loaded.options,
            description=description,
            server=self.still,
            workers=cast(Workers, None),
            clock=clock,
            budget=Budget(limits),
            ledger=cast(Ledger, None),
            folder=Path(),
            rules=builder.rules(loaded),
            eval_every=loaded.scenario.eval.every,
            on_round=lambda progress: None,
            refused=refused,
        )

    def _decisive(self, loaded: Loaded, server_side: ServerStrategy) -> ServerStrategy:
        """The server side, if what it decides follows from what the ledger knows; ScenarioError if it may not."""
        if type(server_side) is FedBRServer and server_side.options.deviation != "model":
            return server_side
        own = (type(server_side).download, type(server_side).download_only_clients) != (
            ServerStrategy.download,
            ServerStrategy.download_only_clients,
        )
        if server_side.sends_the_same or not own:
            return server_side
        raise ScenarioError(
            f"{loaded.method.name}: what it sends may depend on the updates themselves, which a ledger does not keep, "
            f"so it cannot be replayed; to train anew: {self.fresh}"
        )

    def play(self) -> None:
        """All rounds of the record. ScenarioError, with the round, where others would have been trained."""
        try:
            stopped_by = run_synchronous(self)
        except _Unfinished:
            return
        if self.rounds < self.record.completed:
            why = "no client could take part" if stopped_by == CLIENTS else f"{_budget(stopped_by)} would end the run"
            self._refuse(f"{why}, which went on to round {self.record.completed - 1}", self.rounds)

    def _refuse(self, why: str, round: int) -> NoReturn:
        raise ScenarioError(f"round {round}: {why}; to train anew: {self.fresh}")

    # --- in place of workers and ledger -------------------------------------------------------------------------------

    @property
    def has_client_state(self) -> bool:
        """Nothing is kept, since nothing is trained."""
        return False

    def eligible(self, candidates: Sequence[int], round: int) -> list[int]:
        """As in any run, but that of an unfinished one nothing is known beyond its ledger."""
        if self.rounds == len(self.record.rounds) and self.record.stopped_by in (None, USER):
            raise _Unfinished
        return super().eligible(candidates, round)

    def train(self, visits: Sequence[PlannedVisit]) -> CohortTraining:
        """What was learned of these visits when they were trained."""
        rows = self.record.visits.get(self.rounds, {}).values()
        faulty = {row.client: row.kind for row in rows if row.kind in FAULTY}
        return cast(CohortTraining, _RecordedAnswer(lambda: self._replies(visits), faulty))

    def _replies(self, visits: Sequence[PlannedVisit]) -> list[Update]:
        number = self.rounds
        recorded = self.record.of_kinds(number, (TRAIN, *FAULTY))
        if number >= self.record.completed:
            assert self.record.stopped_by is not None, number
            self._refuse(f"the run ended here ({_budget(self.record.stopped_by)}), but would go on", number)
        differing = set(recorded).symmetric_difference(visit.client for visit in visits)
        if differing:
            self._refuse(self._why(min(differing), number), number)
        return [
            self._reply(visit, recorded[visit.client], number)
            for visit in visits
            if recorded[visit.client].kind in TRAINED
        ]

    def _why(self, client: int, number: int) -> str:
        """Why a client would have taken part although it had not, or the other way round."""
        before = self.record.visits.get(number, {}).get(client)
        if before is None or before.kind not in COUNTED:
            return f"client {client} would take part, but " + (f"was {before.kind}" if before else "was not chosen")
        is_there = self.clock.is_there
        why = "would not be chosen"
        if client in self.still.begun:
            why = "its visit would be lost" if self.rules.policy == "sync" else "its visit would be late or lost"
        elif client in self.refused:
            why = self.refused[client]
        elif not self.clock.has_power(client):
            why = "its battery would be empty"
        elif is_there is not None and not is_there(client):
            why = f"would not be there at {format_seconds(self.clock.now)}"
        elif client in selection.sample_cohort(self.job.seed, number, self.candidates, self.rules.cohort, is_there):
            why = "its visit would not be within the budget"
        return f"client {client} took part, but {why}"

    def _reply(self, visit: PlannedVisit, row: VisitRow, number: int) -> Update:
        chosen, names = self.record.choices.get((number, visit.client)), self.method.objective.choices
        for name in names if chosen is not None else ():
            before, after = int(getattr(chosen, name)), visit.dispatch.choice[name]
            if before != after:
                self._refuse(
                    f"client {visit.client} would be given {name} = {after} instead of {before}, since what "
                    f"{self.method.name} chooses depends on times",
                    number,
                )
        work = visit.work
        if (work.bytes_down, work.bytes_up, work.flops) != (row.bytes_down, row.bytes_up, row.flops):
            self._refuse(f"the ledger and the environment do not agree on the visit to client {visit.client}", number)
        assert row.loss is not None, row
        drop = {} if chosen is None else {"drop": chosen.loss_drop}
        return Update(visit.client, visit.rng_round, {"loss": row.loss, **drop}, {})

    def evaluate(self, kept: Mapping[int, str]) -> Evaluation:
        """The scores as they were."""
        return cast(Evaluation, _RecordedAnswer(self._score))

    def _score(self) -> tuple[float, float]:
        index = len(self.rounds_done)
        row = self.record.rounds[index] if index < len(self.record.rounds) else None
        if row is None or row.accuracy is None:
            self._refuse("the run would end here, but its model was not scored then", index)
        return row.accuracy, float("inf") if row.test_loss is None else row.test_loss

    def model_sha256(self) -> str:
        index = len(self.rounds_done)
        return self.record.rounds[index].model_sha256 if index < len(self.record.rounds) else ""

    def close_round(
        self, rows: RoundRecord, scoring: Evaluation | None, stopped_by: str | None = None, more: Arrays | None = None
    ) -> PendingCommit:
        """As in any run, if as many have listened as then."""
        if _is_complete(rows.visits):
            listened = {visit.client for visit in rows.visits if visit.kind == "listen"}
            differing = listened.symmetric_difference(self.record.of_kinds(rows.round, (DOWNLOAD_ONLY,)))
            if differing:
                self._refuse(self._why(min(differing), rows.round), rows.round)
        return super().close_round(rows, scoring, stopped_by)

    def commit(self, ending: PendingCommit, row: RoundRow) -> None:
        """Take note of a round."""
        self.rounds_done.append(row)
        self.visits_done += ending.rows.visits


@dataclass(frozen=True)
class _RecordedAnswer:
    """Stands for what workers are asked: the answer is in the ledger, and is looked up when it is waited for."""

    look_up: Callable[[], Any]
    faulty: Mapping[int, str] = field(default_factory=dict)
    """As of `CohortTraining`"""

    def wait(self) -> Any:
        return self.look_up()

    def cancel(self) -> None:
        pass


def _is_complete(visits: Iterable[VisitRow]) -> bool:
    """Whether a round with these visits was played to its end, rather than cut, or added to score the last model."""
    kinds = {row.kind for row in visits}
    return bool(kinds) and "cut" not in kinds


def _budget(rule: str) -> str:
    return {CLIENTS: "no client was left", ROUNDS: "rounds.max"}.get(rule, f"budget.{rule}")
