"""What a run asks of others: to train its visits, to evaluate its model, and to record its rounds.

Behind a run that trains stand worker processes and files (`coordinator.rounds.pool_trainer`,
`coordinator.rounds.evaluation`, `coordinator.records.checkpoints`); behind one whose visits were trained before stands
their ledger (`coordinator.records.history_replay`, ``fedbr replay``). The fourth port is the clock
(`costmodel.clock.Clock`), the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.server import Model
from coordinator.records.round_record import EvalResult, RoundRecord
from coordinator.records.schema import RoundRow
from coordinator.rounds.reorder_buffer import ReorderBuffer
from coordinator.rounds.visit import PlannedVisit
from coordinator.workers.task import TaskGroup
from edge.protocol.messages import Totals, Update

Arrays = Mapping[str, NDArray[np.generic]]
"""By name, as a checkpoint holds them"""


class Trainer(Protocol):
    """Has visits trained, and judges the updates that come of them."""

    def submit(
        self,
        visits: Sequence[PlannedVisit],
        on_update: Callable[[Update], None],
        weights: Mapping[int, float] | None = None,
    ) -> TaskGroup:
        """Have these visits trained; ``on_update`` gets each update as it comes, unchecked.

        ``weights``: client -> its part of the mean, with which its worker adds the update up; the group then collects.
        """
        ...

    def validate(self, update: Update, visit: PlannedVisit, base: Model) -> tuple[str, Update]:
        """(kind of the visit, what counts of its update); ``base`` is the global model that the visit began with.

        RunFailed where an update that cannot be used ends the run.
        """
        ...

    def accept_partial(self, totals: Totals, visits: Sequence[PlannedVisit]) -> None:
        """Hand the server what workers have added up of these visits; RunFailed if it cannot be used."""
        ...

    def reorder_buffer(self) -> ReorderBuffer:
        """A new place for updates that wait for their turn."""
        ...


class PendingEvaluation(Protocol):
    """An evaluation under way."""

    def wait(self) -> EvalResult:
        """(accuracy, mean loss)."""
        ...


class Evaluator(Protocol):
    """Evaluates the server's model, as the method says: on the test set, or client by client."""

    def evaluate(self, round: int) -> PendingEvaluation:
        """Ask for an evaluation of the model as it stands after ``round`` server steps."""
        ...


@dataclass(frozen=True)
class RunMemory:
    """What a run must remember between two rounds, beside its ledger."""

    rounds: int
    """Server steps so far"""
    visits: int
    """Visits begun so far"""
    evaluated: bool
    """Whether the model as it stands has been evaluated"""
    clock: Arrays
    more: Arrays = field(default_factory=dict)
    """Of the round policy's own"""


@dataclass(frozen=True)
class Snapshot:
    """The model and the memory of a run at the end of a round, as a checkpoint will hold them."""

    model_sha256: str
    model: Model = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class PendingCommit:
    """A round that has ended: all that its commit needs but the evaluation, which may still be under way."""

    record: RoundRecord
    evaluation: PendingEvaluation | None
    rounds: int
    """Server steps so far"""
    virtual_seconds: float
    snapshot: Snapshot
    stopped_by: str | None
    """The rule that ends the run here, whatever the evaluation says"""


class Recorder(Protocol):
    """Writes down what a run has done."""

    def snapshot(self, record: RoundRecord, memory: RunMemory) -> Snapshot:
        """A round has ended; what the run does from now on changes nothing of what will be committed."""
        ...

    def commit(self, pending: PendingCommit, row: RoundRow, stopped_by: str | None) -> None:
        """Write a round for good, with all that a run needs to go on from its end.

        ``stopped_by``: the rule that ends the run with this round.
        """
        ...
