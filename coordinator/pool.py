"""Workers and the ROUTER socket to them. The only file of coordinator that knows sockets; the protocol is `edge.wire`.

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
from zmq.utils.monitor import recv_monitor_message

from coordinator import leases
from coordinator.crew import Crew, News, Worker
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
HIGH_WATER = 4 * leases.MOST_IN_HAND
"""Messages queued per worker and direction: of each task in hand its blocks, itself and its cancel, and some pings."""
MAX_FRAME_NBYTES = 1 << 32
MAX_SOCKET_PATH_NBYTES = 107  # sun_path of unix(7), less its closing zero
SPARE_FILES = 64
OUT_OF_MEMORY = "OutOfMemoryError"
"""What torch calls it (`torch.OutOfMemoryError`)."""
LAST_PART = zmq.NOBLOCK
FURTHER_PART = zmq.NOBLOCK | zmq.SNDMORE

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
    physical_bytes: tuple[int, int] = field(default=(0, 0), init=False)
    """Bytes (sent, received) on the socket."""
    work_seconds: float = field(default=0.0, init=False)
    """Wall seconds that workers were at work, summed over workers."""
    refused: int = field(default=0, init=False)
    """Messages that did not follow the protocol, whoever sent them."""

    def __post_init__(self) -> None:
        assert self.workers >= 1, self.workers
        self._leases, self._orders = Leases(self.workers), Orders()
        self._crew = Crew(self.nursery, self.logs, self._argv)
        self._frames: dict[bytes, zmq.Frame] = {}  # one per version, whatever the number of workers it is sent to
        self._parcels = Parcels(lambda version: self._frames.pop(version, None))
        self._turning = False
        self._failure: PoolError | None = None
        self._probe_at = float("inf")
        self._logged_at = 0.0
        self._news_by = float("inf")

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
        """How many workers there are."""
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
        self._endpoint = f"ipc://{path}"
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        stack.callback(context.term)
        self._router = stack.enter_context(context.socket(zmq.ROUTER))
        milliseconds = round(self.heartbeat_seconds * 1000)
        for option, value in (
            (zmq.ROUTER_MANDATORY, 1),  # a full queue or an unknown peer is an error, not a silent loss
            (zmq.ROUTER_HANDOVER, 0),
            (zmq.SNDHWM, HIGH_WATER),
            (zmq.RCVHWM, HIGH_WATER),
            (zmq.LINGER, 2000),
            (zmq.BACKLOG, 4096),
            (zmq.HEARTBEAT_IVL, milliseconds),
            (zmq.HEARTBEAT_TIMEOUT, 4 * milliseconds),
            (zmq.MAXMSGSIZE, MAX_FRAME_NBYTES),
        ):
            self._router.setsockopt(option, value)
        self._monitor = stack.enter_context(self._router.get_monitor_socket(zmq.EVENT_DISCONNECTED))
        stack.callback(self._router.disable_monitor)
        self._router.bind(self._endpoint)
        self._poller = zmq.Poller()
        for source in (self._router, self._monitor, self.nursery.fileno()):
            self._poller.register(source, zmq.POLLIN)

    def _argv(self, identity: str) -> list[str]:
        return [self._endpoint, identity, self.job.run_id, self.site, str(round(self.heartbeat_seconds * 1000))]

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
        all_received = self._router not in happened or self._receive_some()
        if self._monitor in happened:
            recv_monitor_message(self._monitor)
            self._probe_at = min(self._probe_at, time.monotonic() + PROBE_SECONDS)
        if self._probe_at <= time.monotonic():
            self._probe()
        if self.nursery.fileno() not in happened:
            return
        # after the messages: a reply sent just before its worker died counts; but strangers may never be silent
        self._news_by = min(self._news_by, time.monotonic() + FLOOD_SECONDS)
        if all_received or time.monotonic() >= self._news_by:
            self._news_by = float("inf")
            for news in self._crew.news():
                self._heed(news)

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

    def _receive_some(self) -> bool:
        """Handle messages that have come, not too many at a time; whether that was all."""
        for _ in range(MOST_PER_TURN):
            if not int(self._router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:  # an exception costs more than to ask
                return True
            parts = [self._router.recv(zmq.NOBLOCK, copy=False)]
            while parts[-1].more:  # a message has come whole or not at all
                parts.append(self._router.recv(zmq.NOBLOCK, copy=False))
            identity, *rest = [part.buffer for part in parts]
            sent, received = self.physical_bytes
            self.physical_bytes = (sent, received + sum(part.nbytes for part in rest))
            name = bytes(identity).decode(errors="replace")
            worker = self._crew.named(name)
            try:
                self._receive(worker, rest)
            except messages.WireError as error:
                self._refuse(worker, f"from {name}: {error}")
        return False

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
        message = wire.decode(parts[1], parts[2:], self.job.run_id)
        if isinstance(message, messages.Hello) != (not worker.greeted):
            raise messages.WireError(f"a {type(message).__name__} {'after' if worker.greeted else 'before'} the hello")
        if isinstance(message, Reply):
            self._answered(worker, envelope, message)
        elif isinstance(message, messages.Hello):
            worker.greeted = True
            self._send(worker, messages.Welcome(replace(self.job, seat=worker.seat, workers=self.workers)))
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
            self._send(worker, messages.Bye())
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
        """Count a message that does not fit. A worker of ours that sends one is ended: its tasks go on elsewhere."""
        self.refused += 1
        reason = printable(reason, MAX_REASON)
        if worker is not None and not worker.refused:
            worker.refused = True
            self._crew.end(worker, f"its message was refused: {reason}")
        if time.monotonic() >= self._logged_at + 1.0:  # a flood of bad messages must not become a flood of records
            self._logged_at = time.monotonic()
            self._event("message_refused", worker, f"{reason} ({self.refused} refused so far)")

    def _event(self, kind: str, worker: Worker | None, detail: str) -> None:
        level = logging.INFO if kind in ("worker_started", "worker_memory") else logging.WARNING
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
                self._crew.retire(worker, "it had too little memory, and others remain")
            elif isinstance(instruction, leases.Late):
                late = f"the reply to task {instruction.sequence} does not count"
                self._event("late_reply", self._crew[instruction.worker], late)
            else:
                assert isinstance(instruction, leases.GiveUp)
                raise PoolError(f"{instruction.reason}{quote(self._crew[instruction.worker].tail())}")

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
        run_id = self.job.run_id
        packed = (envelope or wire.Envelope(worker.identity)).pack()
        header = (
            wire.encode(message, run_id).header if entries is None else wire.encode_header(message, run_id, entries)
        )
        parts: list[bytes | zmq.Frame] = [packed, header, *frames]
        try:
            self._router.send(worker.identity.encode(), FURTHER_PART)
            for part in parts[:-1]:
                self._router.send(part, FURTHER_PART)
            self._router.send(parts[-1], LAST_PART)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            self._crew.end(worker, f"it could not be reached: {error.strerror}")
            return
        sent, received = self.physical_bytes
        self.physical_bytes = (sent + sum(len(part) for part in parts), received)
