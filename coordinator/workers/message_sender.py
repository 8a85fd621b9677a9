"""Messages to a pool's workers: tasks, and a block version once per worker (`edge.protocol.serialization`).

Local workers map long block versions (`coordinator.workers.block_cache`). Remote workers do not reach the run's
folder: the client state that a task needs is read when the task is sent to a remote worker, unless that worker did the
client's last visit.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import zmq

from coordinator.workers.block_cache import CachedPayload, CachedPayloads, SharedBlocks
from coordinator.workers.registry import Worker, WorkerRegistry
from coordinator.workers.sockets import Sockets, UnreachableError
from coordinator.workers.task import PoolError, PoolTask
from coordinator.workers.task_group import OpenTask
from edge.protocol import client_state, messages, serialization
from edge.protocol.messages import ClientState, Describe, Train
from edge.protocol.variant import PLAIN


class MessageSender:
    """Sends to the workers of one pool. A worker that cannot be reached is ended, and its tasks requeued."""

    def __init__(self, run_id: str, sockets: Sockets, registry: WorkerRegistry, shared: SharedBlocks) -> None:
        """``shared``: the block versions that local workers map."""
        self._run_id, self._sockets, self._registry, self._shared = run_id, sockets, registry, shared
        self.frames: dict[bytes, zmq.Frame] = {}
        """One per version that is sent, for all workers."""
        self.cached_payloads = CachedPayloads(lambda version: self.frames.pop(version, None), shared.remove)
        self._state_holders: dict[int, tuple[int, str]] = {}
        """client -> (remote worker that did its last visit, name of the state that it has since)"""
        self.nbytes = 0
        """Bytes sent."""

    def send(
        self,
        worker: Worker,
        message: messages.Message,
        envelope: serialization.Envelope | None = None,
        entries: serialization.TensorSpecs | None = None,
        frames: Sequence[zmq.Frame] = (),
    ) -> None:
        """Send one message. ``entries``: the header's, for vectors sent before; ``frames``: in place of its own."""
        run_id = self._run_id if worker.greeted else messages.NO_RUN
        parts: list[bytes | zmq.Frame] = [(envelope or serialization.Envelope(worker.identity)).pack()]
        if entries is None:
            encoded = serialization.encode(message, run_id)
            parts += [encoded.header, *(frames or [zmq.Frame(raw, copy=False) for raw in encoded.frames])]
        else:
            parts.append(serialization.encode_header(message, run_id, entries))
        self._send(worker, parts)

    def send_tracked(self, worker: Worker, message: messages.Message) -> zmq.MessageTracker:
        """Send one message without frames; the tracker is done when its header has left the queue."""
        encoded = serialization.encode(message, self._run_id)
        assert not encoded.frames, message
        header = zmq.Frame(encoded.header, track=True, copy=False)
        self._send(worker, [serialization.Envelope(worker.identity).pack(), header])
        tracker: zmq.MessageTracker | None = header.tracker
        assert tracker is not None
        return tracker

    def _send(self, worker: Worker, parts: Sequence[bytes | zmq.Frame]) -> None:
        router_socket = self._sockets.remote_workers if worker.key else self._sockets.own
        assert router_socket is not None, worker.identity
        try:
            router_socket.send(worker.identity, parts)
        except UnreachableError as error:
            self._registry.end(worker, f"it could not be reached: {error}")
            return
        self.nbytes += sum(len(part) for part in parts)

    def send_tasks(self, worker: Worker, opened: Mapping[int, OpenTask]) -> None:
        """Send tasks, in order, after the vectors and client state that the worker lacks.

        Visits that need the same vectors go out as one message. PoolError for client state that cannot be read.
        """
        for (cached_payload, types), group in groupby(opened.items(), lambda item: self._batch(worker, item[1])):
            assert cached_payload is not None, worker.identity
            together, most = list(group), 1 if types is None else messages.MAX_BATCH
            for tasks in (together[i : i + most] for i in range(0, len(together), most)):
                evict = self._send_vectors(worker, cached_payload)
                now = time.monotonic()
                if worker.key:
                    worker.sent_at.update((sequence, now) for sequence, _ in tasks)
                if len(tasks) > 1:
                    self._send_visits(worker, tasks, evict)
                else:
                    self._send_task(worker, *tasks[0], evict)

    def _send_vectors(self, worker: Worker, cached_payload: CachedPayload) -> list[bytes]:
        """Send or map the vectors that the worker lacks; returns the versions that its next message may evict."""
        missing, evict = self.cached_payloads.delivery(worker.number, cached_payload)
        if not missing:
            return evict
        mapped = [] if worker.key else [vector for vector in missing if self._shared.share(vector)]
        envelope = serialization.Envelope(worker.identity, evict=tuple(evict))
        if mapped:
            sizes = {vector.version.hex(): vector.data.size for vector in mapped}
            self.send(worker, messages.MappedTensors(self._shared.folder, sizes), envelope)
            envelope = serialization.Envelope(worker.identity)
            missing = [vector for vector in missing if vector.version.hex() not in sizes]
        if missing:
            for vector in missing:
                if vector.version not in self.frames:
                    self.frames[vector.version] = zmq.Frame(vector.data.data, copy=False)
            frames = [self.frames[vector.version] for vector in missing]
            self.send(worker, messages.Tensors(tuple(missing)), envelope, frames=frames)
        return []

    def _send_task(self, worker: Worker, sequence: int, opened: OpenTask, evict: Sequence[bytes]) -> None:
        task, _, cached_payload = opened
        assert cached_payload is not None, task.name
        if self._needs_state(worker, task) and task.state_in is not None and not isinstance(task.message, Describe):
            try:
                state = ClientState(task.message.client, client_state.read(task.state_in))
            except client_state.StateError as error:
                raise PoolError(f"{task.name}: the client's state cannot be read: {error}") from error
            self.send(worker, state, serialization.Envelope(worker.identity, sequence))
        state_in, state_out = [_path_for(worker, path) for path in (task.state_in, task.state_out)]
        envelope = serialization.Envelope(
            worker.identity, sequence, state_in, state_out, tuple(evict), 0.0, task.weight, self._registry.retired_slots
        )
        # the vectors were sent as blocks, now or before: the header only names their versions
        self.send(worker, task.message, envelope, cached_payload.entries)

    def _send_visits(self, worker: Worker, opened: Sequence[tuple[int, OpenTask]], evict: Sequence[bytes]) -> None:
        tasks = [open_task.task for _, open_task in opened]
        visits = [task.message for task in tasks if isinstance(task.message, Train)]
        cached_payload = opened[0][1].cached_payload
        assert cached_payload is not None, worker.identity
        message = messages.Visits(
            [sequence for sequence, _ in opened],
            [visit.client for visit in visits],
            [visit.round for visit in visits],
            [visit.lr for visit in visits],
            [task.weight for task in tasks],
            [_path_for(worker, task.state_in) for task in tasks],
            [_path_for(worker, task.state_out) for task in tasks],
            {name: [visit.choice[name] for visit in visits] for name in visits[0].choice},
            visits[0].payload,
            () if visits[0].variant == PLAIN else [visit.variant for visit in visits],
        )
        retired = self._registry.retired_slots
        envelope = serialization.Envelope(worker.identity, evict=tuple(evict), retired_slots=retired)
        self.send(worker, message, envelope, cached_payload.entries)

    def note_state(self, worker: Worker, task: PoolTask) -> None:
        """A reply of this worker to the task counts: a remote worker has the client's state since, and no other has."""
        if task.state_out is None or not isinstance(task.message, Train):
            return
        if worker.key:
            self._state_holders[task.message.client] = worker.number, Path(task.state_out).name
        else:  # all local workers reach the file
            self._state_holders.pop(task.message.client, None)

    def forget_state(self, worker: Worker, task: PoolTask) -> bool:
        """A remote worker has not the client's state for a task; whether it should have had it."""
        if task.state_in is None or isinstance(task.message, Describe) or self._needs_state(worker, task):
            return False
        return bool(worker.key) and self._state_holders.pop(task.message.client, None) is not None

    def state_holder(self, task: PoolTask) -> int | None:
        """The number of the remote worker, perhaps a lost one, that has the client's state for a task."""
        if task.state_in is None or isinstance(task.message, Describe):
            return None
        holder, name = self._state_holders.get(task.message.client, (None, ""))
        return holder if name == Path(task.state_in).name else None

    def _needs_state(self, worker: Worker, task: PoolTask) -> bool:
        """Whether client state must be sent ahead of a task."""
        return bool(worker.key) and task.state_in is not None and self.state_holder(task) != worker.number

    def _batch(self, worker: Worker, opened: OpenTask) -> tuple[CachedPayload | None, tuple[Hashable, ...] | None]:
        """The values that tasks sent as one message have in common: (their vectors, types of their choices' numbers and
        names of their variants'; None if they cannot be)."""
        message = opened.task.message
        if not isinstance(message, Train) or self._needs_state(worker, opened.task):
            return opened.cached_payload, None
        return opened.cached_payload, (*map(type, message.choice.values()), *message.variant.named())

    def end(self, worker: Worker, why: str) -> None:
        """End a worker. A remote worker is told to end, since its process cannot be ended from here."""
        if worker.key:
            self.send(worker, messages.Shutdown(why[: messages.MAX_ERROR_TEXT]))
        self._registry.end(worker, why)


def _path_for(worker: Worker, path: str | None) -> str | None:
    """The file of client state as a worker is told it. A remote worker learns no path of this machine."""
    return path if path is None or not worker.key else Path(path).name
