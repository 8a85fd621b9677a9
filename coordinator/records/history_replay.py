"""The past of an asynchronous run, replayed without training, so that the run can go on from it.

Visits under way between two commits (messages on shared links, events in SimPy's queue) cannot be written down, but
they follow from the scenario and from the ledger's rows of the visits that have ended. So the same stream of visits is
replayed on the same clock, with replies out of the ledger, up to its last round. The server side decides as it did, and
learns from rows instead of vectors; then the vectors that a ledger does not hold are restored from the checkpoint.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.server import Download, Model, ServerStrategy, VisitFeedback
from coordinator.records.checkpoints import Arrays
from coordinator.records.round_record import RoundRecord
from coordinator.records.store import ChoiceRow, RoundRow, VisitRow
from coordinator.rounds.evaluation import Evaluation
from coordinator.rounds.run import FederatedRun, PendingCommit, RunFailed, RunTotals
from coordinator.rounds.visit import PlannedVisit
from coordinator.workers.task import TaskGroup
from edge.protocol.messages import Update
from edge.protocol.payload import Payload, Vector


class DecisionOnlyServer(ServerStrategy):
    """The decisions of another server side, for visits that were trained before and need not be trained again."""

    def __init__(self, server_side: ServerStrategy) -> None:
        super().__init__(server_side.setup, server_side.parts)
        self.server_side = server_side

    def download(self, client: int, round: int) -> Download:
        return self.server_side.download(client, round)

    def select(self, keys: Sequence[str]) -> Payload:
        return self.server_side.select(keys)

    def started(self, round: int, dispatches: Sequence[Download]) -> None:
        self.server_side.started(round, dispatches)

    def received(self, round: int, dispatches: Sequence[Download]) -> None:
        self.server_side.received(round, dispatches)

    def download_only_clients(self, round: int, cohort: Sequence[int]) -> Sequence[int]:
        return self.server_side.download_only_clients(round, cohort)

    def up_shapes(self) -> dict[str, dict[str, int]]:
        return self.server_side.up_shapes()

    def feedback(self, round: int, outcomes: Sequence[VisitFeedback]) -> list[ChoiceRow]:
        return self.server_side.feedback(round, outcomes)

    def observe(self, reply: Update) -> None:
        """There are no vectors."""

    def accumulate(self, reply: Update) -> None:
        """There are no vectors."""

    def step(self) -> None:
        """No updates, no step."""


INDEX, VECTOR = "under way", "under way|"


@dataclass(frozen=True)
class InFlight:
    """What a ledger does not know of a visit that is under way."""

    payload: Payload
    model: Model
    """The global model at its beginning"""


def pack_in_flight(under_way: Mapping[int, InFlight]) -> dict[str, NDArray[np.generic]]:
    """Arrays for a checkpoint: each vector once, and an index that says of each client's visit which are its own."""
    found: dict[str, Vector] = {}

    def named(some: Model) -> dict[str, str]:
        names = {key: vector.version.hex() for key, vector in some.items()}
        found.update((name, some[key]) for key, name in names.items())
        return names

    index = {
        client: {"model": named(one.model), "payload": {slot: named(some) for slot, some in one.payload.items()}}
        for client, one in sorted(under_way.items())
    }
    text = np.frombuffer(json.dumps(index).encode(), np.uint8)
    return {INDEX: text, **{VECTOR + name: vector.data for name, vector in found.items()}}


def unpack_in_flight(arrays: Arrays) -> dict[int, InFlight]:
    index = json.loads(np.asarray(arrays[INDEX]).tobytes()) if INDEX in arrays else {}

    def some(names: Mapping[str, str]) -> Model:
        return {key: Vector(np.asarray(arrays[VECTOR + name], np.float32)) for key, name in names.items()}

    return {
        int(client): InFlight({slot: some(names) for slot, names in one["payload"].items()}, some(one["model"]))
        for client, one in index.items()
    }


class ReplayFinished(Exception):  # noqa: N818 - no error, but the end of the past
    """All rounds of the ledger have been played again."""


class ReplayedServer(DecisionOnlyServer):
    """What the server side learned then, it learns again from the ledger."""

    def __init__(self, run: FederatedRun) -> None:
        super().__init__(run.server)
        self._choices = deque(run.ledger.choices())

    def step(self) -> None:
        """Of no updates; so that what goes down has the slots that it had."""
        self.server_side.step()

    def feedback(self, round: int, outcomes: Sequence[VisitFeedback]) -> list[ChoiceRow]:
        rows = [self._choices.popleft() for _ in outcomes if self._choices]
        for outcome, row in zip(outcomes, rows, strict=bool(rows)):
            self.server_side.replay_feedback(outcome, row)
        return rows


class ReplayedRun(FederatedRun):
    """A run up to its last commit, on the run's own clock and budget, which nothing is trained for."""

    def __init__(self, run: FederatedRun) -> None:
        given = {field.name: getattr(run, field.name) for field in fields(FederatedRun)}
        super().__init__(**{**given, "server": ReplayedServer(run), "on_round": lambda progress: None})
        self.rounds, self.visits, self.scored, self.committed = 0, 0, True, RunTotals()
        self._rounds = deque(run.ledger.rounds())
        self._visits = {row.visit: row for row in run.ledger.visits()}

    @property
    def is_over(self) -> bool:
        """Whether all rounds of the ledger have been played."""
        return not self._rounds

    def check_stop(self) -> None:
        """CaughtUp when no further round is known."""
        super().check_stop()
        if self.is_over:
            raise ReplayFinished

    @property
    def has_client_state(self) -> bool:
        """What clients kept is there already."""
        return False

    def submit(
        self,
        visits: Sequence[PlannedVisit],
        heard: Callable[[Update], None],
        shares: Mapping[int, float] | None = None,
    ) -> TaskGroup:
        """What the ledger knows of the visits; nothing of those that had not ended."""

        def hear() -> None:
            for visit in visits:
                row: VisitRow | None = self._visits.get(visit.number)
                loss = row.loss if row is not None and row.loss is not None else 0.0
                heard(Update(visit.client, visit.rng_round, {"loss": loss}, {}))

        return cast(TaskGroup, _ResolvedTask(hear))

    def validate(self, reply: Update, visit: PlannedVisit, base: Model) -> tuple[str, Update]:
        """As it was judged then."""
        return self._visits[visit.number].kind, reply

    def evaluate(self, kept: Mapping[int, str]) -> Evaluation:
        """The score as it was."""
        row = self._rounds[0]
        return cast(
            Evaluation, _ResolvedTask(lambda: (row.accuracy, np.inf if row.test_loss is None else row.test_loss))
        )

    def close_round(
        self, rows: RoundRecord, scoring: Evaluation | None, stopped_by: str | None = None, more: Arrays | None = None
    ) -> PendingCommit:
        """Nothing of it is written again."""
        return PendingCommit(
            rows, scoring, self.rounds, self.clock.now, {}, self._rounds[0].model_sha256, {}, stopped_by
        )

    def commit(self, ending: PendingCommit, row: RoundRow) -> None:
        """RunFailed unless the round is what it was."""
        known = self._rounds.popleft()
        if row != known:
            differing = [name for name in row._fields if getattr(row, name) != getattr(known, name)]
            raise RunFailed(
                f"round {known.round} cannot be played again: {', '.join(differing)} would not be as it was"
            )


@dataclass(frozen=True)
class _ResolvedTask:
    answer: Callable[[], Any]

    def wait(self) -> Any:
        return self.answer()
