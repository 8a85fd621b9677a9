"""Visits under training whose replies are used in client order, however they come.

Workers get the longest visits first; replies are checked and folded into the server's sums as soon as their turn has
come, while other visits are still being trained. Where workers add the updates up, replies bring numbers alone, and the
server takes the sums at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from coordinator.aggregation.server import Model, ServerStrategy
from coordinator.records.store import TRAIN, TRAINED
from coordinator.rounds.reorder_buffer import ReorderBuffer
from coordinator.rounds.visit import PlannedVisit
from coordinator.workers.task import TaskGroup, Workers
from edge.protocol.messages import Totals, Update

SPARE_REPLIES = 2
"""So many more replies than workers may wait in memory for their turn."""


class TrainingRun(Protocol):
    """What is needed of the run whose visits are trained (`coordinator.rounds.run`)."""

    workers: Workers
    server: ServerStrategy
    folder: Path

    def submit(
        self,
        visits: Sequence[PlannedVisit],
        heard: Callable[[Update], None],
        shares: Mapping[int, float] | None = None,
    ) -> TaskGroup:
        """Have these visits trained; ``heard`` gets each reply as it comes, unchecked."""
        ...

    def validate(self, reply: Update, visit: PlannedVisit, base: Model) -> tuple[str, Update]:
        """(kind of the visit, what counts of its reply)."""
        ...

    def accept_partial(self, totals: Totals, visits: Sequence[PlannedVisit]) -> None:
        """Hand the server what workers have added up of these visits."""
        ...


class CohortTraining:
    """The visits of one synchronous round, from the moment at which workers are asked to train them."""

    def __init__(self, run: TrainingRun, visits: Sequence[PlannedVisit]) -> None:
        self._run, self._visits = run, visits
        self._left = deque(sorted(visits, key=lambda visit: visit.client))
        self._replies: list[Update] = []
        self.faulty: dict[int, str] = {}
        """client -> kind of its visit, where its update could not be used"""
        self._held = ReorderBuffer(run.workers.size + SPARE_REPLIES, run.folder)
        self._in_workers = run.server.setup.sum == "fixed_point"
        clients = [visit.client for visit in visits]
        shares = run.server.aggregation_weights(clients) if self._in_workers else {}
        try:
            self._order = run.submit(visits, self._heard, shares)
        except BaseException:
            self._held.close()
            raise

    def wait(self) -> list[Update]:
        """The replies that count, in client order, without their vectors, which the server has folded or taken.

        RunFailed for a reply that cannot be used; PoolError, Stopped.
        """
        try:
            self._order.wait()
        finally:
            self._held.close()
        assert not self._left
        if self._in_workers and self._replies:
            self._run.accept_partial(self._order.collect(), self._visits)
        return self._replies

    def cancel(self) -> None:
        """Nobody wants it any more; what was folded is for the caller to forget."""
        self._order.cancel()
        self._held.close()

    def _heard(self, reply: Update) -> None:
        if self._is_next(reply.client):
            self._use(reply)
        else:
            self._held.add(reply)
        while self._left and self._left[0].client in self._held:
            self._use(self._held.take(self._left[0].client))

    def _is_next(self, client: int) -> bool:
        return bool(self._left) and self._left[0].client == client

    def _use(self, reply: Update) -> None:
        kind, reply = self._run.validate(reply, self._left.popleft(), self._run.server.model)
        if kind != TRAIN:
            self.faulty[reply.client] = kind
        if kind not in TRAINED:
            return
        if not self._in_workers:
            self._run.server.observe(reply)
            self._run.server.accumulate(reply)
        self._replies.append(replace(reply, payload={}))
