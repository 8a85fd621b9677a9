"""Workers, and the loop that listens to them. The sockets are those of `coordinator.door`, the protocol is `edge.wire`.

What to do next is decided by `coordinator.leases`; this file obeys. It never looks into vectors, keeps no reply, and
never waits longer than a tenth of a second without asking whether to stop.
"""

from __future__ import annotations

import logging
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import zmq

from coordinator import leases
from coordinator.crew import Crew, News, Worker
from coordinator.door import Came, Door, Gate, Porter, UnreachableError
from coordinator.leases import Instruction, Leases
from coordinator.ledger import HostEvent
from coordinator.nursery import Nursery, quote
from coordinator.orders import OpenTask, Orders, PoolOrder
from coordinator.parcels import Parcels
from coordinator.tasks import Heard, PoolError, PoolTask, Reply, Stopped, check_answer, check_sums
from edge import messages, wire
from edge.config import Description, Job
from edge.messages import printable
from edge.payload import Payload, Vector

TURN_SECONDS = 0.1
"""The longest wait for messages before asking whether to stop."""
MOST_PER_TURN = 32
"""Messages handled before asking whether to stop, and whether what is waited for has come."""
FLOOD_SECONDS = 0.5
"""How long messages that keep coming may hold back the news of workers that have ended."""
MAX_REASON = 400
"""Characters of why a message was refused."""
PROBE_SECONDS = 1.0
"""From a lost connection to the search for whose it was: libzmq forgets the peer meanwhile."""
FIRST_GUEST_SECONDS = 600.0
"""How long a pool without workers of its own waits for the first guest."""
NEXT_GUEST_SECONDS = 8.0
"""And for another once all are gone: with the four heartbeats after which a silent one is, less than half a minute."""
MAX_SOCKET_PATH_NBYTES = 107  # sun_path of unix(7), less its closing zero
SPARE_FILES = 64
QUIET = ("worker_started", "worker_joined", "worker_memory", "listening")
"""Events that nobody need be warned of."""
OUT_OF_MEMORY = "OutOfMemoryError"
"""What torch calls it (`torch.OutOfMemoryError`)."""

_log = logging.getLogger("fedbr.pool")


@dataclass(eq=False)
class Pool:
    """Worker processes that serve one run, as a context: when it is left, however, no process and no folder remains."""

    job: Job
    workers: int
    nursery: Nursery
    logs: Path
    """Folder for worker-N.log."""
    on_event: Callable[[HostEvent], None]
    stopped: Callable[[], bool]
    """Asked at least every `TURN_SECONDS`; True raises `Stopped`."""
    site: str = "edge.site:Site"
    """``module:Class`` of what the workers do."""
    heartbeat_seconds: float = 5.0
    """A connection that is silent for four of them is lost."""
    gate: Gate | None = None
    """Where workers of other machines may join, beside the ``workers`` that are started here."""
    physical_bytes: tuple[int, int] = field(default=(0, 0), init=False)
    """Bytes (sent, received) on the socket."""
    work_seconds: float = field(default=0.0, init=False)
    """Wall seconds that workers were at work, summed over workers."""
    refused: int = field(default=0, init=False)
    """Messages that did not follow the protocol, whoever sent them."""

    def __post_init__(self) -> None:
        assert self.workers >= (self.gate is None), self.workers
        self._leases, self._orders = Leases(self.workers), Orders()
        self._crew = Crew(self.nursery, self.logs, self._argv)
        self._frames: dict[bytes, zmq.Frame] = {}  # one per version, whatever the number of workers it is sent to
        self._parcels = Parcels(lambda version: self._frames.pop(version, None))
        self._turning = False
        self._failure: PoolError | None = None
        self._probe_at = float("inf")
        self._logged_at = 0.0
        self._news_by = float("inf")
        self._nobody_since: float | None = None
        self._patience = FIRST_GUEST_SECONDS

    # --- for the caller -------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and self.workers > soft - SPARE_FILES:
            raise PoolError(f"{self.workers} workers need {self.workers + SPARE_FILES} open files, allowed are {soft}")
        with ExitStack() as stack:
            folder = Path(tempfile.mkdtemp(prefix="fedbr-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            self.nursery.adopt(folder)
            self._open(folder / "pool", stack)
            stack.callback(self._crew.end_all, lambda worker: self._send(worker, messages.Bye()))
            stack.callback(self._orders.close_all)
            self._obey(self._leases.begin())
            self._exits = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()

    @property
    def size(self) -> int:
        """How many workers there are, guests aside."""
        return self.workers

    def describe(self, data: bool = True) -> tuple[Description, Payload]:
        """What a run must know before round 0; ``data=False``: of the model alone. Raises `PoolError` or `Stopped`."""
        replies: list[Reply] = []
        self.submit([PoolTask(messages.Describe(data))], lambda _, reply: replies.append(reply)).wait()
        (reply,) = replies
        assert isinstance(reply, messages.Described)
        return reply.description, reply.payload

    def submit(self, tasks: Sequence[PoolTask], heard: Heard) -> PoolOrder:
        """As `coordinator.tasks.Workers.submit`. Raises `PoolError` or `Stopped`.

        The vectors of a reply are views of the received frames. ``heard`` may submit, but must not wait.
        """
        order = PoolOrder(heard, lambda: self._turn(TURN_SECONDS), self._drop, self._ask)
        offers: list[tuple[int, str, float]] = []
        for task in tasks:
            sequence = self._orders.add(OpenTask(task, order, self._parcels.take(task.payload)))
            offers.append((sequence, task.name, task.flops))
        self._obey(self._leases.submitted(offers))
        if not self._turning:
            self._turn(0.0)
        return order

    def _drop(self, sequences: Sequence[int]) -> None:
        """Part of an order is not wanted any more."""
        for sequence in sequences:
            self._close(sequence)
        self._obey(self._leases.cancelled(sequences))

    def _ask(self, sequences: Sequence[int]) -> None:
        """The sums with these updates in them are wanted."""
        self._obey(self._leases.collect(sequences))

    def _close(self, sequence: int) -> OpenTask:
        """A task is over."""
        closed = self._orders.close(sequence)
        self._parcels.release(closed.parcel)
        return closed

    # --- opening --------------------------------------------------------------------------------------------------

    def _open(self, path: Path, stack: ExitStack) -> None:
        if len(os.fsencode(path)) > MAX_SOCKET_PATH_NBYTES:
            raise PoolError(f"{path} is too long for a socket: set TMPDIR to a shorter folder")
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        stack.callback(context.term)
        self._own_door = Door(context, f"ipc://{path}", self.heartbeat_seconds, stack)
        self._porter = self._guest_door = None
        if self.gate is not None:
            self._porter = Porter(context, self.gate.allowed, stack)
            self._guest_door = Door(context, self.gate.endpoint, self.heartbeat_seconds, stack, self.gate)
            self.gate = replace(self.gate, endpoint=self._guest_door.endpoint)
            self._event("listening", None, self.gate.endpoint)
        self._doors = [door for door in (self._own_door, self._guest_door) if door is not None]
        self._poller = zmq.Poller()
        sockets = [socket for door in self._doors for socket in (door.router, door.monitor)]
        for source in (*sockets, *([self._porter.socket] if self._porter else []), self.nursery.fileno()):
            self._poller.register(source, zmq.POLLIN)

    def _argv(self, identity: str) -> list[str]:
        return [self._own_door.endpoint, identity, self.site, str(round(self.heartbeat_seconds * 1000))]

    # --- events in ------------------------------------------------------------------------------------------------

    def _turn(self, seconds: float) -> None:
        """Wait for something to happen, and handle what did."""
        assert not self._turning, "what hears a reply must not wait for others"
        if self.stopped():
            raise Stopped
        if self._failure is not None:
            raise self._failure
        self._turning = True
        try:
            self._handle(dict(self._poller.poll(round(seconds * 1000))))
        except PoolError as error:
            self._failure = error  # what was given up would be waited for in vain
            raise
        finally:
            self._turning = False

    def _handle(self, happened: dict[object, int]) -> None:
        if self._porter is not None and self._porter.socket in happened:
            stranger = self._porter.answer()
            if stranger is not None:
                self._refuse(None, f"from {stranger}: not an allowed key")
        came = [self._receive_some(door) for door in self._doors if door.router in happened]
        for door in self._doors:
            if door.monitor in happened:
                door.take_loss()
                self._probe_at = min(self._probe_at, time.monotonic() + PROBE_SECONDS)
        if self._probe_at <= time.monotonic():
            self._probe()
        self._hear_news(self.nursery.fileno() in happened, all(came))
        if self._guest_door is not None:
            self._expect_somebody()

    def _hear_news(self, is_told: bool, is_silent: bool) -> None:
        """Heed what has become of workers, if there is news, of the nursery (``is_told``) or of guests given up.

        After the messages, since a reply that was sent just before its worker died counts; but not only when the doors
        are silent, which with strangers about they may never be.
        """
        if not is_told and not self._crew.has_lost_guests:
            return
        self._news_by = min(self._news_by, time.monotonic() + FLOOD_SECONDS)
        if is_silent or time.monotonic() >= self._news_by:
            self._news_by = float("inf")
            for news in self._crew.news():
                self._heed(news)

    def _expect_somebody(self) -> None:
        """PoolError when nobody has been there for too long; workers of ours that end are replaced at once."""
        if self._crew.alive:
            self._nobody_since = None
            return
        now = time.monotonic()
        if self._nobody_since is None:
            self._nobody_since = now
        if now - self._nobody_since > self._patience:
            assert self.gate is not None
            where = self.gate.endpoint
            raise PoolError(f"no worker has been there for {self._patience:g} s, and none has joined at {where}")

    def _heed(self, news: News) -> None:
        worker, detail, has_ended = news
        if not has_ended:
            self._event("worker_started", worker, detail)
            return
        self._parcels.gone(worker.number)
        self._event("worker_died", worker, detail)
        self._obey(self._leases.died(worker.number, detail))

    def _probe(self) -> None:
        """Find whose connection was lost: a worker that is stopped or stuck has not ended, but cannot be reached."""
        self._probe_at = float("inf")
        for worker in self._crew.alive:
            if worker.greeted:
                self._send(worker, messages.Ping())

    def _receive_some(self, door: Door) -> bool:
        """Handle messages that have come, not too many at a time; whether that was all."""
        for _ in range(MOST_PER_TURN):
            came = door.receive()
            if came is None:
                return True
            sent, received = self.physical_bytes
            self.physical_bytes = (sent, received + sum(part.nbytes for part in came.parts))
            worker = self._crew.named(came.identity, came.key)
            try:
                self._receive(worker or self._admitted(came), came.parts)
            except messages.WireError as error:
                self._refuse(worker, f"from {came.identity}: {error}")
        return False

    def _admitted(self, came: Came) -> Worker | None:
        """A new guest, if this is its hello and nobody else has its name. WireError for what is no message at all."""
        bearer = self._crew.bearing(came.identity)
        if bearer is not None and bearer.key:  # a door has one connection of a name, so that the bearer's is gone
            self._crew.end(bearer, "another has come under its name")
        if not came.key or bearer is not None or len(came.parts) != 2:
            return None
        envelope = wire.Envelope.parse(came.parts[0])
        message = wire.decode(came.parts[1], (), messages.NO_RUN)
        if envelope.worker != came.identity or not isinstance(message, messages.Hello):
            return None
        guest = self._crew.admit(self._leases.joined(), came.identity, came.key)
        self._patience = NEXT_GUEST_SECONDS
        self._event("worker_joined", guest, f"a guest, key {guest.key}")
        return guest

    def _receive(self, worker: Worker | None, parts: list[memoryview]) -> None:
        if worker is None:
            raise messages.WireError("not a worker of this pool")
        if worker.refused:
            raise messages.WireError("it is being ended: an earlier message was refused")
        if len(parts) < 2:
            raise messages.WireError(f"{len(parts)} parts where at least 2 were due")
        envelope = wire.Envelope.parse(parts[0])
        if envelope.worker != worker.identity:
            raise messages.WireError(f"the envelope names {envelope.worker}")
        message = wire.decode(parts[1], parts[2:], self.job.run_id if worker.greeted else messages.NO_RUN)
        if isinstance(message, messages.Hello) != (not worker.greeted):
            raise messages.WireError(f"a {type(message).__name__} {'after' if worker.greeted else 'before'} the hello")
        if isinstance(message, Reply):
            self._answered(worker, envelope, message)
        elif isinstance(message, messages.Hello):
            self._send(worker, messages.Welcome(replace(self.job, seat=worker.seat, workers=self.workers)))
            worker.greeted = True
            self._send(worker, messages.Ping())
        elif isinstance(message, messages.Pong) and envelope.sequence == 0:
            self._obey(self._leases.ready(worker.number))
        elif isinstance(message, messages.Pong):
            if self._orders.get(envelope.sequence) is not None:
                raise messages.WireError(f"task {envelope.sequence} was given up, but nobody cancelled it")
            self._obey(self._leases.dropped(worker.number, envelope.sequence))
        elif isinstance(message, messages.Error):
            self._failed(worker, envelope.sequence, message)
        elif isinstance(message, messages.Sums):
            self._collected(worker, envelope, message)
        else:
            raise messages.WireError(f"a coordinator has no use for a {type(message).__name__}")

    def _failed(self, worker: Worker, sequence: int, error: messages.Error) -> None:
        reason = f"{error.kind}: {error.text}"
        if sequence == 0:  # its start failed, or it could not give its sums away
            worker.last_words = reason
            self._send(worker, messages.Bye(reason[: messages.MAX_ERROR_TEXT]))
            if worker.key:
                self._crew.end(worker, reason)
            return
        self._check_in_hand(worker, sequence)
        self._event("task_failed", worker, reason)
        failed = self._leases.lacked_memory if error.kind == OUT_OF_MEMORY else self._leases.failed
        self._obey(failed(worker.number, sequence, f"worker {worker.number}: {reason}"))

    def _answered(self, worker: Worker, envelope: wire.Envelope, reply: Reply) -> None:
        sequence, seconds = envelope.sequence, envelope.wall_seconds
        self._check_in_hand(worker, sequence)
        asked = self._orders.get(sequence)
        if asked is not None:
            check_answer(asked.task, reply)
        if envelope.note and not worker.noted:
            worker.noted = True
            self._event("worker_memory", worker, f"worker {worker.number} on {envelope.note}")
        self.work_seconds += seconds
        deposited = asked is not None and asked.task.is_deposited(reply)
        verdict, *more = self._leases.answered(worker.number, sequence, seconds, deposited)
        self._obey(more)  # the worker is to have its next task before anybody looks at this reply
        if isinstance(verdict, leases.Deliver):
            task, order, _ = self._orders.deposit(sequence) if deposited else self._close(sequence)
            order.hear(sequence, task, reply)
        else:
            self._obey([verdict])

    def _check_in_hand(self, worker: Worker, sequence: int) -> None:
        """WireError if a worker answers what it was not asked, or answers it again."""
        if not worker.dead and not self._leases.is_in_hand(worker.number, sequence):
            raise messages.WireError(f"task {sequence} is not in its hand")

    def _collected(self, worker: Worker, envelope: wire.Envelope, sums: messages.Sums) -> None:
        if worker.dead:
            return
        asked = self._leases.asked(worker.number)
        if asked is None:
            raise messages.WireError("sums that nobody asked for")
        check_sums(sums, [self._orders[sequence].task for sequence in asked])
        self.work_seconds += envelope.wall_seconds
        for verdict in self._leases.collected(worker.number):
            assert isinstance(verdict, leases.Collected)
            closed = [self._close(sequence) for sequence in verdict.sequences]
            if closed:  # or their order was cancelled
                task, order, _ = closed[0]
                order.gather(worker.number, task.collect.round, sums)

    def _refuse(self, worker: Worker | None, reason: str) -> None:
        """Count a message that does not fit. A worker that sends one is dismissed, once: its tasks go on elsewhere."""
        self.refused += 1
        reason = printable(reason, MAX_REASON)
        if worker is not None and not worker.refused:
            worker.refused = True
            self._dismiss(worker, f"its message was refused: {reason}")
        if time.monotonic() >= self._logged_at + 1.0:  # a flood of bad messages must not become a flood of records
            self._logged_at = time.monotonic()
            self._event("message_refused", worker, f"{reason} ({self.refused} refused so far)")

    def _dismiss(self, worker: Worker, why: str) -> None:
        """Have a worker ended. A guest is told, since nobody here can end its process."""
        if worker.key:
            self._send(worker, messages.Bye(why[: messages.MAX_ERROR_TEXT]))
        self._crew.end(worker, why)

    def _event(self, kind: str, worker: Worker | None, detail: str) -> None:
        level = logging.INFO if kind in QUIET else logging.WARNING
        _log.log(level, "%s: %s", kind, detail)
        self.on_event(HostEvent(kind, str(worker.number) if worker else "", detail, time.time()))

    # --- instructions out -----------------------------------------------------------------------------------------

    def _obey(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, leases.Send):
                self._send_task(self._crew[instruction.worker], instruction.sequence)
            elif isinstance(instruction, leases.Start):
                self._crew.start(instruction.worker)
            elif isinstance(instruction, leases.Cancel):
                worker = self._crew[instruction.worker]
                self._send(worker, messages.Cancel(), wire.Envelope(worker.identity, instruction.sequence))
            elif isinstance(instruction, leases.Repeat):
                name = self._orders[instruction.sequence].task.name
                self._event("task_repeated", self._crew[instruction.worker], f"{name}: {instruction.reason}")
            elif isinstance(instruction, leases.Recall):
                self._orders.recall(instruction.sequences)
                lost = f"{len(instruction.sequences)} visits whose updates it had added up: {instruction.reason}"
                self._event("task_repeated", self._crew[instruction.worker], lost)
            elif isinstance(instruction, leases.Collect):
                self._send(self._crew[instruction.worker], self._orders[instruction.sequence].task.collect)
            elif isinstance(instruction, leases.Retire):
                worker = self._crew[instruction.worker]
                self._event("worker_retired", worker, instruction.reason)
                why = "it had too little memory, and others remain"
                if worker.key:
                    self._dismiss(worker, why)
                else:
                    self._crew.retire(worker, why)
            elif isinstance(instruction, leases.Late):
                late = f"the reply to task {instruction.sequence} does not count"
                self._event("late_reply", self._crew[instruction.worker], late)
            else:
                assert isinstance(instruction, leases.GiveUp)
                self._give_up(instruction)

    def _give_up(self, given: leases.GiveUp) -> None:
        """PoolError, unless its order goes on without this task."""
        worker, asked = self._crew[given.worker], self._orders.get(given.sequence)
        if asked is None or not asked.task.may_fail:
            raise PoolError(f"{given.reason}{quote(worker.tail())}")
        self._event("task_given_up", worker, f"{given.reason}{quote(worker.tail())}")
        task, order, _ = self._close(given.sequence)
        order.hear(given.sequence, task, task.unanswered)

    def _send_task(self, worker: Worker, sequence: int) -> None:
        task, _, parcel = self._orders[sequence]
        missing, forget = self._parcels.delivery(worker.number, parcel)
        if missing:
            blocks = messages.Blocks(tuple(missing))
            envelope = wire.Envelope(worker.identity, forget=tuple(forget))
            self._send(worker, blocks, envelope, frames=[self._frame(vector) for vector in missing])
            forget = []
        envelope = wire.Envelope(
            worker.identity, sequence, task.state_in, task.state_out, tuple(forget), 0.0, task.share, self._crew.left
        )
        # the vectors were sent as blocks, now or before: the header alone names them
        self._send(worker, task.message, envelope, parcel.entries)

    def _frame(self, vector: Vector) -> zmq.Frame:
        if vector.version not in self._frames:
            self._frames[vector.version] = zmq.Frame(vector.data.data, copy=False)
        return self._frames[vector.version]

    def _send(
        self,
        worker: Worker,
        message: messages.Message,
        envelope: wire.Envelope | None = None,
        entries: wire.Entries | None = None,
        frames: Sequence[zmq.Frame] = (),
    ) -> None:
        """Send, or have a worker that cannot be reached ended; its death brings its tasks back."""
        run_id = self.job.run_id if worker.greeted else messages.NO_RUN
        packed = (envelope or wire.Envelope(worker.identity)).pack()
        header = (
            wire.encode(message, run_id).header if entries is None else wire.encode_header(message, run_id, entries)
        )
        parts: list[bytes | zmq.Frame] = [packed, header, *frames]
        door = self._guest_door if worker.key else self._own_door
        assert door is not None
        try:
            door.send(worker.identity, parts)
        except UnreachableError as error:
            self._crew.end(worker, f"it could not be reached: {error}")
            return
        sent, received = self.physical_bytes
        self.physical_bytes = (sent + sum(len(part) for part in parts), received)
