"""What workers say: checked, refused or turned into events of the leases. The protocol is `edge.protocol.codec`.

Here a message meets what is known of its sender. Whoever says what does not fit is dismissed, and nothing is changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from coordinator.workers.client_state_transfer import check_ahead, store
from coordinator.workers.door import Came, Door
from coordinator.workers.instructions import Collected, Deliver, Instruction
from coordinator.workers.message_sender import Outbox
from coordinator.workers.registry import Crew, Worker
from coordinator.workers.scheduler import Leases
from coordinator.workers.task import PoolError, Reply, check_answer, check_sums, doubt
from coordinator.workers.task_group import Orders
from edge.protocol import codec, messages
from edge.protocol.client_state import StateError
from edge.protocol.config import Job
from edge.protocol.messages import printable

MOST_PER_TURN = 32
"""Messages handled before asking whether to stop, and whether what is waited for has come."""
MOST_OFFENCES = 3
"""Guests of one key that may be dismissed before it is let in no more."""
MAX_REASON = 400
"""Characters of why a message was refused."""
OUT_OF_MEMORY = "OutOfMemoryError"
"""What torch calls it (`torch.OutOfMemoryError`)."""


@dataclass(eq=False)
class Hearing:
    """Hears the workers of one pool."""

    job: Job
    """What a worker is welcomed with, but for its seat."""
    crew: Crew
    leases: Leases
    orders: Orders
    outbox: Outbox
    obey: Callable[[Iterable[Instruction]], None]
    """Has the pool do what the leases say."""
    event: Callable[[str, Worker | None, str], None]
    """Puts on record: kind, worker, detail."""
    taken: Callable[[int, Sequence[memoryview]], None]
    """Told of each message: the number of its connection, and its parts."""
    nbytes: int = field(default=0, init=False)
    """Bytes received."""
    refused: int = field(default=0, init=False)
    """Messages that did not follow the protocol, whoever sent them."""
    _doubted: dict[int, list[Worker]] = field(default_factory=dict, init=False)
    """task -> guests whose replies to it could not be used"""
    _logged_at: float = field(default=float("-inf"), init=False)

    def hear_some(self, door: Door) -> bool:
        """Handle messages that have come, not too many at a time; whether that was all."""
        for _ in range(MOST_PER_TURN):
            came = door.receive()
            if came is None:
                return True
            self.nbytes += sum(part.nbytes for part in came.parts)
            self.taken(came.connection, came.parts)
            worker = self.crew.named(came.identity, came.key)
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
        """Dismiss a worker for what it has sent, or has not; a key whose guests do so again and again comes no more."""
        if worker.key and not worker.dead:
            self.crew.offences[worker.key] += 1
        self.outbox.dismiss(worker, reason)

    def _admitted(self, came: Came) -> Worker | None:
        """A new guest, if this is its hello and nobody else has its name. WireError for what is no message at all."""
        bearer = self.crew.bearing(came.identity)
        if bearer is not None and bearer.key:  # a door has one connection of a name, so that the bearer's is gone
            self.crew.end(bearer, "another has come under its name")
        if not came.key or bearer is not None or len(came.parts) != 2:
            return None
        envelope = codec.Envelope.parse(came.parts[0])
        message = codec.decode(came.parts[1], (), messages.NO_RUN)
        if envelope.worker != came.identity or not isinstance(message, messages.Hello):
            return None
        if self.crew.offences[came.key] >= MOST_OFFENCES:
            why = f"guests of its key have been dismissed {MOST_OFFENCES} times in this run"
            self.outbox.send(Worker(0, 0, came.identity, None, came.key), messages.Bye(why))
            raise messages.WireError(f"key {came.key}: {why}")
        guest = self.crew.admit(self.leases.joined(came.key), came.identity, came.key)
        self.event("worker_joined", guest, f"a guest, key {guest.key}")
        return guest

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
        ahead, worker.ahead = worker.ahead, None
        if ahead is not None and not (isinstance(message, messages.Update) and envelope.sequence == ahead[0]):
            raise messages.WireError(f"a {type(message).__name__} in place of the update of task {ahead[0]}")
        if isinstance(message, Reply):
            self._answered(worker, envelope, message, None if ahead is None else ahead[1])
        elif isinstance(message, messages.Kept):
            self._came_ahead(worker, envelope.sequence, message)
        elif isinstance(message, messages.Hello):
            self.outbox.send(worker, messages.Welcome(self._job(worker)))
            worker.greeted = True
            self.outbox.send(worker, messages.Ping())
        elif isinstance(message, messages.Pong) and envelope.sequence == 0:
            self.crew.has_had_guests |= bool(worker.key)
            self.obey(self.leases.ready(worker.number))
        elif isinstance(message, messages.Pong):
            if self.orders.get(envelope.sequence) is not None:
                raise messages.WireError(f"task {envelope.sequence} was given up, but nobody cancelled it")
            worker.sent_at.pop(envelope.sequence, None)
            self.obey(self.leases.dropped(worker.number, envelope.sequence))
        elif isinstance(message, messages.Error):
            self._failed(worker, envelope.sequence, message)
        elif isinstance(message, messages.Sums):
            self._collected(worker, envelope, message)
        else:
            raise messages.WireError(f"a coordinator has no use for a {type(message).__name__}")

    def _job(self, worker: Worker) -> Job:
        """What a worker is welcomed with. A guest is not told where files lie on this machine."""
        if not worker.key:
            return replace(self.job, seat=worker.seat)
        return replace(self.job, seat=worker.seat, cache="", data=replace(self.job.data, root=None))

    def _failed(self, worker: Worker, sequence: int, error: messages.Error) -> None:
        """PoolError at once where this machine is to blame, and not the client: it must not count as a faulty one."""
        reason = f"{error.kind}: {error.text}"
        if worker.key:  # whatever is written there, it becomes one line of records and terminals
            reason = printable(reason, messages.MAX_ERROR_TEXT)
        if sequence == 0:  # its start failed, or it could not give its sums away
            worker.last_words = reason
            self.outbox.send(worker, messages.Bye(reason[: messages.MAX_ERROR_TEXT]))
            if worker.key:
                self.crew.end(worker, reason)
            return
        self._check_in_hand(worker, sequence)
        worker.sent_at.pop(sequence, None)
        is_wanted = self.orders.get(sequence) is not None  # what a client kept is deleted once nobody needs it
        if error.kind == StateError.__name__ and not worker.key and is_wanted:
            raise PoolError(error.text)
        self.event("task_failed", worker, reason)
        failed = self.leases.lacked_memory if error.kind == OUT_OF_MEMORY else self.leases.failed
        self.obey(failed(worker.number, sequence, f"worker {worker.number}: {reason}"))

    def _came_ahead(self, worker: Worker, sequence: int, kept: messages.Kept) -> None:
        """What a client keeps, from a guest; it counts when the update comes that belongs to it."""
        if not worker.key:
            raise messages.WireError("a Kept of a worker that reaches the files of the run")
        self._check_in_hand(worker, sequence)
        asked = self.orders.get(sequence)
        if asked is not None:  # or it was cancelled
            check_ahead(asked.task, kept)
        worker.ahead = sequence, kept

    def _answered(self, worker: Worker, envelope: codec.Envelope, reply: Reply, kept: messages.Kept | None) -> None:
        sequence, seconds = envelope.sequence, envelope.wall_seconds
        self._check_in_hand(worker, sequence)
        asked = self.orders.get(sequence)
        if asked is not None:
            check_answer(asked.task, reply)
            if worker.key and asked.task.state_out is not None and kept is None:
                raise messages.WireError(f"{asked.task.name}: what its client keeps did not come ahead of the update")
        if envelope.note and not worker.noted:
            worker.noted = True
            self.event("worker_memory", worker, f"worker {worker.number} on {printable(envelope.note, MAX_REASON)}")
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
                    reply = replace(reply, by=f"worker {worker.number}, a guest, key {worker.key}")
        elif asked is not None and sequence in self._doubted and doubt(asked.task, reply, {}) is None:
            self._convict(sequence)
        deposited = asked is not None and asked.task.is_deposited(reply)
        verdict, *more = self.leases.answered(worker.number, sequence, seconds, deposited)
        self.obey(more)  # the worker is to have its next task before anybody looks at this reply
        if isinstance(verdict, Deliver):
            task, order, _ = self.orders.deposit(sequence) if deposited else self.orders.close(sequence)
            if kept is not None:
                store(task, kept)
            order.hear(sequence, task, reply)
        else:
            self.obey([verdict])

    def _is_confirmed(self, guest: Worker, sequence: int) -> bool:
        """Whether others had no better reply to a task, or there are no others: then it is the training's fault."""
        before = {other.key for other in self._doubted.get(sequence, ())}
        return bool(before - {guest.key}) or (bool(before) and self.leases.has_failed_everywhere(sequence))

    def _repeat_elsewhere(self, guest: Worker, sequence: int, problem: str) -> None:
        self._doubted = {number: by for number, by in self._doubted.items() if self.orders.get(number) is not None}
        self._doubted.setdefault(sequence, []).append(guest)
        reason = f"worker {guest.number}, a guest, key {guest.key}: {problem}"
        self.event("task_failed", guest, reason)
        self.obey(self.leases.doubted(guest.number, sequence, reason))

    def _convict(self, sequence: int) -> None:
        """A task has got a reply that can be used: guests whose reply to it could not be were wrong."""
        for guest in self._doubted.pop(sequence, ()):
            if not guest.dead:
                self.offend(guest, "its reply could not be used, and another worker's to the same task could")

    def _check_in_hand(self, worker: Worker, sequence: int) -> None:
        """WireError if a worker answers what it was not asked, or answers it again."""
        if not worker.dead and not self.leases.is_in_hand(worker.number, sequence):
            raise messages.WireError(f"task {sequence} is not in its hand")

    def _collected(self, worker: Worker, envelope: codec.Envelope, sums: messages.Sums) -> None:
        if worker.dead:
            return
        asked = self.leases.asked(worker.number)
        if asked is None:
            raise messages.WireError("sums that nobody asked for")
        check_sums(sums, [self.orders[sequence].task for sequence in asked], is_guest=bool(worker.key))
        for verdict in self.leases.collected(worker.number):
            assert isinstance(verdict, Collected)
            closed = [self.orders.close(sequence) for sequence in verdict.sequences]
            if closed:  # or their order was cancelled
                task, order, _ = closed[0]
                order.gather(worker.number, task.collect.round, sums)
