"""The past of an asynchronous run, played again without training, so that the run can go on from it.

What is under way on the clock between two commits (messages on shared links, events in SimPy's queue) cannot be written
down, but it follows from the scenario and from what the ledger knows of the visits that have ended. So the same stream
of visits is played on the same clock, with replies out of the ledger, up to its last round; then the vectors that a
ledger does not hold are put in place from the checkpoint.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.server import Model, Outcome
from coordinator.records.bookkeeping import Bookkeeping
from coordinator.records.checkpoints import Arrays
from coordinator.records.round_record import Rows
from coordinator.records.store import ChoiceRow, RoundRow, VisitRow
from coordinator.rounds.evaluation import Scoring
from coordinator.rounds.run import Committed, Ending, Federation, RunFailed
from coordinator.rounds.visit import Visit
from coordinator.workers.task import Order
from edge.protocol.messages import Update
from edge.protocol.payload import Payload, Vector

INDEX, VECTOR = "under way", "under way|"


@dataclass(frozen=True)
class Under:
    """What a ledger does not know of a visit that is under way."""

    payload: Payload
    model: Model
    """The global model at its beginning"""


def written(under_way: Mapping[int, Under]) -> dict[str, NDArray[np.generic]]:
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


def read_back(arrays: Arrays) -> dict[int, Under]:
    """Inverse of `written`."""
    index = json.loads(np.asarray(arrays[INDEX]).tobytes()) if INDEX in arrays else {}

    def some(names: Mapping[str, str]) -> Model:
        return {key: Vector(np.asarray(arrays[VECTOR + name], np.float32)) for key, name in names.items()}

    return {
        int(client): Under({slot: some(names) for slot, names in one["payload"].items()}, some(one["model"]))
        for client, one in index.items()
    }


class CaughtUp(Exception):  # noqa: N818 - no error, but the end of the past
    """All rounds of the ledger have been played again."""


class _Recalled(Bookkeeping):
    """What the server half learned then, it learns again from the ledger."""

    def __init__(self, run: Federation) -> None:
        super().__init__(run.server)
        self._choices = deque(run.ledger.choices())

    def step(self) -> None:
        """Of no updates; so that what goes down has the slots that it had."""
        self.half.step()

    def feedback(self, round: int, outcomes: Sequence[Outcome]) -> list[ChoiceRow]:
        """As it was."""
        rows = [self._choices.popleft() for _ in outcomes if self._choices]
        for outcome, row in zip(outcomes, rows, strict=bool(rows)):
            self.half.recall(outcome, row)
        return rows


class Past(Federation):
    """A run up to its last commit, on the run's own clock and budget, which nothing is trained for."""

    def __init__(self, run: Federation) -> None:
        given = {field.name: getattr(run, field.name) for field in fields(Federation)}
        super().__init__(**{**given, "server": _Recalled(run), "on_round": lambda progress: None})
        self.rounds, self.visits, self.scored, self.committed = 0, 0, True, Committed()
        self._rounds = deque(run.ledger.rounds())
        self._visits = {row.visit: row for row in run.ledger.visits()}

    @property
    def is_over(self) -> bool:
        """Whether all rounds of the ledger have been played."""
        return not self._rounds

    def heed(self) -> None:
        """CaughtUp when no further round is known."""
        super().heed()
        if self.is_over:
            raise CaughtUp

    @property
    def keeps(self) -> bool:
        """What clients kept is there already."""
        return False

    def submit(
        self,
        visits: Sequence[Visit],
        heard: Callable[[Update], None],
        shares: Mapping[int, float] | None = None,
    ) -> Order:
        """What the ledger knows of the visits; nothing of those that had not ended."""

        def hear() -> None:
            for visit in visits:
                row: VisitRow | None = self._visits.get(visit.number)
                loss = row.loss if row is not None and row.loss is not None else 0.0
                heard(Update(visit.client, visit.turn, {"loss": loss}, {}))

        return cast(Order, _Known(hear))

    def judge(self, reply: Update, visit: Visit, base: Model) -> tuple[str, Update]:
        """As it was judged then."""
        return self._visits[visit.number].kind, reply

    def evaluate(self, kept: Mapping[int, str]) -> Scoring:
        """The score as it was."""
        row = self._rounds[0]
        return cast(Scoring, _Known(lambda: (row.accuracy, np.inf if row.test_loss is None else row.test_loss)))

    def end(
        self, rows: Rows, scoring: Scoring | None, stopped_by: str | None = None, more: Arrays | None = None
    ) -> Ending:
        """Nothing of it is written again."""
        return Ending(rows, scoring, self.rounds, self.clock.now, {}, self._rounds[0].model_sha256, {}, stopped_by)

    def commit(self, ending: Ending, row: RoundRow) -> None:
        """RunFailed unless the round is what it was."""
        known = self._rounds.popleft()
        if row != known:
            differing = [name for name in row._fields if getattr(row, name) != getattr(known, name)]
            raise RunFailed(
                f"round {known.round} cannot be played again: {', '.join(differing)} would not be as it was"
            )


@dataclass(frozen=True)
class _Known:
    answer: Callable[[], Any]

    def wait(self) -> Any:
        return self.answer()
