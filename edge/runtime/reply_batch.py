"""Replies that wait for others, so that short visits do not cost a message each. Never torch.

An update waits for `BATCH_SECONDS` at most, or for the task that ends after these, and not at all if its worker soon
has nothing else to do. Its vectors are copied into one frame, so that the next task may overwrite them; long ones are
not worth the copy, and are sent alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from msgspec.structs import replace

from edge.protocol import messages, serialization
from edge.protocol.payload import ITEM_NBYTES, Payload, Vector, frame_nbytes, nbytes, shapes, vectors

BATCH_SECONDS = 0.1
"""Half of the foreseen work that a coordinator prefetches (`coordinator.workers.assignment`): more comes in time."""
MAX_COPY_NBYTES = 1 << 20
"""Longest upload that waits."""
MAX_BATCH_NBYTES = 1 << 21
"""Bytes of uploads that wait together. With its header a batch has less than 4 MiB, which every run allows beside its
largest upload."""


class ReplySender(Protocol):
    """The part of `edge.runtime.connection.CoordinatorConnection` that sends."""

    def send(
        self, message: messages.Message, sequence: int = 0, wall_seconds: float = 0.0, telemetry: str = ""
    ) -> None:
        """Send a message."""
        ...


class ReplyBatch:
    """The updates of a worker, or of a node agent, that have not been sent."""

    def __init__(self, connection: ReplySender, seconds: float = BATCH_SECONDS) -> None:
        self._connection, self._seconds = connection, seconds
        self._waiting: list[tuple[int, float, messages.Update]] = []
        self._nbytes = 0
        self._since = 0.0

    def add(self, sequence: int, seconds: float, reply: messages.Message) -> bool:
        """Keep an update for the next batch; False for a reply that must be sent alone."""
        if not isinstance(reply, messages.Update):
            return False
        size = nbytes(reply.payload) + sum(sum(named.values()) for named in frame_nbytes(reply.encoded).values())
        if size > MAX_COPY_NBYTES:
            return False
        if len(reply.numbers) > messages.MAX_BATCH_NUMBERS:
            return False
        if self._waiting and (not _match(self._waiting[0][2], reply) or self._is_full(size)):
            self.send()
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting.append((sequence, seconds, replace(reply, payload=_copy(reply.payload))))
        self._nbytes += size
        return True

    @property
    def is_waiting(self) -> bool:
        """Whether there are any."""
        return bool(self._waiting)

    def is_due(self) -> bool:
        """Whether the updates have waited long enough, or are many."""
        is_late = time.monotonic() >= self._since + self._seconds
        return bool(self._waiting) and (is_late or self._is_full(self._nbytes // len(self._waiting)))

    def _is_full(self, more_nbytes: int) -> bool:
        """Whether an update of so many bytes does not fit into the batch."""
        count = len(self._waiting) + 1
        first = self._waiting[0][2]
        count_of_vectors = count * (sum(map(len, first.payload.values())) + sum(map(len, first.encoded.values())))
        return (
            count > messages.MAX_BATCH
            or count_of_vectors > messages.MAX_BATCH_VECTORS
            or self._nbytes + more_nbytes > MAX_BATCH_NBYTES
        )

    def send(self) -> None:
        """Send all of them."""
        waiting, self._waiting, self._nbytes = self._waiting, [], 0
        if len(waiting) == 1:
            ((sequence, seconds, update),) = waiting
            self._connection.send(update, sequence, seconds)
        elif waiting:
            updates = [update for _, _, update in waiting]  # all report the same numbers and shapes
            batch = messages.Updates(
                [sequence for sequence, _, _ in waiting],
                [update.client for update in updates],
                [update.round for update in updates],
                [seconds for _, seconds, _ in waiting],
                {name: [update.numbers[name] for update in updates] for name in updates[0].numbers},
                {name: [update.logged[name] for update in updates] for name in updates[0].logged},
                [update.payload for update in updates] if updates[0].payload or updates[0].encoded else [],
                [update.encoded for update in updates] if updates[0].encoded else [],
            )
            self._connection.send(batch)


def _match(first: messages.Update, other: messages.Update) -> bool:
    """Whether two updates fit into one batch."""
    names = [(list(each.numbers), list(each.logged)) for each in (first, other)]
    sizes = [(shapes(each.payload), frame_nbytes(each.encoded)) for each in (first, other)]
    return names[0] == names[1] and sizes[0] == sizes[1]


def _copy(payload: Payload) -> Payload:
    """The same numbers, as views of one new array. (Frames of a codec are arrays of their own.)"""
    flat = np.empty(nbytes(payload) // ITEM_NBYTES, np.float32)
    copied: Payload = {}
    end = 0
    for slot, key, vector in vectors(payload):
        begin, end = end, end + vector.data.size
        flat[begin:end] = vector.data
        copied.setdefault(slot, {})[key] = Vector(flat[begin:end])
    return copied


def visits_of(
    envelope: serialization.Envelope, visits: messages.Visits
) -> Iterator[tuple[serialization.Envelope, messages.Train]]:
    """The visits of a batch, each with an envelope of its own."""
    for sequence, weight, state_in, state_out, visit in visits.tasks():
        yield (
            serialization.Envelope(
                envelope.worker, sequence, state_in, state_out, weight=weight, retired_slots=envelope.retired_slots
            ),
            visit,
        )
