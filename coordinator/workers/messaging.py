"""Messages between a pool and its workers: handled as they come, sent as the scheduler says. The protocol is
`edge.protocol.codec`.

`MessageHandler` checks each message against what is known of its sender, and turns it into an event of the scheduler.
A sender of an invalid message is dismissed, and nothing is changed. `MessageSender` sends messages and tasks, and each
block version once per worker.

Remote workers do not reach the run's folder. The client state that a task needs is read when the task is sent to a
remote worker, and written when its update is taken; the files are those that a local worker would have read and
written. None of it is charged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import zmq

from coordinator.workers.block_cache import CachedPayloads
from coordinator.workers.instructions import DeliverPartial, DeliverReply, Instruction
from coordinator.workers.registry import Worker, WorkerRegistry
from coordinator.workers.scheduler import TaskScheduler
from coordinator.workers.sockets import Received, RouterSocket, Sockets, UnreachableError
from coordinator.workers.task import PoolError, PoolTask, Reply, check_partial_sum, check_reply_kind, doubt
from coordinator.workers.task_group import OpenTask, TaskGroups
from edge.protocol import client_state, codec, messages
from edge.protocol.client_state import StateError
from edge.protocol.config import Job
from edge.protocol.messages import ClientState, Describe, Train, WireError, printable
from edge.protocol.payload import Vector, shapes

MAX_MESSAGES_PER_TURN = 32
"""Messages handled before asking whether to stop, and whether what is waited for has come."""
MOST_OFFENCES = 3
"""Remote workers of one key that may be dismissed before it is let in no more."""
MAX_REASON = 400
"""Characters of why a message was refused."""
OUT_OF_MEMORY = "OutOfMemoryError"
"""What torch calls it (`torch.OutOfMemoryError`)."""


@dataclass(eq=False)
class MessageHandler:
    """Hears the workers of one pool."""

    job: Job
    """What a worker is welcomed with, but for its slot."""
    registry: WorkerRegistry
    scheduler: TaskScheduler
    orders: TaskGroups
    sender: MessageSender
    obey: Callable[[Iterable[Instruction]], None]
    """Has the pool do what the scheduler says."""
    event: Callable[[str, Worker | None, str], None]
    """Puts on record: kind, worker, detail."""
    taken: Callable[[int, Sequence[memoryview]], None]
    """Told of each message: the number of its connection, and its parts."""
    nbytes: int = field(default=0, init=False)
    """Bytes received."""
    refused: int = field(default=0, init=False)
    """Messages that did not follow the protocol, whoever sent them."""
    _doubted: dict[int, list[Worker]] = field(default_factory=dict, init=False)
    """task -> remote workers whose replies to it could not be used"""
    _logged_at: float = field(default=float("-inf"), init=False)

    def hear_some(self, router_socket: RouterSocket) -> bool:
        """Handle messages that have come, not too many at a time; whether that was all."""
        for _ in range(MAX_MESSAGES_PER_TURN):
            came = router_socket.receive()
            if came is None:
                return True
            self.nbytes += sum(part.nbytes for part in came.parts)
            self.taken(came.connection, came.parts)
            worker = self.registry.authenticated(came.identity, came.key)
            try:
                self._receive(worker or self._admitted(came), came.parts)
            except messages.WireError as error:
                self.refuse(worker, f"from {came.identity}: {error}")
        return False

    def refuse(self, worker: Worker | None, reason: str) -> None:
        """Count a message that does not fit. A worker that sends one is dismissed, once: its tasks go on elsewhere."""
        self.refused += 1
        reason = printable(reason, MAX_REASON)
        if worker is not None and not worker.refused:
            worker.refused = True
            self.offend(worker, f"its message was refused: {reason}")
        if time.monotonic() >= self._logged_at + 1.0:  # a flood of bad messages must not become a flood of records
            self._logged_at = time.monotonic()
            self.event("message_refused", worker, f"{reason} ({self.refused} refused so far)")

    def offend(self, worker: Worker, reason: str) -> None:
        """Dismiss a worker for what it has sent, or has not; a key whose remote workers do so again and again comes no
        more."""
        if worker.key and not worker.dead:
            self.registry.offences[worker.key] += 1
        self.sender.dismiss(worker, reason)

    def _admitted(self, came: Received) -> Worker | None:
        """A new remote worker, if this is its hello and nobody else has its name. WireError for what is no message at
        all."""
        bearer = self.registry.by_identity(came.identity)
        if bearer is not None and bearer.key:  # a socket has one connection of a name, so that the bearer's is gone
            self.registry.end(bearer, "another has come under its name")
        if not came.key or bearer is not None or len(came.parts) != 2:
            return None
        envelope = codec.Envelope.parse(came.parts[0])
        message = codec.decode(came.parts[1], (), messages.NO_RUN)
        if envelope.worker != came.identity or not isinstance(message, messages.Hello):
            return None
        if self.registry.offences[came.key] >= MOST_OFFENCES:
            why = f"remote workers of its key have been dismissed {MOST_OFFENCES} times in this run"
            self.sender.send(Worker(0, 0, came.identity, None, came.key), messages.Shutdown(why))
            raise messages.WireError(f"key {came.key}: {why}")
        remote_worker = self.registry.admit(self.scheduler.joined(came.key), came.identity, came.key)
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
        ahead, worker.pending_client_state = worker.pending_client_state, None
        if ahead is not None and not (isinstance(message, messages.Update) and envelope.sequence == ahead[0]):
            raise messages.WireError(f"a {type(message).__name__} in place of the update of task {ahead[0]}")
        if isinstance(message, Reply):
            self._answered(worker, envelope, message, None if ahead is None else ahead[1])
        elif isinstance(message, messages.ClientState):
            self._came_ahead(worker, envelope.sequence, message)
        elif isinstance(message, messages.Hello):
            self.sender.send(worker, messages.Welcome(self._job(worker)))
            worker.greeted = True
            self.sender.send(worker, messages.Ping())
        elif isinstance(message, messages.Pong) and envelope.sequence == 0:
            self.registry.has_had_remote_workers |= bool(worker.key)
            self.obey(self.scheduler.ready(worker.number))
        elif isinstance(message, messages.Pong):
            if self.orders.get(envelope.sequence) is not None:
                raise messages.WireError(f"task {envelope.sequence} was given up, but nobody cancelled it")
            worker.sent_at.pop(envelope.sequence, None)
            self.obey(self.scheduler.dropped(worker.number, envelope.sequence))
        elif isinstance(message, messages.Error):
            self._failed(worker, envelope.sequence, message)
        elif isinstance(message, messages.PartialSum):
            self._collected(worker, envelope, message)
        else:
            raise messages.WireError(f"a coordinator has no use for a {type(message).__name__}")

    def _job(self, worker: Worker) -> Job:
        """What a worker is welcomed with. A remote worker is not told where files lie on this machine."""
        if not worker.key:
            return replace(self.job, worker_slot=worker.slot)
        return replace(self.job, worker_slot=worker.slot, cache="", data=replace(self.job.data, root=None))

    def _failed(self, worker: Worker, sequence: int, error: messages.Error) -> None:
        """PoolError at once where this machine is to blame, and not the client: it must not count as a faulty one."""
        reason = f"{error.kind}: {error.text}"
        if worker.key:  # whatever is written there, it becomes one line of records and terminals
            reason = printable(reason, messages.MAX_ERROR_TEXT)
        if sequence == 0:  # its start failed, or it could not give its sums away
            worker.last_words = reason
            self.sender.send(worker, messages.Shutdown(reason[: messages.MAX_ERROR_TEXT]))
            if worker.key:
                self.registry.end(worker, reason)
            return
        self._check_assigned(worker, sequence)
        worker.sent_at.pop(sequence, None)
        is_wanted = self.orders.get(sequence) is not None  # what a client kept is deleted once nobody needs it
        if error.kind == StateError.__name__ and not worker.key and is_wanted:
            raise PoolError(error.text)
        self.event("task_failed", worker, reason)
        failed = self.scheduler.lacked_memory if error.kind == OUT_OF_MEMORY else self.scheduler.failed
        self.obey(failed(worker.number, sequence, f"worker {worker.number}: {reason}"))

    def _came_ahead(self, worker: Worker, sequence: int, kept: messages.ClientState) -> None:
        """What a client keeps, from a remote worker; it counts when the update comes that belongs to it."""
        if not worker.key:
            raise messages.WireError("a ClientState of a worker that reaches the files of the run")
        self._check_assigned(worker, sequence)
        asked = self.orders.get(sequence)
        if asked is not None:  # or it was cancelled
            check_client_state(asked.task, kept)
        worker.pending_client_state = sequence, kept

    def _answered(
        self, worker: Worker, envelope: codec.Envelope, reply: Reply, kept: messages.ClientState | None
    ) -> None:
        sequence, seconds = envelope.sequence, envelope.wall_seconds
        self._check_assigned(worker, sequence)
        asked = self.orders.get(sequence)
        if asked is not None:
            check_reply_kind(asked.task, reply)
            if worker.key and asked.task.state_out is not None and kept is None:
                raise messages.WireError(f"{asked.task.name}: what its client keeps did not come ahead of the update")
        if envelope.telemetry and not worker.noted:
            worker.noted = True
            self.event(
                "worker_memory", worker, f"worker {worker.number} on {printable(envelope.telemetry, MAX_REASON)}"
            )
        if worker.key:
            seconds = min(seconds, time.monotonic() - worker.sent_at.pop(sequence, time.monotonic()))
            if asked is not None:
                problem = doubt(asked.task, reply, {} if kept is None else kept.payload)
                if problem is not None and not self._is_confirmed(worker, sequence):
                    self._repeat_elsewhere(worker, sequence, problem)
                    return
                if problem is None:
                    self._convict(sequence)
                if isinstance(reply, messages.Update):
                    reply = replace(reply, by=f"worker {worker.number}, a remote worker, key {worker.key}")
        elif asked is not None and sequence in self._doubted and doubt(asked.task, reply, {}) is None:
            self._convict(sequence)
        deposited = asked is not None and asked.task.is_in_partial_sum(reply)
        verdict, *more = self.scheduler.answered(worker.number, sequence, seconds, deposited)
        self.obey(more)  # the worker is to have its next task before anybody looks at this reply
        if isinstance(verdict, DeliverReply):
            task, order, _ = self.orders.mark_in_partial_sum(sequence) if deposited else self.orders.close(sequence)
            if kept is not None:
                store_client_state(task, kept)
            order.deliver(sequence, task, reply)
        else:
            self.obey([verdict])

    def _is_confirmed(self, remote_worker: Worker, sequence: int) -> bool:
        """Whether others had no better reply to a task, or there are no others: then it is the training's fault."""
        before = {other.key for other in self._doubted.get(sequence, ())}
        return bool(before - {remote_worker.key}) or (bool(before) and self.scheduler.has_failed_everywhere(sequence))

    def _repeat_elsewhere(self, remote_worker: Worker, sequence: int, problem: str) -> None:
        self._doubted = {number: by for number, by in self._doubted.items() if self.orders.get(number) is not None}
        self._doubted.setdefault(sequence, []).append(remote_worker)
        reason = f"worker {remote_worker.number}, a remote worker, key {remote_worker.key}: {problem}"
        self.event("task_failed", remote_worker, reason)
        self.obey(self.scheduler.doubted(remote_worker.number, sequence, reason))

    def _convict(self, sequence: int) -> None:
        """A task has got a reply that can be used: remote workers whose reply to it could not be were wrong."""
        for remote_worker in self._doubted.pop(sequence, ()):
            if not remote_worker.dead:
                self.offend(remote_worker, "its reply could not be used, and another worker's to the same task could")

    def _check_assigned(self, worker: Worker, sequence: int) -> None:
        """WireError if a worker answers what it was not asked, or answers it again."""
        if not worker.dead and not self.scheduler.is_assigned(worker.number, sequence):
            raise messages.WireError(f"task {sequence} is not assigned to it")

    def _collected(self, worker: Worker, envelope: codec.Envelope, sums: messages.PartialSum) -> None:
        if worker.dead:
            return
        asked = self.scheduler.asked(worker.number)
        if asked is None:
            raise messages.WireError("sums that nobody asked for")
        check_partial_sum(sums, [self.orders[sequence].task for sequence in asked], is_remote=bool(worker.key))
        for verdict in self.scheduler.collected(worker.number):
            assert isinstance(verdict, DeliverPartial)
            closed = [self.orders.close(sequence) for sequence in verdict.sequences]
            if closed:  # or their order was cancelled
                task, order, _ = closed[0]
                order.add_partial_sum(worker.number, task.collect.round, sums)


class MessageSender:
    """Sends to the workers of one pool; one that cannot be reached is ended, and its death brings its tasks back."""

    def __init__(self, run_id: str, sockets: Sockets, registry: WorkerRegistry) -> None:
        self._run_id, self._sockets, self._registry = run_id, sockets, registry
        self._frames: dict[bytes, zmq.Frame] = {}  # one per version, whatever the number of workers it is sent to
        self.cached_payloads = CachedPayloads(lambda version: self._frames.pop(version, None))
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
        entries: codec.TensorSpecs | None = None,
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
        router_socket = self._sockets.remote_workers if worker.key else self._sockets.own
        assert router_socket is not None, worker.identity
        try:
            router_socket.send(worker.identity, parts)
        except UnreachableError as error:
            self._registry.end(worker, f"it could not be reached: {error}")
            return
        self.nbytes += sum(len(part) for part in parts)

    def send_task(self, worker: Worker, sequence: int, opened: OpenTask) -> None:
        """One task, after what it needs and this worker does not hold or reach. PoolError if that cannot be read."""
        task, _, cached_payload = opened
        missing, forget = self.cached_payloads.delivery(worker.number, cached_payload)
        if missing:
            blocks = messages.Tensors(tuple(missing))
            envelope = codec.Envelope(worker.identity, evict=tuple(forget))
            self.send(worker, blocks, envelope, frames=[self._frame(vector) for vector in missing])
            forget = []
        state_in, state_out = task.state_in, task.state_out
        if worker.key:
            worker.sent_at[sequence] = time.monotonic()
            # a remote worker is told that there is something to read or to keep, and not where it lies on this machine
            state_in, state_out = [None if path is None else Path(path).name for path in (state_in, state_out)]
            kept = client_state_for(task)
            if kept is not None:
                self.send(worker, kept, codec.Envelope(worker.identity, sequence))
        envelope = codec.Envelope(
            worker.identity, sequence, state_in, state_out, tuple(forget), 0.0, task.weight, self._registry.left
        )
        # the vectors were sent as blocks, now or before: the header alone names them
        self.send(worker, task.message, envelope, cached_payload.entries)

    def dismiss(self, worker: Worker, why: str) -> None:
        """Have a worker ended. A remote worker is told, since nobody here can end its process."""
        if worker.key:
            self.send(worker, messages.Shutdown(why[: messages.MAX_ERROR_TEXT]))
        self._registry.end(worker, why)

    def _frame(self, vector: Vector) -> zmq.Frame:
        if vector.version not in self._frames:
            self._frames[vector.version] = zmq.Frame(vector.data.data, copy=False)
        return self._frames[vector.version]


def client_state_for(task: PoolTask) -> ClientState | None:
    """What a remote worker must have before it can do this task. PoolError for a file that cannot be read."""
    if task.state_in is None or isinstance(task.message, Describe):
        return None
    try:
        return ClientState(task.message.client, client_state.read(task.state_in))
    except client_state.StateError as error:
        raise PoolError(f"{task.name}: what the client has kept cannot be read: {error}") from error


def check_client_state(task: PoolTask, kept: ClientState) -> None:
    """WireError for what nobody asked for, and for what this client cannot have kept."""
    if task.state_out is None or not isinstance(task.message, Train):
        raise WireError(f"what client {kept.client} keeps, which nobody asked for: {task.name}")
    if kept.client != task.message.client:
        raise WireError(f"what client {kept.client} keeps does not answer: {task.name}")
    got = shapes(kept.payload)
    if task.client_state_shapes is not None and got != task.client_state_shapes:
        raise WireError(f"{task.name}: the client keeps {got} instead of {task.client_state_shapes}")


def store_client_state(task: PoolTask, kept: ClientState) -> None:
    """Write what a remote worker has ahead where the task wants it, whole or not at all. PoolError if the disk
    refuses."""
    assert task.state_out is not None, task.name
    try:
        client_state.write(task.state_out, kept.payload)
    except client_state.StateError as error:
        raise PoolError(f"{task.name}: what the client keeps cannot be written: {error}") from error
