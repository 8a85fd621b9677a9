"""Visits under training whose replies are used in client order, however they come.

Workers get the longest visits first; replies are checked and folded into the server's sums as soon as their turn has
come, while other visits are still being trained. Where workers add the updates up, replies bring numbers alone, and the
server takes the sums at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from coordinator.aggregation.server import ServerStrategy
from coordinator.records.schema import TRAIN, TRAINED
from coordinator.rounds.ports import Trainer
from coordinator.rounds.visit import PlannedVisit
from edge.protocol.messages import Update


class CohortTraining:
    """The visits of one synchronous round, from the moment at which workers are asked to train them."""

    def __init__(self, trainer: Trainer, server: ServerStrategy, visits: Sequence[PlannedVisit]) -> None:
        self._trainer, self._server, self._visits = trainer, server, visits
        self._left = deque(sorted(visits, key=lambda visit: visit.client))
        self._replies: list[Update] = []
        self.faulty: dict[int, str] = {}
        """client -> kind of its visit, where its update could not be used"""
        self._waiting = trainer.reorder_buffer()
        self._in_workers = server.setup.sum == "fixed_point"
        clients = [visit.client for visit in visits]
        weights = server.aggregation_weights(clients) if self._in_workers else {}
        try:
            self._group = trainer.submit(visits, self._on_update, weights)
        except BaseException:
            self._waiting.close()
            raise

    def wait(self) -> list[Update]:
        """The replies that count, in client order, without their vectors, which the server has folded or taken.

        RunFailed for a reply that cannot be used; PoolError, Stopped.
        """
        try:
            self._group.wait()
        finally:
            self._waiting.close()
        assert not self._left
        if self._in_workers and self._replies:
            self._trainer.accept_partial(self._group.collect(), self._visits)
        return self._replies

    def cancel(self) -> None:
        """Nobody wants it any more; what was folded is for the caller to forget."""
        self._group.cancel()
        self._waiting.close()

    def _on_update(self, reply: Update) -> None:
        if self._is_next(reply.client):
            self._use(reply)
        else:
            self._waiting.add(reply)
        while self._left and self._left[0].client in self._waiting:
            self._use(self._waiting.take(self._left[0].client))

    def _is_next(self, client: int) -> bool:
        return bool(self._left) and self._left[0].client == client

    def _use(self, reply: Update) -> None:
        kind, reply = self._trainer.validate(reply, self._left.popleft(), self._server.model)
        if kind != TRAIN:
            self.faulty[reply.client] = kind
        if kind not in TRAINED:
            return
        if not self._in_workers:
            self._server.observe(reply)
            self._server.accumulate(reply)
        self._replies.append(replace(reply, payload={}))
