"""What goes out to workers: messages, tasks, and each block version once per worker."""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from coordinator.crew import Crew, Worker
from coordinator.door import UnreachableError
from coordinator.entrance import Entrance
from coordinator.orders import OpenTask
from coordinator.parcels import Parcels
from edge import messages, wire
from edge.payload import Vector


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
        envelope: wire.Envelope | None = None,
        entries: wire.Entries | None = None,
        frames: Sequence[zmq.Frame] = (),
    ) -> None:
        """One message. ``entries``: what its header says of vectors that were sent before."""
        run_id = self._run_id if worker.greeted else messages.NO_RUN
        packed = (envelope or wire.Envelope(worker.identity)).pack()
        header = (
            wire.encode(message, run_id).header if entries is None else wire.encode_header(message, run_id, entries)
        )
        parts: list[bytes | zmq.Frame] = [packed, header, *frames]
        door = self._entrance.guests if worker.key else self._entrance.own
        assert door is not None, worker.identity
        try:
            door.send(worker.identity, parts)
        except UnreachableError as error:
            self._crew.end(worker, f"it could not be reached: {error}")
            return
        self.nbytes += sum(len(part) for part in parts)

    def send_task(self, worker: Worker, sequence: int, opened: OpenTask) -> None:
        """One task, after what it needs and this worker does not hold yet."""
        task, _, parcel = opened
        missing, forget = self.parcels.delivery(worker.number, parcel)
        if missing:
            blocks = messages.Blocks(tuple(missing))
            envelope = wire.Envelope(worker.identity, forget=tuple(forget))
            self.send(worker, blocks, envelope, frames=[self._frame(vector) for vector in missing])
            forget = []
        envelope = wire.Envelope(
            worker.identity, sequence, task.state_in, task.state_out, tuple(forget), 0.0, task.share, self._crew.left
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
