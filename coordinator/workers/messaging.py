"""Messages between a pool and its workers, by the protocol of `edge.protocol.codec`.

`MessageHandler` checks each message against the state of its sender, and turns it into an event of the scheduler. A
worker that sends an invalid message is ended, and nothing else changes. `MessageSender` sends messages and tasks, and
each block version once per worker.

Remote workers do not reach the run's folder. The client state that a task needs is read when the task is sent to a
remote worker, unless that worker did the client's last visit, and written when its update is accepted, in the files
that a local worker would have read and written. It is charged to nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zmq

from coordinator.workers.block_cache import CachedPayload, CachedPayloads
from coordinator.workers.file_sender import FileSender
from coordinator.workers.instructions import DeliverPartial, DeliverReply, DropReply, Instruction
from coordinator.workers.registry import Worker, WorkerRegistry
from coordinator.workers.scheduler import TaskScheduler
from coordinator.workers.shared_blocks import SharedBlocks
from coordinator.workers.sockets import Received, RouterSocket, Sockets, UnreachableError
from coordinator.workers.task import PoolError, PoolTask, Reply, check_partial_sum, check_reply_kind, doubt
from coordinator.workers.task_group import OpenTask, TaskGroups
from edge.protocol import client_state, codec, messages
from edge.protocol.client_state import StateError
from edge.protocol.config import Job
from edge.protocol.messages import ClientState, Describe, Train, WireError, printable
from edge.protocol.payload import Vector, shapes

MAX_MESSAGES_PER_TURN = 32
"""Messages handled before the event loop checks for a stop and for the replies that it waits for."""
MOST_OFFENCES = 3
"""Remote workers of one key that may be dismissed before the key is rejected."""
MAX_REASON = 400
"""Characters of the reason for which a message was refused."""
OUT_OF_MEMORY = "OutOfMemoryError"
"""The name of torch's error (`torch.OutOfMemoryError`)."""


class _Answer(NamedTuple):
    """A reply, and the task that it answers."""

    sequence: int
    seconds: float
    reply: Reply
    task: PoolTask | None
    """None for a task that is over."""
    state: ClientState | None
    """The client state that came ahead of the reply."""

    @property
    def is_in_partial_sum(self) -> bool:
        """Whether the worker has added the update to its partial sum."""
        return self.task is not None and self.task.is_in_partial_sum(self.reply)

    def made_by(self, worker: str) -> _Answer:
        """The same, with its remote worker's name in the update."""
        return self._replace(reply=replace(self.reply, by=worker)) if isinstance(self.reply, messages.Update) else self


@dataclass(eq=False)
class MessageHandler:
    """Handles the messages of the workers of one pool."""

    job: Job
    """The job in every welcome, but for the worker's slot."""
    registry: WorkerRegistry
    scheduler: TaskScheduler
    groups: TaskGroups
    sender: MessageSender
    execute: Callable[[Iterable[Instruction]], None]
    """Executes instructions of the scheduler."""
    event: Callable[[str, Worker | None, str], None]
    """Records an event: kind, worker, detail."""
    on_taken: Callable[[int, Sequence[memoryview]], None]
    """Called with each message: the number of its connection, and its parts."""
    files: FileSender
    nbytes: int = field(default=0, init=False)
    """Bytes received."""
    refused: int = field(default=0, init=False)
    """Messages that did not follow the protocol, of workers and of unknown senders."""
    _doubted: dict[int, list[Worker]] = field(default_factory=dict, init=False)
    """task -> remote workers whose replies to it were unusable"""
    _logged_at: float = field(default=float("-inf"), init=False)

    def handle_messages(self, router_socket: RouterSocket) -> bool:
        """Handle up to `MAX_MESSAGES_PER_TURN` messages; whether there are no more."""
        for _ in range(MAX_MESSAGES_PER_TURN):
            received = router_socket.receive()
            if received is None:
                return True
            self.nbytes += sum(part.nbytes for part in received.parts)
            self.on_taken(received.connection, received.parts)
            worker = self.registry.authenticated(received.identity, received.key)
            try:
                self._receive(worker or self._admitted(received), received.parts)
            except messages.WireError as error:
                self.refuse(worker, f"from {received.identity}: {error}")
        return False

    def refuse(self, worker: Worker | None, reason: str) -> None:
        """Count an invalid message. Its sender, if it is a worker, is dismissed: its tasks are done elsewhere."""
        self.refused += 1
        reason = printable(reason, MAX_REASON)
        if worker is not None and not worker.refused:
            worker.refused = True
            self.dismiss(worker, f"its message was refused: {reason}")
        if time.monotonic() >= self._logged_at + 1.0:  # a flood of bad messages must not become a flood of records
            self._logged_at = time.monotonic()
            self.event("message_refused", worker, f"{reason} ({self.refused} refused so far)")

    def dismiss(self, worker: Worker, reason: str) -> None:
        """End a worker for an invalid or missing message; the key of a remote worker is rejected after a few times."""
        if worker.key and not worker.dead:
            self.registry.offences[worker.key] += 1
        self.sender.end(worker, reason)

    def _admitted(self, received: Received) -> Worker | None:
        """A new remote worker, if this is its hello and its identity is new. WireError if this is no message at all."""
        identity, key, _, parts = received
        known = self.registry.by_identity(identity)
        if known is not None and known.key:  # a socket has one connection of an identity, so the known one's is lost
            self.registry.end(known, "another has come under its name")
        if not key or known is not None or len(parts) != 2:
            return None
        envelope = codec.Envelope.parse(parts[0])
        message = codec.decode(parts[1], (), messages.NO_RUN)
        if envelope.worker != identity or not isinstance(message, messages.Hello):
            return None
        if self.registry.offences[key] >= MOST_OFFENCES:
            why = f"remote workers of its key have been dismissed {MOST_OFFENCES} times in this run"
            self.sender.send(Worker(0, 0, identity, None, key), messages.Shutdown(why))
            raise messages.WireError(f"key {key}: {why}")
        number = self.scheduler.joined(key, message.workers)
        remote_worker = self.registry.admit(number, identity, key)
        self.event("worker_joined", remote_worker, f"a remote worker, key {remote_worker.key}")
        return remote_worker

    def _receive(self, worker: Worker | None, parts: list[memoryview]) -> None:
        if worker is None:
            raise messages.WireError("not a worker of this pool")
        if worker.refused:
            raise messages.WireError("it is being ended: an earlier message was refused")
        if len(parts) < 2:
            raise messages.WireError(f"{len(parts)} parts where at least 2 were due")
        envelope = codec.Envelope.parse(parts[0])
        if envelope.worker != worker.identity:
            raise messages.WireError(f"the envelope names {envelope.worker}")
        message = codec.decode(parts[1], parts[2:], self.job.run_id if worker.greeted else messages.NO_RUN)
        if isinstance(message, messages.Hello) != (not worker.greeted):
            raise messages.WireError(f"a {type(message).__name__} {'after' if worker.greeted else 'before'} the hello")
        pending, worker.pending_client_state = worker.pending_client_state, None
        if pending is not None and not (isinstance(message, messages.Update) and envelope.sequence == pending[0]):
            raise messages.WireError(f"a {type(message).__name__} in place of the update of task {pending[0]}")
        if isinstance(message, Reply | messages.Updates):
            answers = self._answers(worker, envelope, message, None if pending is None else pending[1])
            self._note_telemetry(worker, envelope)
            self._answered(worker, answers)
        elif isinstance(message, messages.ClientState):
            self._received_client_state(worker, envelope.sequence, message)
        elif isinstance(message, messages.Hello):
            self.sender.send(worker, messages.Welcome(self._job(worker)))
            worker.greeted = True
            self.sender.send(worker, messages.Ping())
        elif isinstance(message, messages.Pong) and envelope.sequence == 0:
            self.registry.has_had_remote_workers |= bool(worker.key)
            self.execute(self.scheduler.ready(worker.number))
        elif isinstance(message, messages.Pong):
            if self.groups.get(envelope.sequence) is not None:
                raise messages.WireError(f"task {envelope.sequence} was given up, but nobody cancelled it")
            worker.sent_at.pop(envelope.sequence, None)
            self.execute(self.scheduler.dropped(worker.number, envelope.sequence))
        elif isinstance(message, messages.Error):
            self._failed(worker, envelope.sequence, message)
        elif isinstance(message, messages.PartialSum):
            self._received_partial_sum(worker, message)
        elif isinstance(message, messages.FetchFile):
            self.files.requested(worker, message)
        else:
            raise messages.WireError(f"a coordinator has no use for a {type(message).__name__}")

    def _job(self, worker: Worker) -> Job:
        """The job of one worker. A remote worker is not told the paths of this machine."""
        if not worker.key:
            return replace(self.job, worker_slot=worker.slot, shipped=())
        partition = self.job.data.partition
        if partition.file is not None:
            partition = replace(partition, file=Path(partition.file).name)
        data = replace(self.job.data, root=None, partition=partition)
        return replace(self.job, worker_slot=worker.slot, cache="", data=data)

    def _failed(self, worker: Worker, sequence: int, error: messages.Error) -> None:
        """A task, or the start of a worker, has failed. PoolError if client state on this machine cannot be read."""
        reason = f"{error.kind}: {error.text}"
        if worker.key:  # its text may hold anything, and becomes one line of records and terminals
            reason = printable(reason, messages.MAX_ERROR_TEXT)
        if sequence == 0:  # its start failed, or it could not send its partial sum
            worker.last_error = reason
            self.sender.send(worker, messages.Shutdown(reason[: messages.MAX_ERROR_TEXT]))
            if worker.key:
                self.registry.end(worker, reason)
            return
        self._check_assigned(worker, sequence)
        worker.sent_at.pop(sequence, None)
        opened = self.groups.get(sequence)
        if opened is not None and error.kind == client_state.MISSING and self.sender.forget_state(worker, opened.task):
            self.sender.send_tasks(worker, {sequence: opened})
            return
        is_wanted = opened is not None and opened.task.on_failure is None  # a cancelled task's state may be deleted
        if error.kind == StateError.__name__ and not worker.key and is_wanted:
            raise PoolError(error.text)
        if opened is not None or error.kind != client_state.MISSING:  # which was requested for a cancelled task
            self.event("task_failed", worker, reason)
        failed = self.scheduler.lacked_memory if error.kind == OUT_OF_MEMORY else self.scheduler.failed
        self.execute(failed(worker.number, sequence, f"worker {worker.number}: {reason}"))

    def _received_client_state(self, worker: Worker, sequence: int, state: messages.ClientState) -> None:
        """Client state from a remote worker waits for the update that it belongs to, which is the next message."""
        if not worker.key:
            raise messages.WireError("a ClientState of a worker that reaches the files of the run")
        self._check_assigned(worker, sequence)
        opened = self.groups.get(sequence)
        if opened is not None:  # or it was cancelled
            check_client_state(opened.task, state)
        worker.pending_client_state = sequence, state

    def _answered(self, worker: Worker, replies: Sequence[_Answer]) -> None:
        """The replies of one message; WireError, before any of them counts, if one does not answer its task."""
        for answer in replies:
            self._check(worker, answer)
        accepted = [answer for answer in replies if self._is_accepted(worker, answer)]
        if worker.key:
            by = f"worker {worker.number}, a remote worker, key {worker.key}"
            accepted = [answer.made_by(by) for answer in accepted]
        verdicts, more = self.scheduler.answered_all(
            worker.number, [(answer.sequence, answer.seconds, answer.is_in_partial_sum) for answer in accepted]
        )
        self.execute(more)  # the worker gets its next tasks before these replies are looked at
        for verdict, answer in zip(verdicts, accepted, strict=True):
            self._deliver(worker, verdict, answer)

    def _check(self, worker: Worker, answer: _Answer) -> None:
        self._check_assigned(worker, answer.sequence)
        if answer.task is not None:
            check_reply_kind(answer.task, answer.reply)
            if worker.key and answer.task.state_out is not None and answer.state is None:
                raise messages.WireError(f"{answer.task.name}: the client's state did not come ahead of the update")

    def _deliver(self, worker: Worker, verdict: DeliverReply | DropReply, answer: _Answer) -> None:
        if isinstance(verdict, DropReply):
            self.execute([verdict])
        elif self.groups.get(answer.sequence) is not None:  # or a reply before it has ended the group
            closes = self.groups.mark_in_partial_sum if answer.is_in_partial_sum else self.groups.close
            task, group, _ = closes(answer.sequence)
            if answer.state is not None:
                store_client_state(task, answer.state)
            self.sender.note_state(worker, task)
            group.deliver(answer.sequence, task, answer.reply, answer.seconds)

    def _answers(
        self, worker: Worker, envelope: codec.Envelope, message: Reply | messages.Updates, state: ClientState | None
    ) -> list[_Answer]:
        """The replies in a message, with their tasks."""
        if isinstance(message, messages.Updates):
            return [self._answer(worker, *reply, state) for reply in message.replies()]
        return [self._answer(worker, envelope.sequence, envelope.wall_seconds, message, state)]

    def _answer(
        self, worker: Worker, sequence: int, seconds: float, reply: Reply, state: ClientState | None
    ) -> _Answer:
        opened = self.groups.get(sequence)
        if worker.key:
            seconds = min(seconds, time.monotonic() - worker.sent_at.pop(sequence, time.monotonic()))
        return _Answer(sequence, seconds, reply, None if opened is None else opened.task, state)

    def _note_telemetry(self, worker: Worker, envelope: codec.Envelope) -> None:
        if envelope.telemetry and not worker.has_sent_telemetry:
            worker.has_sent_telemetry = True
            telemetry = printable(envelope.telemetry, MAX_REASON)
            self.event("worker_memory", worker, f"worker {worker.number} on {telemetry}")

    def _is_accepted(self, worker: Worker, answer: _Answer) -> bool:
        """Whether a reply counts. An unusable one of a remote worker does only if no other worker's is better."""
        sequence, task, state = answer.sequence, answer.task, answer.state
        if task is None or (not worker.key and sequence not in self._doubted):
            return True
        problem = doubt(task, answer.reply, {} if state is None else state.payload)
        if problem is None:
            self._dismiss_doubted(sequence)
        elif worker.key and not self._is_confirmed(worker, sequence):
            self._repeat_elsewhere(worker, sequence, problem)
            return False
        return True

    def _is_confirmed(self, remote_worker: Worker, sequence: int) -> bool:
        """Whether others' replies to a task were no better, or there are no others: the training itself fails."""
        others = {other.key for other in self._doubted.get(sequence, ())}
        return bool(others - {remote_worker.key}) or (bool(others) and self.scheduler.has_failed_everywhere(sequence))

    def _repeat_elsewhere(self, remote_worker: Worker, sequence: int, problem: str) -> None:
        self._doubted = {number: by for number, by in self._doubted.items() if self.groups.get(number) is not None}
        self._doubted.setdefault(sequence, []).append(remote_worker)
        reason = f"worker {remote_worker.number}, a remote worker, key {remote_worker.key}: {problem}"
        self.event("task_failed", remote_worker, reason)
        self.execute(self.scheduler.doubted(remote_worker.number, sequence, reason))

    def _dismiss_doubted(self, sequence: int) -> None:
        """A task has a usable reply: dismiss remote workers whose replies to it were not."""
        for remote_worker in self._doubted.pop(sequence, ()):
            if not remote_worker.dead:
                self.dismiss(remote_worker, "its reply could not be used, and another worker's to the same task could")

    def _check_assigned(self, worker: Worker, sequence: int) -> None:
        """WireError if a worker answers a task that is not assigned to it, or answers one again."""
        if not worker.dead and not self.scheduler.is_assigned(worker.number, sequence):
            raise messages.WireError(f"task {sequence} is not assigned to it")

    def _received_partial_sum(self, worker: Worker, sums: messages.PartialSum) -> None:
        if worker.dead:
            return
        requested = self.scheduler.requested_partial_sum(worker.number)
        if requested is None:
            raise messages.WireError("sums that were not requested")
        check_partial_sum(sums, [self.groups[sequence].task for sequence in requested], is_remote=bool(worker.key))
        for verdict in self.scheduler.collected(worker.number):
            assert isinstance(verdict, DeliverPartial)
            closed = [self.groups.close(sequence) for sequence in verdict.sequences]
            if closed:  # or their group was cancelled
                task, group, _ = closed[0]
                group.add_partial_sum(worker.number, task.partial_sum_request.round, sums)


class MessageSender:
    """Sends to the workers of one pool. A worker that cannot be reached is ended, and its tasks requeued."""

    def __init__(self, run_id: str, sockets: Sockets, registry: WorkerRegistry, shared: SharedBlocks) -> None:
        """``shared``: the block versions that local workers map."""
        self._run_id, self._sockets, self._registry, self._shared = run_id, sockets, registry, shared
        self._frames: dict[bytes, zmq.Frame] = {}  # one per version that is sent, for all workers
        self.cached_payloads = CachedPayloads(lambda version: self._frames.pop(version, None), shared.remove)
        self._state_holders: dict[int, tuple[int, str]] = {}
        """client -> (remote worker that did its last visit, name of the state that it has since)"""
        self.nbytes = 0
        """Bytes sent."""

    @property
    def versions(self) -> set[bytes]:
        """Block versions of the frames in memory."""
        return set(self._frames)

    def send(
        self,
        worker: Worker,
        message: messages.Message,
        envelope: codec.Envelope | None = None,
        entries: codec.TensorSpecs | None = None,
        frames: Sequence[zmq.Frame] = (),
    ) -> None:
        """Send one message. ``entries``: the header's, for vectors sent before; ``frames``: in place of its own."""
        run_id = self._run_id if worker.greeted else messages.NO_RUN
        parts: list[bytes | zmq.Frame] = [(envelope or codec.Envelope(worker.identity)).pack()]
        if entries is None:
            encoded = codec.encode(message, run_id)
            parts += [encoded.header, *(frames or [zmq.Frame(raw, copy=False) for raw in encoded.frames])]
        else:
            parts.append(codec.encode_header(message, run_id, entries))
        self._send(worker, parts)

    def send_tracked(self, worker: Worker, message: messages.Message) -> zmq.MessageTracker:
        """Send one message without frames; the tracker is done when its header has left the queue."""
        encoded = codec.encode(message, self._run_id)
        assert not encoded.frames, message
        header = zmq.Frame(encoded.header, track=True, copy=False)
        self._send(worker, [codec.Envelope(worker.identity).pack(), header])
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
        for (cached_payload, is_batch), group in groupby(opened.items(), lambda item: self._batch(worker, item[1])):
            assert cached_payload is not None, worker.identity
            for tasks in batched(group, messages.MAX_BATCH) if is_batch else ([each] for each in group):
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
        envelope = codec.Envelope(worker.identity, evict=tuple(evict))
        if mapped:
            sizes = {vector.version.hex(): vector.data.size for vector in mapped}
            self.send(worker, messages.MappedTensors(self._shared.folder, sizes), envelope)
            envelope = codec.Envelope(worker.identity)
            missing = [vector for vector in missing if vector.version.hex() not in sizes]
        if missing:
            blocks = messages.Tensors(tuple(missing))
            self.send(worker, blocks, envelope, frames=[self._frame(vector) for vector in missing])
        return []

    def _send_task(self, worker: Worker, sequence: int, opened: OpenTask, evict: Sequence[bytes]) -> None:
        task, _, cached_payload = opened
        assert cached_payload is not None, task.name
        if self._needs_state(worker, task) and (state := client_state_for(task)) is not None:
            self.send(worker, state, codec.Envelope(worker.identity, sequence))
        state_in, state_out = [_path_for(worker, path) for path in (task.state_in, task.state_out)]
        envelope = codec.Envelope(
            worker.identity, sequence, state_in, state_out, tuple(evict), 0.0, task.weight, self._registry.retired_slots
        )
        # the vectors were sent as blocks, now or before: the header only names their versions
        self.send(worker, task.message, envelope, cached_payload.entries)

    def _send_visits(self, worker: Worker, opened: Sequence[tuple[int, OpenTask]], evict: Sequence[bytes]) -> None:
        tasks = [each.task for _, each in opened]
        visits = [task.message for task in tasks if isinstance(task.message, Train)]
        cached_payload = opened[0][1].cached_payload
        assert cached_payload is not None, worker.identity
        message = messages.Visits(
            np.array([sequence for sequence, _ in opened]),
            np.array([visit.client for visit in visits]),
            np.array([visit.round for visit in visits]),
            np.array([visit.lr for visit in visits]),
            np.array([task.weight for task in tasks]),
            [_path_for(worker, task.state_in) for task in tasks],
            [_path_for(worker, task.state_out) for task in tasks],
            {name: np.array([visit.choice[name] for visit in visits]) for name in visits[0].choice},
            visits[0].payload,
        )
        retired = self._registry.retired_slots
        envelope = codec.Envelope(worker.identity, evict=tuple(evict), retired_slots=retired)
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

    def _batch(self, worker: Worker, opened: OpenTask) -> tuple[CachedPayload | None, bool]:
        """What tasks that are sent as one message have in common: (their vectors, whether they can be)."""
        is_visit = isinstance(opened.task.message, Train)
        return opened.cached_payload, is_visit and not self._needs_state(worker, opened.task)

    def end(self, worker: Worker, why: str) -> None:
        """End a worker. A remote worker is told to end, since its process cannot be ended from here."""
        if worker.key:
            self.send(worker, messages.Shutdown(why[: messages.MAX_ERROR_TEXT]))
        self._registry.end(worker, why)

    def _frame(self, vector: Vector) -> zmq.Frame:
        if vector.version not in self._frames:
            self._frames[vector.version] = zmq.Frame(vector.data.data, copy=False)
        return self._frames[vector.version]


def batched(opened: Iterable[tuple[int, OpenTask]], most: int) -> Iterator[list[tuple[int, OpenTask]]]:
    """Lists of at most so many."""
    rest = iter(opened)
    while batch := list(islice(rest, most)):
        yield batch


def _path_for(worker: Worker, path: str | None) -> str | None:
    """The file of client state as a worker is told it. A remote worker learns no path of this machine."""
    return path if path is None or not worker.key else Path(path).name


def client_state_for(task: PoolTask) -> ClientState | None:
    """The client state that a remote worker needs for a task, if any. PoolError for a file that cannot be read."""
    if task.state_in is None or isinstance(task.message, Describe):
        return None
    try:
        return ClientState(task.message.client, client_state.read(task.state_in))
    except client_state.StateError as error:
        raise PoolError(f"{task.name}: the client's state cannot be read: {error}") from error


def check_client_state(task: PoolTask, state: ClientState) -> None:
    """WireError for client state that does not belong to this task, or has other vectors than the client keeps."""
    if task.state_out is None or not isinstance(task.message, Train):
        raise WireError(f"state of client {state.client}, which was not requested: {task.name}")
    if state.client != task.message.client:
        raise WireError(f"state of client {state.client} does not answer: {task.name}")
    got = shapes(state.payload)
    if task.client_state_shapes is not None and got != task.client_state_shapes:
        raise WireError(f"{task.name}: state of shapes {got} instead of {task.client_state_shapes}")


def store_client_state(task: PoolTask, state: ClientState) -> None:
    """Write client state from a remote worker to the task's file, whole or not at all. PoolError if the disk fails."""
    assert task.state_out is not None, task.name
    try:
        client_state.write(task.state_out, state.payload)
    except client_state.StateError as error:
        raise PoolError(f"{task.name}: the client's state cannot be written: {error}") from error
