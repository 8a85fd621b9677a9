"""What goes out to workers: messages, tasks, and each block version once per worker."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import zmq

from coordinator.workers.block_cache import Parcels
from coordinator.workers.client_state_transfer import taken_along
from coordinator.workers.door import UnreachableError
from coordinator.workers.registry import Crew, Worker
from coordinator.workers.sockets import Entrance
from coordinator.workers.task_group import OpenTask
from edge.protocol import codec, messages
from edge.protocol.payload import Vector


class Outbox:
    """Sends to the workers of one pool; one that cannot be reached is ended, and its death brings its tasks back."""

    def __init__(self, run_id: str, entrance: Entrance, crew: Crew) -> None:
        self._run_id, self._entrance, self._crew = run_id, entrance, crew
        self._frames: dict[bytes, zmq.Frame] = {}  # one per version, whatever the number of workers it is sent to
        self.parcels = Parcels(lambda version: self._frames.pop(version, None))
        self.nbytes = 0
        """Bytes sent."""

    @property
    def versions(self) -> set[bytes]:
        """Of the frames that are kept."""
        return set(self._frames)

    def send(
        self,
        worker: Worker,
        message: messages.Message,
        envelope: codec.Envelope | None = None,
        entries: codec.Entries | None = None,
        frames: Sequence[zmq.Frame] = (),
    ) -> None:
        """One message. ``entries``: what its header says of vectors sent before; ``frames``: in place of its own."""
        run_id = self._run_id if worker.greeted else messages.NO_RUN
        parts: list[bytes | zmq.Frame] = [(envelope or codec.Envelope(worker.identity)).pack()]
        if entries is None:
            encoded = codec.encode(message, run_id)
            parts += [encoded.header, *(frames or [zmq.Frame(raw, copy=False) for raw in encoded.frames])]
        else:
            parts.append(codec.encode_header(message, run_id, entries))
        door = self._entrance.guests if worker.key else self._entrance.own
        assert door is not None, worker.identity
        try:
            door.send(worker.identity, parts)
        except UnreachableError as error:
            self._crew.end(worker, f"it could not be reached: {error}")
            return
        self.nbytes += sum(len(part) for part in parts)

    def send_task(self, worker: Worker, sequence: int, opened: OpenTask) -> None:
        """One task, after what it needs and this worker does not hold or reach. PoolError if that cannot be read."""
        task, _, parcel = opened
        missing, forget = self.parcels.delivery(worker.number, parcel)
        if missing:
            blocks = messages.Blocks(tuple(missing))
            envelope = codec.Envelope(worker.identity, forget=tuple(forget))
            self.send(worker, blocks, envelope, frames=[self._frame(vector) for vector in missing])
            forget = []
        state_in, state_out = task.state_in, task.state_out
        if worker.key:
            worker.sent_at[sequence] = time.monotonic()
            # a guest is told that there is something to read or to keep, and not where it lies on this machine
            state_in, state_out = [None if path is None else Path(path).name for path in (state_in, state_out)]
            kept = taken_along(task)
            if kept is not None:
                self.send(worker, kept, codec.Envelope(worker.identity, sequence))
        envelope = codec.Envelope(
            worker.identity, sequence, state_in, state_out, tuple(forget), 0.0, task.share, self._crew.left
        )
        # the vectors were sent as blocks, now or before: the header alone names them
        self.send(worker, task.message, envelope, parcel.entries)

    def dismiss(self, worker: Worker, why: str) -> None:
        """Have a worker ended. A guest is told, since nobody here can end its process."""
        if worker.key:
            self.send(worker, messages.Bye(why[: messages.MAX_ERROR_TEXT]))
        self._crew.end(worker, why)

    def _frame(self, vector: Vector) -> zmq.Frame:
        if vector.version not in self._frames:
            self._frames[vector.version] = zmq.Frame(vector.data.data, copy=False)
        return self._frames[vector.version]
