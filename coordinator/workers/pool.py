"""The worker pool of one run, and its event loop.

`coordinator.workers.messaging` handles messages, `coordinator.workers.scheduler` decides what to do next, and the pool
does it. The pool never reads vectors, stores no reply, and checks for a stop at least every tenth of a second.
"""

from __future__ import annotations

import logging
import resource
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Self

import zmq

from coordinator.records.schema import HostEvent
from coordinator.workers.block_cache import SharedBlocks
from coordinator.workers.file_sender import FileSender
from coordinator.workers.instructions import (
    Abort,
    CancelTask,
    DropReply,
    Instruction,
    InvalidatePartial,
    ReplaceWorker,
    RequestPartial,
    Requeue,
    RetireWorker,
    SendTask,
    StartWorker,
)
from coordinator.workers.launcher import WorkerLauncher, quote
from coordinator.workers.message_sender import MessageSender
from coordinator.workers.messaging import MessageHandler
from coordinator.workers.monitor import WorkerMonitor
from coordinator.workers.registry import Worker, WorkerRegistry
from coordinator.workers.scheduler import TaskScheduler
from coordinator.workers.sockets import RemoteAccess, Sockets
from coordinator.workers.task import PoolError, PoolTask, Reply, ReplyHandler, Stopped, caused_by
from coordinator.workers.task_group import OpenTask, PoolTaskGroup, TaskGroups
from edge.protocol import messages, serialization
from edge.protocol.config import Job, ModelProfile, ShippedFile
from edge.protocol.payload import Payload
from edge.protocol.scratch import scratch

TURN_SECONDS = 0.1
"""Longest wait for messages between two checks for a stop."""
FLOOD_SECONDS = 0.5
"""Longest delay of the events of workers that have ended, while messages keep coming."""
SPARE_FILES = 64
"""Files that a run opens beside one per worker."""
CLOSE_SECONDS = 1.0
"""Longest wait, at the end of a run, for the payload that is being built: a user's code may take minutes."""
QUIET = ("worker_started", "worker_joined", "worker_memory", "listening")
"""Kinds of events that are logged as information, not as warnings."""

_log = logging.getLogger("fedbr.pool")


class PayloadBuilder:
    """Builds the payloads of tasks on a thread of its own, so that arithmetic never delays a heartbeat.

    A payload is built when its task is sent, so at most those of the tasks that workers have or prefetch are in memory.
    They are built in the order of the requests.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """``wake`` is called on that thread after each payload."""
        self._wake = wake
        self._requests: SimpleQueue[tuple[Future[Payload], Callable[[], Payload]] | None] = SimpleQueue()
        # A daemon, so that a process that has been asked to stop does not wait for it.
        self._thread = Thread(target=self._build_all, name="payloads", daemon=True)
        self._is_closed = False
        self._workers: dict[int, int | None] = {}
        """Task that is being built -> the worker that has it now; None if that has died"""
        self._built: deque[tuple[int, Future[Payload]]] = deque()

    def submit(self, make: Callable[[], Payload]) -> Future[Payload]:
        """Build a payload that no task waits for yet."""
        future: Future[Payload] = Future()
        self._requests.put((future, make))
        if not self._thread.is_alive():
            self._thread.start()
        return future

    def request(self, task: int, worker: int, make: Callable[[], Payload]) -> None:
        """Build the payload of a task for a worker; of a task that is being built, only the worker changes."""
        if task not in self._workers:

            def add(done: Future[Payload]) -> None:
                if not self._is_closed:
                    self._built.append((task, done))
                    self._wake()

            self.submit(make).add_done_callback(add)
        self._workers[task] = worker

    def remove_worker(self, worker: int) -> None:
        """A worker has died: its tasks are not sent to it."""
        self._workers = {task: None if of == worker else of for task, of in self._workers.items()}

    def take_built(self) -> Iterator[tuple[int, int | None, Payload]]:
        """(task, worker, payload) of those that are built. Raises what building one has raised."""
        while self._built:
            task, done = self._built.popleft()
            yield task, self._workers.pop(task), done.result()

    def close(self) -> None:
        """Drop all payloads; the one that is being built is waited for, but not for long."""
        self._is_closed = True
        with suppress(Empty):
            while True:
                self._requests.get_nowait()
        self._requests.put(None)
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    def _build_all(self) -> None:
        while (request := self._requests.get()) is not None:
            future, make = request
            try:
                future.set_result(make())
            except BaseException as error:  # it belongs to the future's reader
                future.set_exception(error)


@dataclass(eq=False)
class Pool:
    """Worker processes that serve one run, as a context: when it is left, no process and no folder remains."""

    job: Job
    workers: int
    launcher: WorkerLauncher
    logs: Path
    """Folder for worker-N.log."""
    on_event: Callable[[HostEvent], None]
    stopped: Callable[[], bool]
    """Called at least every `TURN_SECONDS`; True raises `Stopped`."""
    site: str = "edge.training.trainer:LocalTrainer"
    """``module:Class`` of the workers' `edge.runtime.task_runner.TaskExecutor`."""
    heartbeat_seconds: float = 5.0
    """A connection that is silent for four heartbeats is lost."""
    remote_access: RemoteAccess | None = None
    """The port at which remote workers may join the ``workers`` that are started here."""
    most_nbytes: int = 1 << 30
    """Largest message of a remote worker, all parts together."""
    files: Mapping[ShippedFile, Path] = field(default_factory=dict)
    """The files that remote workers can request, and where they are."""

    def __post_init__(self) -> None:
        assert self.workers >= (self.remote_access is None), self.workers
        self._scheduler = TaskScheduler(self.workers)
        self._is_in_turn = False
        self._failure: Exception | None = None
        self._events_due_at = float("inf")
        self._on_watched: Callable[[], None] = lambda: None

    # --- for the caller -------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and self.workers > soft - SPARE_FILES:
            raise PoolError(f"{self.workers} workers need {self.workers + SPARE_FILES} open files, allowed are {soft}")
        with ExitStack() as stack:
            folder = stack.enter_context(scratch())
            self.launcher.use(self.job.train.instructions)
            self.launcher.adopt(folder)
            self._open(folder, stack)
            stack.callback(self._registry.end_all, lambda worker: self._sender.send(worker, messages.Shutdown()))
            stack.callback(self._groups.close_all)
            stack.callback(self._payloads.close)
            self._execute(self._scheduler.begin())
            self._exits = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()

    def _open(self, folder: Path, stack: ExitStack) -> None:
        self._sockets = Sockets(
            folder, self.remote_access, self.most_nbytes, self.heartbeat_seconds, self.launcher.fileno(), stack
        )
        endpoint, heartbeat_ms = self._sockets.own.endpoint, str(round(self.heartbeat_seconds * 1000))
        self._registry = WorkerRegistry(
            self.launcher, self.logs, lambda identity: [endpoint, identity, self.site, heartbeat_ms]
        )
        self._payloads = PayloadBuilder(self._sockets.wake)
        shared = SharedBlocks(stack, self.launcher.adopt)
        self._sender = MessageSender(self.job.run_id, self._sockets, self._registry, shared)
        self._groups = TaskGroups(self._sender.cached_payloads.release)
        self._files = FileSender(self.files, self._sender)
        job = replace(self.job, workers=self.workers, shipped=tuple(self.files))
        listener = self._sockets.listener
        on_taken = listener.taken if listener is not None else lambda connection, parts: None
        self._handler = MessageHandler(
            job,
            self._registry,
            self._scheduler,
            self._groups,
            self._sender,
            self._execute,
            self._event,
            on_taken,
            self._files,
        )
        self.remote_access = self._sockets.remote_access
        self._monitor = WorkerMonitor(
            self.workers,
            self.launcher,
            self._registry,
            self._scheduler,
            self._groups,
            self._files,
            self.remote_access,
            self._handler.dismiss,
        )
        if self.remote_access is not None:
            self._event("listening", None, self.remote_access.endpoint)

    @property
    def physical_bytes(self) -> tuple[int, int]:
        """Bytes (sent, received) on the sockets."""
        return self._sender.nbytes, self._handler.nbytes

    @property
    def refused(self) -> int:
        """Messages that did not follow the protocol, whoever sent them."""
        return self._handler.refused

    @property
    def size(self) -> int:
        """Number of workers, local ones and those of remote workers that are ready."""
        return self._scheduler.workers

    def describe(self, data: bool = True) -> tuple[ModelProfile, Payload]:
        """Profile and initial vectors; ``data=False``: profile of the model alone. Raises `PoolError` or `Stopped`."""
        replies: list[Reply] = []
        self.submit([PoolTask(messages.Describe(data))], lambda _, reply: replies.append(reply)).wait()
        (reply,) = replies
        assert isinstance(reply, messages.Described)
        return reply.description, reply.payload

    def submit(
        self, tasks: Sequence[PoolTask], on_reply: ReplyHandler, group: PoolTaskGroup | None = None
    ) -> PoolTaskGroup:
        """As `coordinator.workers.task.Workers.submit`. Raises `PoolError` or `Stopped`.

        The vectors of a reply are views of the received frames. ``on_reply`` may submit, but must not wait. ``group``:
        an earlier one of the same ``on_reply``, which these tasks join.
        """
        group = group or PoolTaskGroup(
            on_reply,
            lambda: self.turn(TURN_SECONDS),
            self._drop,
            lambda sequences: self._execute(self._scheduler.collect(sequences)),
        )
        offers: list[tuple[int, str, float]] = []
        preferred: dict[int, int] = {}
        together: dict[int, bytes] = {}
        for task in tasks:
            cached_payload = self._sender.cached_payloads.take(task.payload) if task.build is None else None
            sequence = self._groups.add(OpenTask(task, group, cached_payload))
            offers.append((sequence, task.name, task.flops))
            if (holder := self._sender.state_holder(task)) is not None:
                preferred[sequence] = holder
            if task.together is not None:
                together[sequence] = task.together
        self._execute(self._scheduler.submitted(offers, preferred, together))
        if not self._is_in_turn:
            self.turn(0.0)
        return group

    def withdraw(self, task: PoolTask) -> None:
        """Cancel one task, which its group then does not count; no-op if it is not open."""
        for sequence in [sequence for sequence, opened in self._groups.open.items() if opened.task is task]:
            self._groups.withdraw(sequence)
            self._execute(self._scheduler.cancelled([sequence]))

    def watch(self, socket: zmq.Socket[bytes], on_readable: Callable[[], None]) -> None:
        """Wait for another socket as well: ``on_readable`` is called while it has messages, which it must receive."""
        self._on_watched = on_readable
        self._sockets.watch(socket)

    def build(self, make: Callable[[], Payload]) -> Future[Payload]:
        """As `coordinator.workers.task.Workers.build`."""
        return self._payloads.submit(make)

    def _drop(self, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            self._groups.close(sequence)
        self._execute(self._scheduler.cancelled(sequences))

    # --- events in ------------------------------------------------------------------------------------------------

    def turn(self, seconds: float) -> None:
        """One turn of the event loop: wait for messages and events, and handle them. `PoolError` or `Stopped`."""
        assert not self._is_in_turn, "a reply handler must not wait for other replies"
        if self.stopped():
            raise Stopped
        if self._failure is not None:
            raise self._failure
        self._is_in_turn = True
        try:
            self._handle(seconds)
        except Exception as error:
            self._failure = error  # a later turn would wait for replies that never come
            raise
        finally:
            self._is_in_turn = False

    def _handle(self, seconds: float) -> None:
        polled = self._sockets.wait(seconds)
        if polled.rejected_key is not None:
            self._handler.refuse(None, f"from {polled.rejected_key}: not an allowed key")
        if polled.is_watched_ready:
            self._on_watched()
        self._send_built()
        self._files.send_due()
        emptied = [self._handler.handle_messages(router_socket) for router_socket in polled.sockets]
        if self._sockets.listener is not None and (closed := self._sockets.listener.closed_connections()):
            self._event("connections_closed", None, closed)
        if self._sockets.is_to_probe():  # whose connection was lost: a stopped worker has not ended, but is unreachable
            for worker in self._registry.alive:
                if self._sockets.has_lost(worker.connection):
                    self._sender.end(worker, "its connection was lost")
                elif worker.greeted:
                    self._sender.send(worker, messages.Ping())
        self._handle_worker_events(polled.launcher_has_events, all(emptied))
        self._monitor.check(has_read_launcher=self._events_due_at == float("inf"))

    def _handle_worker_events(self, launcher_has_events: bool, is_silent: bool) -> None:
        """Handle starts and ends of workers, once the sockets are silent or `FLOOD_SECONDS` have passed.

        A reply that was sent just before its worker ended counts, so messages come first; but with unknown senders the
        sockets may never be silent.
        """
        if not launcher_has_events and not self._registry.lost:
            return
        self._events_due_at = min(self._events_due_at, time.monotonic() + FLOOD_SECONDS)
        if not is_silent and time.monotonic() < self._events_due_at:
            return
        self._events_due_at = float("inf")
        for worker, detail, has_ended, is_blameless in self._registry.events():
            if not has_ended:
                self._event("worker_started", worker, detail)
                continue
            self._sender.cached_payloads.remove_worker(worker.number)
            self._payloads.remove_worker(worker.number)
            with caused_by(worker.last_traceback):
                self._event("worker_died", worker, detail)
                self._execute(self._scheduler.died(worker.number, detail, is_blameless))
            self._registry.forget(worker)

    def _event(self, kind: str, worker: Worker | None, detail: str) -> None:
        level = logging.INFO if kind in QUIET else logging.WARNING
        _log.log(level, "%s: %s", kind, detail)
        self.on_event(HostEvent(kind, str(worker.number) if worker else "", detail, time.time()))

    # --- instructions out -----------------------------------------------------------------------------------------

    def _execute(self, instructions: Iterable[Instruction]) -> None:
        tasks: dict[int, list[int]] = {}
        for instruction in instructions:
            if isinstance(instruction, SendTask):
                tasks.setdefault(instruction.worker, []).append(instruction.sequence)
            else:
                self._do(instruction, self._registry, self._sender)
        for number, sequences in tasks.items():
            self._send_tasks(number, sequences)

    def _do(self, instruction: Instruction, registry: WorkerRegistry, sender: MessageSender) -> None:
        match instruction:
            case StartWorker(number):
                registry.start(number, self._scheduler.slot(number))
            case CancelTask(number, sequence):
                worker = registry[number]
                sender.send(worker, messages.Cancel(), serialization.Envelope(worker.identity, sequence))
            case Requeue(number, sequence, reason):
                self._event("task_repeated", registry[number], f"{self._groups.open[sequence].task.name}: {reason}")
            case InvalidatePartial(number, sequences, reason):
                self._groups.invalidate_partial_sums(sequences)
                visits = f"{len(sequences)} visits whose updates it had added up: {reason}"
                self._event("task_repeated", registry[number], visits)
            case RequestPartial(number, sequence):
                sender.send(registry[number], messages.FetchPartial(self._groups.open[sequence].task.round))
            case RetireWorker(number, reason):
                self._event("worker_retired", registry[number], reason)
                registry[number].retired = True
                sender.end(registry[number], "it had too little memory, and others remain")
            case ReplaceWorker(number, reason):
                sender.end(registry[number], reason)
            case DropReply(number, sequence):
                self._event("late_reply", registry[number], f"the reply to task {sequence} does not count")
            case Abort(number, reason, sequence):
                self._give_up(registry[number], reason, sequence)
            case _:
                raise AssertionError(instruction)

    def _send_tasks(self, number: int, sequences: Sequence[int]) -> None:
        """Send tasks in their order; of those that have no payload yet, have it built, and send them then."""
        opened = {sequence: self._groups.open[sequence] for sequence in sequences}
        for sequence, (task, _, cached_payload) in opened.items():
            if cached_payload is None:
                assert task.build is not None, task.name
                self._payloads.request(sequence, number, task.build)
        ready = {sequence: each for sequence, each in opened.items() if each.cached_payload is not None}
        self._sender.send_tasks(self._registry[number], ready)

    def _send_built(self) -> None:
        """Send the tasks whose payloads have been built. Raises as `PoolTask.build` does."""
        for sequence, number, payload in self._payloads.take_built():
            opened = self._groups.open.get(sequence)
            if opened is not None:  # else it was cancelled
                cached_payload = self._sender.cached_payloads.take(payload)
                opened = self._groups.replace(sequence, opened.task.with_payload(payload), cached_payload)
                if number is not None:
                    self._sender.send_tasks(self._registry[number], {sequence: opened})

    def _give_up(self, worker: Worker, reason: str, sequence: int) -> None:
        """PoolError, unless the task's group goes on without it."""
        opened = self._groups.open.get(sequence)
        detail = f"{reason}{quote(worker.tail())}"
        if opened is not None and opened.task.on_failure is not None:
            self._event("task_given_up", worker, detail)
            opened.task.on_failure(self._groups.withdraw(sequence).task, reason)
            return
        if opened is None or not opened.task.may_fail:
            raise PoolError(detail)
        self._event("task_given_up", worker, detail)
        task, group, _ = self._groups.close(sequence)
        assert isinstance(task.message, messages.Train), task.name
        group.deliver(sequence, task, messages.Update(task.message.client, task.message.round, {}, {}))
