"""Rounds whose visits are not trained here: of replays, of the past of resumed runs, and of forecasts.

The loops are those of runs that train (`coordinator.rounds.synchronous`, `coordinator.rounds.asynchronous`), and the
method's server side decides what is sent. Updates have numbers alone; the only models are zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.server import Download, LaterPayload, Models, ServerStrategy, VisitFeedback
from coordinator.records.round_record import NOT_EVALUATED, EvalResult, RoundRecord
from coordinator.records.schema import Lengths, RoundRow
from coordinator.rounds.ports import PendingCommit, PendingEvaluation, RunMemory, Snapshot
from coordinator.rounds.reorder_buffer import ReorderBuffer
from coordinator.rounds.visit import PlannedVisit
from coordinator.workers.task import TaskGroup
from edge.protocol.messages import Choice, Totals, Update, numbers_of_loss
from edge.protocol.payload import VERSION_NBYTES, Payload, Shapes, Vector


class DecisionOnlyServer(ServerStrategy):
    """The decisions of another server side, without vectors, for visits that were trained before."""

    def __init__(self, server_side: ServerStrategy) -> None:
        super().__init__(replace(server_side.setup, sum="client_order"), server_side.extensions)
        self.server_side = server_side

    def place(self, aggregator_of: NDArray[np.intp]) -> None:
        self.server_side.place(aggregator_of)

    def choose(self, client: int, round: int) -> Choice:
        return self.server_side.choose(client, round)

    def payload(self, client: int, round: int, choice: Choice) -> Payload | LaterPayload:
        return self.server_side.payload(client, round, choice)

    def charged(self, down: Shapes, since: int) -> Shapes:
        return self.server_side.charged(down, since)

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

    def observe(self, reply: Update, start: Callable[[], Models]) -> None:
        """Updates have no vectors."""

    def accumulate(self, reply: Update) -> None:
        """Updates have no vectors."""

    def step(self) -> None:
        """Without vectors there is no step."""


def placeholders(shapes: Shapes) -> Payload:
    """Zeros of these shapes, which take no memory."""
    zero = np.zeros(1, np.float32)
    return {
        slot: {key: Vector(np.broadcast_to(zero, (size,)), bytes(VERSION_NBYTES)) for key, size in sizes.items()}
        for slot, sizes in shapes.items()
    }


@dataclass(frozen=True)
class KnownUpdates:
    """Updates without training; ``wait`` gives them."""

    wait: Callable[[], None]

    def collect(self) -> Totals:
        """Updates have no vectors."""
        return {}

    def cancel(self) -> None:
        """There is nothing to cancel."""


@dataclass(frozen=True)
class KnownEvaluation:
    """An evaluation whose result is known; ``wait`` gives it."""

    wait: Callable[[], EvalResult]


class Untrained:
    """A trainer that trains nothing, an evaluator without values, and a recorder that keeps nothing. Base of all.

    Subclasses can customise by overriding

    - ``updates``: what visits report;
    - ``kind``: whether an update counts;
    - ``encoded``: lengths of uploads that depend on numbers;
    - ``evaluate``, ``snapshot`` and ``commit``.
    """

    def __init__(self, clients: int) -> None:
        self._clients = clients

    def updates(self, visits: Sequence[PlannedVisit]) -> list[Update]:
        """The updates of these visits, without vectors; by default without a loss, too."""
        return [Update(visit.client, visit.rng_round, numbers_of_loss(None), {}) for visit in visits]

    def kind(self, visit: PlannedVisit) -> str:
        """The kind of a visit whose update counts, or of one whose update failed a check."""
        return visit.kind

    def encoded(self, visit: PlannedVisit) -> Lengths:
        """Bytes of the vectors of a visit's upload, by default their bounds."""
        return visit.price.up

    def evaluate(self, round: int, clients: Sequence[int] | None = None) -> PendingEvaluation:
        return KnownEvaluation(lambda: NOT_EVALUATED)

    def snapshot(self, record: RoundRecord, memory: RunMemory) -> Snapshot:
        """No model is kept."""
        return Snapshot("")

    def commit(self, pending: PendingCommit, row: RoundRow, stopped_by: str | None) -> None:
        """Nothing is kept."""

    def submit(
        self,
        visits: Sequence[PlannedVisit],
        on_update: Callable[[Update], None],
        weights: Mapping[int, float] | None = None,
        order: Sequence[int] = (),
    ) -> TaskGroup:
        """As of `coordinator.rounds.ports.Trainer`, as is all that follows."""

        def answer() -> None:
            for update in self.updates(visits):
                on_update(update)

        return KnownUpdates(answer)

    def begun(self, visit: PlannedVisit) -> PlannedVisit:
        """Without vectors there is nothing to hold."""
        return visit

    def train_first(self, visits: Sequence[PlannedVisit]) -> None:
        """Nothing is trained."""

    def downloaded(self, visit: PlannedVisit) -> Payload:
        """Zeros."""
        return placeholders(visit.down)

    def validate(self, update: Update, visit: PlannedVisit) -> tuple[str, Update]:
        return self.kind(visit), update

    def accept_partial(self, totals: Totals, visits: Sequence[PlannedVisit]) -> None:
        """Updates have no vectors."""

    def reorder_buffer(self) -> ReorderBuffer:
        """A buffer in memory for all updates, since they have no vectors."""
        return ReorderBuffer(self._clients, Path())
