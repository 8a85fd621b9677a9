"""Worker processes and the ROUTER socket. The only file of coordinator that knows sockets; the protocol is `edge.wire`.

What to do next is decided by `coordinator.leases`; this file obeys. It never looks into vectors, never sums, and never
waits longer than a tenth of a second without asking whether to stop.
"""

from __future__ import annotations

import logging
import os
import resource
import secrets
import select
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import zmq
from zmq.utils.monitor import recv_monitor_message

from coordinator import leases
from coordinator.leases import Instruction, Leases, Shelves
from coordinator.ledger import HostEvent
from coordinator.nursery import END_SECONDS, Nursery, how_ended, quote
from coordinator.tasks import PoolError, PoolTask, Reply, Stopped
from edge import messages, wire
from edge.config import Description, Job
from edge.payload import Payload, Vector

TURN_SECONDS = 0.1
"""The longest wait for messages before asking whether to stop."""
BYE_SECONDS = 0.5
"""How long idle workers may take to leave on their own."""
PROBE_SECONDS = 1.0
"""From a lost connection to the search for whose it was: libzmq forgets the peer meanwhile."""
HIGH_WATER = 4
"""Messages queued per worker and direction: with one task in hand there are never more."""
MAX_FRAME_NBYTES = 1 << 32
MAX_SOCKET_PATH_NBYTES = 107  # sun_path of unix(7), less its closing zero
SPARE_FILES = 64

_log = logging.getLogger("fedbr.pool")


@dataclass
class _Worker:
    number: int
    identity: str
    log: Path
    greeted: bool = False
    dead: bool = False
    last_words: str = ""
    """The error that its start ended in, or why it was ended."""


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

    def __post_init__(self) -> None:
        assert self.workers >= 1, self.workers
        self._leases, self._shelves = Leases(self.workers), Shelves()
        self._crew: dict[int, _Worker] = {}
        self._by_identity: dict[str, _Worker] = {}
        self._tasks: dict[int, PoolTask] = {}
        self._submitted = 0
        self._replies: deque[tuple[PoolTask, Reply]] = deque()
        self._frames: dict[bytes, zmq.Frame] = {}  # one per version, whatever the number of workers it is sent to
        self._probe_at = float("inf")
        self._refused = 0
        self._logged_at = 0.0

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
            stack.callback(self._end_workers)
            self._obey(self._leases.begin())
            self._exits = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()

    def describe(self, data: bool = True) -> tuple[Description, Payload]:
        """What a run must know before round 0; ``data=False``: of the model alone."""
        assert not self._tasks and not self._replies
        self.submit(PoolTask(messages.Describe(data)))
        _, reply = self.next_reply()
        assert isinstance(reply, messages.Described)
        return reply.description, reply.payload

    def run(self, tasks: Iterable[PoolTask]) -> Iterator[tuple[PoolTask, Reply]]:
        """Every task with its reply, in order of arrival; an iterator that is closed early cancels what is open."""
        open_tasks = 0
        for task in tasks:
            self.submit(task)
            open_tasks += 1
        try:
            while open_tasks:
                reply = self.next_reply()
                open_tasks -= 1
                yield reply
        except GeneratorExit:
            if open_tasks and not self._router.closed:
                self.cancel()
            raise

    def submit(self, task: PoolTask) -> None:
        """Queue a task; `next_reply` gives its reply some time later."""
        self._submitted += 1
        self._tasks[self._submitted] = task
        self._shelves.submitted({place: vector.version for place, vector in task.vectors.items()})
        self._obey(self._leases.submitted(self._submitted, task.name))

    def next_reply(self) -> tuple[PoolTask, Reply]:
        """The next task to be answered, and its reply. Raises `PoolError` or `Stopped`."""
        assert self._tasks or self._replies, "nothing was submitted"
        self._turn(0.0)
        while not self._replies:
            self._turn(TURN_SECONDS)
        return self._replies.popleft()

    def cancel(self) -> None:
        """Drop all tasks and replies that were not yet given out."""
        for task in self._tasks.values():
            self._shelves.over(vector.version for vector in task.vectors.values())
        self._tasks.clear()
        self._replies.clear()
        self._obey(self._leases.cancelled())

    # --- opening and closing --------------------------------------------------------------------------------------

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

    def _end_workers(self) -> None:
        """The idle leave by themselves, the others are ended; of a nursery that is gone, all have ended."""
        with suppress(PoolError):
            for worker in self._alive():
                if worker.greeted:
                    self._send(worker, messages.Bye())
            self._await_ends(BYE_SECONDS)
            self.nursery.end([worker.identity for worker in self._alive()])
            self._await_ends(END_SECONDS)

    def _await_ends(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._alive() and time.monotonic() < deadline:
            select.select([self.nursery.fileno()], [], [], 0.01)
            for answer in self.nursery.answers():
                if "exited" in answer and answer["exited"] in self._by_identity:
                    self._by_identity[answer["exited"]].dead = True

    def _alive(self) -> list[_Worker]:
        return [worker for worker in self._crew.values() if not worker.dead]

    # --- events in ------------------------------------------------------------------------------------------------

    def _turn(self, seconds: float) -> None:
        """Wait for something to happen, and handle all that did."""
        if self.stopped():
            raise Stopped
        happened = dict(self._poller.poll(round(seconds * 1000)))
        # before the nursery's news: a reply sent just before its worker died counts
        if self._router in happened:
            self._receive_all()
        if self._monitor in happened:
            recv_monitor_message(self._monitor)
            self._probe_at = min(self._probe_at, time.monotonic() + PROBE_SECONDS)
        if self._probe_at <= time.monotonic():
            self._probe()
        for answer in self.nursery.answers():
            self._heard(answer)

    def _heard(self, answer: dict[str, Any]) -> None:
        """One answer of the nursery; names of an earlier pool's workers are passed over."""
        worker = self._by_identity.get(answer.get("spawned") or answer.get("exited") or answer["failed"])
        if worker is None:
            return
        if "spawned" in answer:
            self._event("worker_started", worker, f"pid {answer['pid']}")
            return
        worker.dead = True
        self._shelves.gone(worker.number)
        end = how_ended(answer["status"]) if "exited" in answer else f"did not start: {answer['reason']}"
        reason = f"worker {worker.number} {end}{': ' if worker.last_words else ''}{worker.last_words}"
        self._event("worker_died", worker, reason)
        self._obey(self._leases.died(worker.number, reason))

    def _probe(self) -> None:
        """Find whose connection was lost: a worker that is stopped or stuck has not ended, but cannot be reached."""
        self._probe_at = float("inf")
        for worker in self._alive():
            if worker.greeted:
                self._send(worker, messages.Ping())

    def _receive_all(self) -> None:
        while True:
            try:
                identity, *parts = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            sent, received = self.physical_bytes
            self.physical_bytes = (sent, received + sum(len(part) for part in parts))
            name = identity.bytes.decode(errors="replace")
            worker = self._by_identity.get(name)
            try:
                self._receive(worker, [part.buffer for part in parts])
            except messages.WireError as error:
                self._refuse(worker, f"from {name}: {error}")

    def _receive(self, worker: _Worker | None, parts: list[memoryview]) -> None:
        if worker is None:
            raise messages.WireError("not a worker of this pool")
        if len(parts) < 2:
            raise messages.WireError(f"{len(parts)} parts where at least 2 were due")
        envelope = wire.Envelope.parse(parts[0])
        if envelope.worker != worker.identity:
            raise messages.WireError(f"the envelope names {envelope.worker}")
        message = wire.decode(parts[1], parts[2:], self.job.run_id)
        if isinstance(message, messages.Hello) != (not worker.greeted):
            raise messages.WireError(f"a {type(message).__name__} {'after' if worker.greeted else 'before'} the hello")
        if isinstance(message, messages.Hello):
            worker.greeted = True
            self._send(worker, messages.Welcome(self.job))
            self._send(worker, messages.Ping())
        elif isinstance(message, messages.Pong) and envelope.sequence == 0:
            self._obey(self._leases.ready(worker.number))
        elif isinstance(message, messages.Pong):
            self._obey(self._leases.dropped(worker.number, envelope.sequence))
        elif isinstance(message, messages.Error):
            self._failed(worker, envelope.sequence, f"{message.kind}: {message.text}")
        elif isinstance(message, Reply):
            self.work_seconds += envelope.wall_seconds
            self._answered(worker, envelope.sequence, message)
        else:
            raise messages.WireError(f"a coordinator has no use for a {type(message).__name__}")

    def _failed(self, worker: _Worker, sequence: int, reason: str) -> None:
        if sequence == 0:
            worker.last_words = reason
            self._send(worker, messages.Bye())
        else:
            self._event("task_failed", worker, reason)
            self._obey(self._leases.failed(worker.number, sequence, f"worker {worker.number}: {reason}"))

    def _answered(self, worker: _Worker, sequence: int, reply: Reply) -> None:
        task = self._tasks.get(sequence)
        if task is not None:
            _check(task, reply)
        for instruction in self._leases.answered(worker.number, sequence):
            if isinstance(instruction, leases.Deliver):
                done = self._tasks.pop(sequence)
                self._shelves.over(vector.version for vector in done.vectors.values())
                self._replies.append((done, reply))
            else:
                self._obey([instruction])

    def _refuse(self, worker: _Worker | None, reason: str) -> None:
        """Count a message that does not fit. A worker of ours that sends one is ended: its task goes on elsewhere."""
        self._refused += 1
        if worker is not None:
            worker.last_words = f"its message was refused: {reason}"
            self.nursery.end([worker.identity])
        if time.monotonic() >= self._logged_at + 1.0:  # a flood of bad messages must not become a flood of records
            self._logged_at = time.monotonic()
            self._event("message_refused", worker, f"{reason} ({self._refused} refused so far)")

    def _event(self, kind: str, worker: _Worker | None, detail: str) -> None:
        _log.log(logging.INFO if kind == "worker_started" else logging.WARNING, "%s: %s", kind, detail)
        self.on_event(HostEvent(kind, str(worker.number) if worker else "", detail, time.time()))

    # --- instructions out -----------------------------------------------------------------------------------------

    def _obey(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, leases.Start):
                self._spawn(instruction.worker)
                continue
            worker = self._crew[instruction.worker] if not isinstance(instruction, leases.Deliver) else None
            assert worker is not None
            if isinstance(instruction, leases.Send):
                self._send_task(worker, instruction.sequence)
            elif isinstance(instruction, leases.Cancel):
                self._send(worker, messages.Cancel(), instruction.sequence)
            elif isinstance(instruction, leases.Repeat):
                self._event("task_repeated", worker, f"{self._tasks[instruction.sequence].name}: {instruction.reason}")
            elif isinstance(instruction, leases.Late):
                self._event("late_reply", worker, f"task {instruction.sequence} was over")
            else:
                assert isinstance(instruction, leases.GiveUp)
                raise PoolError(f"{instruction.reason}{quote(_tail(worker.log))}")

    def _spawn(self, number: int) -> None:
        identity = f"worker-{number}-{secrets.token_hex(4)}"
        worker = _Worker(number, identity, self.logs / f"worker-{number}.log")
        self._crew[number] = self._by_identity[identity] = worker
        argv = [self._endpoint, identity, self.job.run_id, self.site, str(round(self.heartbeat_seconds * 1000))]
        self.nursery.spawn(identity, argv, worker.log)

    def _send_task(self, worker: _Worker, sequence: int) -> None:
        task = self._tasks[sequence]
        by_version = {vector.version: vector for vector in task.vectors.values()}
        missing, forget = self._shelves.delivery(worker.number, by_version)
        if missing:
            blocks = messages.Blocks(tuple(by_version[version] for version in missing))
            self._send(worker, blocks, forget=forget, frames=[self._frame(vector) for vector in blocks.vectors])
            forget = []
        # the vectors were sent as blocks, now or before: the header alone names them
        self._send(worker, task.message, sequence, task.state_in, task.state_out, forget, [])

    def _frame(self, vector: Vector) -> zmq.Frame:
        if vector.version not in self._frames:
            kept = self._shelves.kept()
            self._frames = {version: frame for version, frame in self._frames.items() if version in kept}
            self._frames[vector.version] = zmq.Frame(vector.data.data, copy=False)
        return self._frames[vector.version]

    def _send(
        self,
        worker: _Worker,
        message: messages.Message,
        sequence: int = 0,
        state_in: str | None = None,
        state_out: str | None = None,
        forget: Sequence[bytes] = (),
        frames: Sequence[zmq.Frame] = (),
    ) -> None:
        """Send, or have a worker that cannot be reached ended; its death brings its task back."""
        envelope = wire.Envelope(worker.identity, sequence, state_in, state_out, tuple(forget)).pack()
        parts: list[bytes | zmq.Frame] = [envelope, wire.encode(message, self.job.run_id).header, *frames]
        try:
            self._router.send_multipart([worker.identity.encode(), *parts], zmq.NOBLOCK, copy=False)
        except (zmq.Again, zmq.ZMQError) as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            worker.last_words = f"it could not be reached: {error.strerror}"
            self.nursery.end([worker.identity])
            return
        sent, received = self.physical_bytes
        self.physical_bytes = (sent + sum(len(part) for part in parts), received)


def _check(task: PoolTask, reply: Reply) -> None:
    """Refuse a reply that answers something else."""
    asked = task.message
    if isinstance(asked, messages.Train):
        fits = isinstance(reply, messages.Update) and (reply.client, reply.round) == (asked.client, asked.round)
    elif isinstance(asked, messages.Evaluate):
        fits = isinstance(reply, messages.Score) and (reply.client, reply.start) == (asked.client, asked.start)
    else:
        fits = isinstance(reply, messages.Described)
    if not fits:
        raise messages.WireError(f"a {type(reply).__name__} that does not answer: {task.name}")


def _tail(log: Path) -> bytes:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            return file.read()
    except FileNotFoundError:
        return b""
