"""Training of a synchronous round's visits; their updates are used in client order.

Workers get the longest visits first. Updates are validated and accumulated as soon as those of all earlier clients are,
while other visits are still in training. With partial aggregation, updates have numbers only, and the server gets the
partial sums at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from coordinator.aggregation.server import ServerStrategy
from coordinator.records.schema import TRAIN, TRAINED
from coordinator.rounds.ports import Trainer
from coordinator.rounds.reorder_buffer import ReorderBuffer
from coordinator.rounds.visit import PlannedVisit
from coordinator.workers.task import TaskGroup
from edge.protocol.messages import Update


class CohortTraining:
    """The submitted visits of one synchronous round.

    ``received``: their updates, and perhaps others, if they have been trained already. ``order``: as of
    `coordinator.rounds.ports.Trainer.submit`.
    """

    def __init__(
        self,
        trainer: Trainer,
        server: ServerStrategy,
        visits: Sequence[PlannedVisit],
        received: ReorderBuffer | None = None,
        order: Sequence[int] = (),
    ) -> None:
        self._trainer, self._server, self._visits = trainer, server, visits
        self._remaining = deque(sorted(visits, key=lambda visit: visit.client))
        self._updates: list[Update] = []
        self.faulty: dict[int, str] = {}
        """client -> kind of its visit, if its update failed a check"""
        self._in_workers = server.setup.sum == "fixed_point"
        self._group: TaskGroup | None = None
        if received is not None:
            self._reorder_buffer = received
            return
        self._reorder_buffer = trainer.reorder_buffer()
        clients = [visit.client for visit in visits]
        weights = server.partial_weights(clients) if self._in_workers else {}
        try:
            self._group = trainer.submit(visits, self._on_update, weights, order)
        except BaseException:
            self._reorder_buffer.close()
            raise

    def wait(self) -> list[Update]:
        """The updates that count, in client order, without their vectors, which the server has accumulated.

        RunFailed for an invalid update that ends the run; PoolError, Stopped.
        """
        try:
            if self._group is None:
                self._use_in_order()
            else:
                self._group.wait()
        finally:
            self._reorder_buffer.close()
        assert not self._remaining
        if self._in_workers and self._updates and self._group is not None:
            self._trainer.accept_partial(self._group.collect(), self._visits)
        return self._updates

    def cancel(self) -> None:
        """Cancel the training. Updates that were accumulated stay in the server's sums."""
        if self._group is not None:
            self._group.cancel()
        self._reorder_buffer.close()

    def _on_update(self, update: Update) -> None:
        if self._remaining and self._remaining[0].client == update.client:
            self._use(update)
        else:
            self._reorder_buffer.add(update)
        self._use_in_order()

    def _use_in_order(self) -> None:
        """Use the updates that have come as far as those of all earlier clients have."""
        while self._remaining and self._remaining[0].client in self._reorder_buffer:
            self._use(self._reorder_buffer.take(self._remaining[0].client))

    def _use(self, update: Update) -> None:
        kind, update = self._trainer.validate(update, self._remaining.popleft())
        start = partial(self._server.start_model, update.client)  # no step lies between
        if kind != TRAIN:
            self.faulty[update.client] = kind
        if kind not in TRAINED:
            return
        if not self._in_workers:
            update = self._server.clipped(update, start())
            self._server.observe(update, start)
            self._server.accumulate(update)
        self._updates.append(replace(update, payload={}) if update.payload else update)
