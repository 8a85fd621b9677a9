"""History replay: the rounds of an asynchronous run, recomputed without training, so that the run can be resumed.

Visits in flight between two commits (messages on shared links, events in SimPy's queue) cannot be stored, but they
follow from the scenario and from the ledger's rows of ended visits. So the same visits are replayed on the same clock,
with updates from the ledger, up to its last round. The server side makes the same decisions, and learns from rows
instead of vectors; then vectors, which a ledger does not hold, are restored from the checkpoint.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.server import Model, Models, ServerStrategy, VisitFeedback
from coordinator.records.round_record import EvalResult, RoundRecord
from coordinator.records.schema import Lengths, RoundRow
from coordinator.rounds.ports import Arrays, PendingCommit, PendingEvaluation, RunMemory, Snapshot
from coordinator.rounds.run import FederatedRun, History, RunFailed, RunTotals
from coordinator.rounds.untrained import DecisionOnlyServer, KnownEvaluation, Untrained
from coordinator.rounds.visit import PlannedVisit
from edge.protocol.messages import Update, numbers_of_loss
from edge.protocol.payload import Payload, Vector

INDEX, VECTOR = "under way", "under way|"


@dataclass(frozen=True)
class InFlight:
    """Vectors of a visit in flight, which a ledger does not hold."""

    payload: Payload
    start: Models
    """The models that it started from (`ServerStrategy.start_model`)"""
    up: Lengths = field(default_factory=dict)
    """Bytes of the vectors of its upload, if only its training told them"""


def pack_in_flight(visits: Mapping[int, InFlight]) -> dict[str, NDArray[np.generic]]:
    """Arrays for a checkpoint, from visits by client: each vector once, and an index of the vectors of each visit."""
    vectors: dict[str, Vector] = {}

    def add(model: Model) -> dict[str, str]:
        names = {key: vector.version.hex() for key, vector in model.items()}
        vectors.update((name, model[key]) for key, name in names.items())
        return names

    index = {
        client: {
            part: {name: add(model) for name, model in parts.items()}
            for part, parts in (("start", visit.start), ("payload", visit.payload))
        }
        | {"up": visit.up}
        for client, visit in sorted(visits.items())
    }
    text = np.frombuffer(json.dumps(index).encode(), np.uint8)
    return {INDEX: text, **{VECTOR + name: vector.data for name, vector in vectors.items()}}


def unpack_in_flight(arrays: Arrays) -> dict[int, InFlight]:
    """Inverse of `pack_in_flight`; empty for a checkpoint without visits in flight."""
    index = json.loads(np.asarray(arrays[INDEX]).tobytes()) if INDEX in arrays else {}

    def model(names: Mapping[str, str]) -> Model:
        return {key: Vector(np.asarray(arrays[VECTOR + name], np.float32)) for key, name in names.items()}

    def models(part: Mapping[str, Mapping[str, str]]) -> Models:
        return {name: model(versions) for name, versions in part.items()}

    return {
        int(client): InFlight(models(visit["payload"]), models(visit["start"]), visit["up"])
        for client, visit in index.items()
    }


class ReplayFinished(Exception):  # noqa: N818 - a signal, not an error
    """All rounds of the ledger have been replayed."""


class ReplayedServer(DecisionOnlyServer):
    """A server side that learns from the rows of the ledger."""

    def __init__(self, server_side: ServerStrategy, method_rows: Sequence[Any]) -> None:
        super().__init__(server_side)
        self._rows = deque(method_rows)

    def step(self) -> None:
        """A step without updates, so that downloads have the same slots as before."""
        self.server_side.step()

    def feedback(self, round: int, outcomes: Sequence[VisitFeedback]) -> list[Any]:
        rows = [self._rows.popleft() for _ in outcomes if self._rows]
        for outcome, row in zip(outcomes, rows, strict=bool(rows)):
            self.server_side.replay_feedback(outcome, row)
        return rows


class ReplayedRun(Untrained):
    """A run up to its last commit, on its own clock and budget, with its ledger as trainer, evaluator and recorder.

    ``run`` is the replayed run; nothing is trained or written.
    """

    def __init__(self, run: FederatedRun, history: History) -> None:
        self._rounds = deque(history.rounds)
        self._evaluations = history.evaluations
        self._visits = {row.visit: row for row in history.visits}
        self._payloads, self._in_flight = history.payloads, unpack_in_flight(history.checkpoint)
        self._is_stopped_by_user = run.is_stopped
        super().__init__(len(run.description.samples))
        self.run = replace(
            run,
            server=ReplayedServer(run.server, history.method_rows),
            trainer=self,
            evaluator=self,
            recorder=self,
            states=None,  # client states exist already
            downloads=run.downloads.anew(),
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
        """Whether all rounds of the ledger have been replayed."""
        return not self._rounds

    def _is_stopped(self) -> bool:
        """Whether the user stops the run; ReplayFinished after the ledger's last round."""
        stopped = self._is_stopped_by_user()
        if not stopped and self.is_over:
            raise ReplayFinished
        return stopped

    def updates(self, visits: Sequence[PlannedVisit]) -> list[Update]:
        """Recorded updates of the visits; without a step for those that had not ended."""
        rows = [self._visits.get(visit.number) for visit in visits]
        return [
            Update(visit.client, visit.rng_round, numbers_of_loss(None if row is None else row.loss), {})
            for visit, row in zip(visits, rows, strict=True)
        ]

    def encoded(self, visit: PlannedVisit) -> Lengths:
        """As recorded, or of a visit in flight at the last commit, as its checkpoint has them."""
        row = self._visits.get(visit.number)
        return self._in_flight[visit.client].up if row is None else self._payloads[row.up_payload]

    def kind(self, visit: PlannedVisit) -> str:
        """The recorded one."""
        return self._visits[visit.number].kind

    def evaluate(self, round: int, clients: Sequence[int] | None = None) -> PendingEvaluation:
        """The recorded evaluation."""
        row = self._rounds[0]
        loss = math.inf if row.test_loss is None else row.test_loss
        return KnownEvaluation(lambda: EvalResult(row.accuracy, loss, self._evaluations.get(row.round, ()), row.score))

    def snapshot(self, record: RoundRecord, memory: RunMemory) -> Snapshot:
        """The recorded hash of the model."""
        return Snapshot(self._rounds[0].model_sha256)

    def commit(self, pending: PendingCommit, row: RoundRow, stopped_by: str | None) -> None:
        """RunFailed unless the round equals the recorded one."""
        recorded = self._rounds.popleft()
        if row != recorded:
            differing = [name for name in row._fields if getattr(row, name) != getattr(recorded, name)]
            raise RunFailed(f"round {recorded.round + 1} cannot be replayed: {', '.join(differing)} would differ")
