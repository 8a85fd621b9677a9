"""The ports of a run: trainer, evaluator and recorder. The fourth port is the clock (`costmodel.clock.Clock`).

A run that trains uses the worker pool and files (`coordinator.rounds.pool_trainer`, `coordinator.rounds.evaluation`,
`coordinator.records.checkpoints`); a replay uses a ledger (`coordinator.records.history_replay`, ``fedbr replay``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.server import Models
from coordinator.records.round_record import EvalResult, RoundRecord
from coordinator.records.schema import Lengths, RoundRow
from coordinator.rounds.reorder_buffer import ReorderBuffer
from coordinator.rounds.visit import PlannedVisit
from coordinator.workers.task import TaskGroup
from edge.protocol.messages import Totals, Update
from edge.protocol.payload import Payload

Arrays = Mapping[str, NDArray[np.generic]]
"""name -> array, as in a checkpoint"""


class Trainer(Protocol):
    """Trains visits, and validates their updates."""

    def submit(
        self,
        visits: Sequence[PlannedVisit],
        on_update: Callable[[Update], None],
        weights: Mapping[int, float] | None = None,
        order: Sequence[int] = (),
    ) -> TaskGroup:
        """Submit these visits for training; ``on_update`` gets each update on arrival, before validation.

        ``weights``: client -> aggregation weight, for partial sums in the workers, which the group then collects.
        ``order``: the client of each step where they train one server part together (`coordinator.rounds.split`).
        """
        ...

    def begun(self, visit: PlannedVisit) -> PlannedVisit:
        """A visit that begins now and is submitted later: it holds the models that it starts from, and its download is
        built once, in the background."""
        ...

    def downloaded(self, visit: PlannedVisit) -> Payload:
        """The vectors that a visit has downloaded which counts; to be called once. A replay has none, but their
        places."""
        ...

    def train_first(self, visits: Sequence[PlannedVisit]) -> ReorderBuffer | None:
        """Train visits before they are timed, so that `encoded` is known of them; returns their updates.

        None if they are submitted later all the same, since `encoded` is known anyway.
        """
        ...

    def encoded(self, visit: PlannedVisit) -> Lengths:
        """Bytes of the frames that a codec has made of the update of a visit."""
        ...

    def validate(self, update: Update, visit: PlannedVisit) -> tuple[str, Update]:
        """(kind of the visit, its update as it counts).

        RunFailed for an invalid update that ends the run.
        """
        ...

    def accept_partial(self, totals: Totals, visits: Sequence[PlannedVisit]) -> None:
        """Accumulate the partial sums of these visits; RunFailed if they are invalid."""
        ...

    def reorder_buffer(self) -> ReorderBuffer:
        """A new, empty reorder buffer."""
        ...


class PendingEvaluation(Protocol):
    """A submitted evaluation."""

    def wait(self) -> EvalResult:
        """Wait for its result."""
        ...


class Evaluator(Protocol):
    """Evaluates the server's model on the test set, each client's model on its examples, or both."""

    def evaluate(self, round: int, clients: Sequence[int] | None = None) -> PendingEvaluation:
        """Submit an evaluation of the current model, after ``round`` server steps.

        ``clients``: those whose models are evaluated, in ascending order, if clients' models are; None: all.
        """
        ...


@dataclass(frozen=True)
class RunMemory:
    """The state of a run between two rounds that is not in its ledger."""

    rounds: int
    """Server steps so far"""
    visits: int
    """Visits begun so far"""
    evaluated: bool
    """Whether the current model has been evaluated"""
    clock: Arrays
    policy_state: Arrays = field(default_factory=dict)
    """Arrays of the round policy"""


@dataclass(frozen=True)
class Snapshot:
    """The models and the state of a run at the end of a round, as a checkpoint will hold them."""

    model_sha256: str
    models: Models = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    vectors: Mapping[tuple[int, str], str] = field(default_factory=dict)
    """(client, slot) -> new file of the server's vectors of a client"""
    obsolete: Collection[str] = ()
    """Files of such vectors that were replaced before this commit"""


@dataclass(frozen=True)
class PendingCommit:
    """A round that has ended: everything for its commit except the result of the evaluation."""

    record: RoundRecord
    evaluation: PendingEvaluation | None
    rounds: int
    """Server steps so far"""
    virtual_seconds: float
    snapshot: Snapshot
    stopped_by: str | None
    """The rule that ends the run with this round, whatever the evaluation gives"""


class Recorder(Protocol):
    """Records the rounds of a run."""

    def snapshot(self, record: RoundRecord, memory: RunMemory) -> Snapshot:
        """A snapshot for the commit of a round that has ended, unaffected by later changes of the run."""
        ...

    def commit(self, pending: PendingCommit, row: RoundRow, stopped_by: str | None) -> None:
        """Commit a round durably, with all that a resumed run needs.

        ``stopped_by``: the rule that ends the run with this round.
        """
        ...
