"""The past of an asynchronous run, replayed without training, so that the run can go on from it.

Visits under way between two commits (messages on shared links, events in SimPy's queue) cannot be written down, but
they follow from the scenario and from the ledger's rows of the visits that have ended. So the same stream of visits is
replayed on the same clock, with replies out of the ledger, up to its last round. The server side decides as it did, and
learns from rows instead of vectors; then the vectors that a ledger does not hold are restored from the checkpoint.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.server import Download, Model, ServerStrategy, VisitFeedback
from coordinator.records.round_record import EvalResult, RoundRecord
from coordinator.records.schema import RoundRow
from coordinator.rounds.ports import Arrays, PendingCommit, PendingEvaluation, RunMemory, Snapshot
from coordinator.rounds.run import FederatedRun, History, RunFailed, RunTotals
from coordinator.rounds.visit import PlannedVisit
from coordinator.workers.task import TaskGroup
from edge.protocol.messages import Totals, Update
from edge.protocol.payload import Payload, Vector


class DecisionOnlyServer(ServerStrategy):
    """The decisions of another server side, for visits that were trained before and need not be trained again."""

    def __init__(self, server_side: ServerStrategy) -> None:
        super().__init__(replace(server_side.setup, sum="client_order"), server_side.extensions)
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

    def feedback(self, round: int, outcomes: Sequence[VisitFeedback]) -> Sequence[NamedTuple]:
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
    """A server side that learns again, from the ledger, what it learned then."""

    def __init__(self, server_side: ServerStrategy, method_rows: Sequence[Any]) -> None:
        super().__init__(server_side)
        self._rows = deque(method_rows)

    def step(self) -> None:
        """Of no updates; so that what goes down has the slots that it had."""
        self.server_side.step()

    def feedback(self, round: int, outcomes: Sequence[VisitFeedback]) -> list[Any]:
        rows = [self._rows.popleft() for _ in outcomes if self._rows]
        for outcome, row in zip(outcomes, rows, strict=bool(rows)):
            self.server_side.replay_feedback(outcome, row)
        return rows


class ReplayedRun:
    """A run up to its last commit, on the run's own clock and budget: trainer, evaluator and recorder are its ledger.

    ``run`` is the run to be played; nothing is trained for it, and nothing of it is written again.
    """

    def __init__(self, run: FederatedRun, history: History) -> None:
        self._rounds = deque(history.rounds)
        self._visits = {row.visit: row for row in history.visits}
        self._asked_to_stop = run.is_stopped
        self.reorder_buffer = run.trainer.reorder_buffer
        self.run = replace(
            run,
            server=ReplayedServer(run.server, history.method_rows),
            trainer=self,
            evaluator=self,
            recorder=self,
            states=None,  # what clients kept is there already
            on_round=lambda progress: None,
            is_stopped=self._is_stopped,
            rounds=0,
            visits=0,
            evaluated=True,
            committed=RunTotals(),
            history=None,
        )

    @property
    def is_over(self) -> bool:
        """Whether all rounds of the ledger have been played."""
        return not self._rounds

    def _is_stopped(self) -> bool:
        """ReplayFinished when no further round is known."""
        stopped = self._asked_to_stop()
        if not stopped and self.is_over:
            raise ReplayFinished
        return stopped

    def submit(
        self,
        visits: Sequence[PlannedVisit],
        on_update: Callable[[Update], None],
        weights: Mapping[int, float] | None = None,
    ) -> TaskGroup:
        """What the ledger knows of the visits; nothing of those that had not ended."""

        def answer() -> None:
            for visit in visits:
                row = self._visits.get(visit.number)
                loss = row.loss if row is not None and row.loss is not None else 0.0
                on_update(Update(visit.client, visit.rng_round, {"loss": loss}, {}))

        return RecordedTraining(answer)

    def validate(self, update: Update, visit: PlannedVisit, base: Model) -> tuple[str, Update]:
        """As it was judged then."""
        return self._visits[visit.number].kind, update

    def accept_partial(self, totals: Totals, visits: Sequence[PlannedVisit]) -> None:
        """There are no vectors."""

    def evaluate(self, round: int) -> PendingEvaluation:
        """The evaluation as it was."""
        row = self._rounds[0]
        return RecordedEvaluation(lambda: (row.accuracy, math.inf if row.test_loss is None else row.test_loss))

    def snapshot(self, record: RoundRecord, memory: RunMemory) -> Snapshot:
        """Nothing of it is written again."""
        return Snapshot(self._rounds[0].model_sha256)

    def commit(self, pending: PendingCommit, row: RoundRow, stopped_by: str | None) -> None:
        """RunFailed unless the round is what it was."""
        known = self._rounds.popleft()
        if row != known:
            differing = [name for name in row._fields if getattr(row, name) != getattr(known, name)]
            raise RunFailed(
                f"round {known.round} cannot be played again: {', '.join(differing)} would not be as it was"
            )


@dataclass(frozen=True)
class RecordedTraining:
    """Stands where workers train: the updates are in the ledger, and are looked up when they are waited for."""

    wait: Callable[[], None]

    def collect(self) -> Totals:
        """There are no vectors."""
        return {}

    def cancel(self) -> None:
        """Nothing is under way."""


@dataclass(frozen=True)
class RecordedEvaluation:
    """An evaluation that is in the ledger, and is looked up when it is waited for."""

    wait: Callable[[], EvalResult]
