"""Messages from a pool's workers (`edge.protocol.serialization`); `coordinator.workers.message_sender` has those to
them.

`MessageHandler` checks each message against the state of its sender, and turns it into an event of the scheduler. A
worker that sends an invalid message is ended, and nothing else changes.

Client state from a remote worker, which does not reach the run's folder, is written when the update is accepted, in the
file that a local worker would have written. It is charged to nobody.

A remote worker's reply that cannot be true, or cannot be used, does not count at first: another worker does the task,
too. If its reply is better, the first is dismissed. If it is not, or if there is no other worker, the training itself
fails, and the reply counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from coordinator.workers.file_sender import FileSender
from coordinator.workers.instructions import DeliverPartial, DropReply, Instruction
from coordinator.workers.message_sender import MessageSender
from coordinator.workers.registry import Worker, WorkerRegistry
from coordinator.workers.scheduler import TaskScheduler
from coordinator.workers.sockets import Received, RouterSocket
from coordinator.workers.task import PoolError, PoolTask, Reply, caused_by, check_partial_sum
from coordinator.workers.task_group import TaskGroups
from edge.protocol import client_state, messages, serialization
from edge.protocol.client_state import StateError
from edge.protocol.config import Job
from edge.protocol.messages import ClientState, printable

MAX_MESSAGES_PER_TURN = 32
"""Messages handled before the event loop checks for a stop and for the replies that it waits for."""
MOST_OFFENCES = 3
"""Remote workers of one key that may be dismissed before the key is rejected."""
MAX_REASON = 400
"""Characters of the reason for which a message was refused."""
COMES_UP = (
    Reply
    | messages.Updates
    | ClientState
    | messages.Hello
    | messages.Pong
    | messages.Error
    | messages.PartialSum
    | messages.Capacity
    | messages.FetchFile
)
"""Messages of workers."""
OUT_OF_MEMORY = "OutOfMemoryError"
"""The name of torch's error (`torch.OutOfMemoryError`)."""


class Answer(NamedTuple):
    """A reply, and the task that it answers."""

    sequence: int
    seconds: float
    reply: Reply
    task: PoolTask | None
    """None for a task that is over."""
    state: ClientState | None
    """The client state that came ahead of the reply."""
    doubt: str = ""
    """Why the reply cannot be true, or cannot be used; '' if it is accepted."""


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
    _logged_at: float = field(default=float("-inf"), init=False)
    _doubted: dict[int, list[Worker]] = field(default_factory=dict, init=False)
    """task -> remote workers whose replies to it were unusable"""

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
        identity, key, connection, parts = received
        known = self.registry.by_identity.get(identity)
        if known is not None and known.key:  # a socket has one connection of an identity, so the known one's is lost
            self.registry.end(known, "another has come under its name")
        if not key or known is not None or len(parts) != 2:
            return None
        envelope = serialization.Envelope.parse(parts[0])
        message = serialization.decode(parts[1], (), messages.NO_RUN, kinds=messages.Hello)
        if envelope.worker != identity or not isinstance(message, messages.Hello):
            return None
        if self.registry.offences[key] >= MOST_OFFENCES:
            why = f"remote workers of its key have been dismissed {MOST_OFFENCES} times in this run"
            self.sender.send(Worker(0, 0, identity, None, key), messages.Shutdown(why))
            raise messages.WireError(f"key {key}: {why}")
        number = self.scheduler.joined(key, message.workers)
        remote_worker = Worker(number, 0, identity, None, key, message.workers, connection)
        self.registry.add(remote_worker)
        self.event("worker_joined", remote_worker, f"a remote worker, key {key}")
        return remote_worker

    def _receive(self, worker: Worker | None, parts: list[memoryview]) -> None:
        if worker is None:
            raise messages.WireError("not a worker of this pool")
        if worker.refused:
            raise messages.WireError("it is being ended: an earlier message was refused")
        if len(parts) < 2:
            raise messages.WireError(f"{len(parts)} parts where at least 2 were due")
        envelope = serialization.Envelope.parse(parts[0])
        if envelope.worker != worker.identity:
            raise messages.WireError(f"the envelope names {envelope.worker}")
        message = serialization.decode(
            parts[1], parts[2:], self.job.run_id if worker.greeted else messages.NO_RUN, kinds=COMES_UP
        )
        if isinstance(message, messages.Hello) != (not worker.greeted):
            raise messages.WireError(f"a {type(message).__name__} {'after' if worker.greeted else 'before'} the hello")
        pending, worker.pending_client_state = worker.pending_client_state, None
        if pending is not None and not (isinstance(message, messages.Update) and envelope.sequence == pending[0]):
            raise messages.WireError(f"a {type(message).__name__} in place of the update of task {pending[0]}")
        self._handle(worker, envelope, message, None if pending is None else pending[1])

    def _handle(
        self, worker: Worker, envelope: serialization.Envelope, message: messages.Message, state: ClientState | None
    ) -> None:
        """Handle a message, with the client state that came right before it. WireError for one that is out of place."""
        number, sequence = worker.number, envelope.sequence
        match message:
            case messages.Updates():
                self._answered(worker, envelope, message.replies(), state)
            case messages.Update():
                reply = structs.replace(message, logged=envelope.logged)
                self._answered(worker, envelope, [(sequence, envelope.wall_seconds, reply)], state)
            case messages.Score() | messages.Described():
                self._answered(worker, envelope, [(sequence, envelope.wall_seconds, message)], state)
            case messages.ClientState():  # it waits for the update that it belongs to, which is the next message
                if not worker.key:
                    raise messages.WireError("a ClientState of a worker that reaches the files of the run")
                self._check_assigned(worker, sequence)
                opened = self.groups.open.get(sequence)
                if opened is not None:  # or it was cancelled
                    opened.task.validator.refuse_state(opened.task, message)
                worker.pending_client_state = sequence, message
            case messages.Hello():
                self.sender.send(worker, messages.Welcome(self._job(worker)))
                worker.greeted = True
                self.sender.send(worker, messages.Ping())
            case messages.Pong() if sequence == 0:
                self.registry.has_had_remote_workers |= bool(worker.key)
                self.execute(self.scheduler.ready(number))
            case messages.Pong():
                if self.groups.open.get(sequence) is not None:
                    raise messages.WireError(f"task {sequence} was given up, but nobody cancelled it")
                worker.sent_at.pop(sequence, None)
                self.execute(self.scheduler.dropped(number, sequence))
            case messages.Error():
                self._failed(worker, sequence, message)
            case messages.PartialSum():
                self._received_partial_sum(worker, message)
            case messages.Capacity(workers):  # workers of a node agent have retired
                before = self.scheduler.capacity(number)
                if workers >= before:
                    raise messages.WireError(f"a capacity of {workers} tasks at a time after one of {before}")
                self.scheduler.shrank(number, workers)
                change = f"{workers} tasks at a time instead of {before}, for lack of memory"
                self.event("worker_retired", worker, f"worker {number}, a remote worker, key {worker.key}: {change}")
            case _:
                assert isinstance(message, messages.FetchFile), message
                self.files.requested(worker, message)

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
        traceback = "\n".join(printable(line, messages.MAX_ERROR_TEXT) for line in error.traceback.split("\n"))
        if sequence == 0:  # its start failed, or it could not send its partial sum
            worker.last_error, worker.last_traceback = reason, traceback
            self.sender.send(worker, messages.Shutdown(reason[: messages.MAX_ERROR_TEXT]))
            if worker.key:
                self.registry.end(worker, reason)
            return
        self._check_assigned(worker, sequence)
        worker.sent_at.pop(sequence, None)
        opened = self.groups.open.get(sequence)
        if opened is not None and error.kind == client_state.MISSING and self.sender.forget_state(worker, opened.task):
            self.sender.send_tasks(worker, {sequence: opened})
            return
        is_wanted = opened is not None and opened.task.on_failure is None  # a cancelled task's state may be deleted
        if error.kind == StateError.__name__ and not worker.key and is_wanted:
            raise PoolError(error.text)
        failed = self.scheduler.lacked_memory if error.kind == OUT_OF_MEMORY else self.scheduler.failed
        with caused_by(traceback):
            if opened is not None or error.kind != client_state.MISSING:  # which was requested for a cancelled task
                self.event("task_failed", worker, reason)
            self.execute(failed(worker.number, sequence, f"worker {worker.number}: {reason}"))

    def _answered(
        self,
        worker: Worker,
        envelope: serialization.Envelope,
        replies: Iterable[tuple[int, float, Reply]],
        state: ClientState | None,
    ) -> None:
        """The replies of one message; WireError, before any of them counts, if one does not answer its task."""
        if envelope.telemetry and worker.telemetry_lines < worker.workers:
            worker.telemetry_lines += 1
            of = f"worker {worker.number}{': ' if worker.key else ' on '}"  # an agent's line names one of its workers
            self.event("worker_memory", worker, f"{of}{printable(envelope.telemetry, MAX_REASON)}")
        answers = [self._checked(worker, *reply, state) for reply in replies]
        accepted = [answer for answer in answers if self._is_accepted(worker, answer)]
        summed = [answer.task is not None and answer.task.is_in_partial_sum(answer.reply) for answer in accepted]
        verdicts, more = self.scheduler.answered_all(
            worker.number,
            [(answer.sequence, answer.seconds, is_sum) for answer, is_sum in zip(accepted, summed, strict=True)],
        )
        self.execute(more)  # the worker gets its next tasks before these replies are looked at
        for verdict, answer, is_sum in zip(verdicts, accepted, summed, strict=True):
            if isinstance(verdict, DropReply):
                self.execute([verdict])
            elif self.groups.open.get(answer.sequence) is not None:  # or a reply before it has ended the group
                closes = self.groups.mark_in_partial_sum if is_sum else self.groups.close
                task, group, _ = closes(answer.sequence)
                if answer.state is not None:
                    store_client_state(task, answer.state)
                self.sender.note_state(worker, task)
                group.deliver(answer.sequence, task, answer.reply, answer.seconds)

    def _checked(
        self, worker: Worker, sequence: int, seconds: float, reply: Reply, state: ClientState | None
    ) -> Answer:
        """A reply with its task, and the verdict of the task's validator. WireError if that refuses it."""
        opened = self.groups.open.get(sequence)
        if worker.key:
            seconds = min(seconds, time.monotonic() - worker.sent_at.pop(sequence, time.monotonic()))
        self._check_assigned(worker, sequence)
        if opened is None:
            return Answer(sequence, seconds, reply, None, state)
        reply, doubt = opened.task.validator.check(
            opened.task, reply, state, is_remote=bool(worker.key), is_doubted=sequence in self._doubted
        )
        if worker.key and isinstance(reply, messages.Update):
            reply = structs.replace(reply, by=f"worker {worker.number}, a remote worker, key {worker.key}")
        return Answer(sequence, seconds, reply, opened.task, state, doubt)

    def _is_accepted(self, worker: Worker, answer: Answer) -> bool:
        """Whether a reply counts; not a doubted one of a remote worker, unless no other worker's is better."""
        sequence = answer.sequence
        if not answer.doubt:
            for doubted in self._doubted.pop(sequence, ()) if answer.task is not None else ():
                if not doubted.dead:
                    self.dismiss(doubted, "its reply could not be used, and another worker's to the same task could")
            return True
        others = {other.key for other in self._doubted.get(sequence, ())}
        is_confirmed = bool(others - {worker.key}) or (bool(others) and self.scheduler.has_failed_everywhere(sequence))
        if not worker.key or is_confirmed:
            return True
        self._doubted = {number: by for number, by in self._doubted.items() if self.groups.open.get(number) is not None}
        self._doubted.setdefault(sequence, []).append(worker)
        reason = f"worker {worker.number}, a remote worker, key {worker.key}: {answer.doubt}"
        self.event("task_failed", worker, reason)
        self.execute(self.scheduler.doubted(worker.number, sequence, reason))
        return False

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
        check_partial_sum(sums, [self.groups.open[sequence].task for sequence in requested], is_remote=bool(worker.key))
        for verdict in self.scheduler.collected(worker.number):
            assert isinstance(verdict, DeliverPartial)
            closed = [self.groups.close(sequence) for sequence in verdict.sequences]
            if closed:  # or their group was cancelled
                task, group, _ = closed[0]
                group.add_partial_sum(worker.number, task.round, sums)


def store_client_state(task: PoolTask, state: ClientState) -> None:
    """Write client state from a remote worker to the task's file, whole or not at all. PoolError if the disk fails."""
    assert task.state_out is not None, task.name
    try:
        client_state.write(task.state_out, state.payload)
    except client_state.StateError as error:
        raise PoolError(f"{task.name}: the client's state cannot be written: {error}") from error
