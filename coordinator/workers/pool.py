"""The workers of one run, and the loop that waits for them.

What comes in is heard by `coordinator.workers.messaging`, what to do next is decided by
`coordinator.workers.scheduler`, and obeyed here. This file never looks into vectors, keeps no reply, and never waits
longer than a tenth of a second without asking whether to stop.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from coordinator.records.schema import HostEvent
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
from coordinator.workers.messaging import MessageHandler, MessageSender
from coordinator.workers.registry import STUCK_SECONDS, StallDetector, Worker, WorkerEvent, WorkerRegistry
from coordinator.workers.scheduler import GETTING_READY, GIVING_SUMS, TaskScheduler
from coordinator.workers.sockets import RemoteAccess, Sockets
from coordinator.workers.task import PoolError, PoolTask, Reply, ReplyHandler, Stopped
from coordinator.workers.task_group import OpenTask, PoolTaskGroup, TaskGroups
from edge.protocol import codec, messages
from edge.protocol.config import Job, ModelProfile
from edge.protocol.payload import Payload
from edge.protocol.scratch import scratch

TURN_SECONDS = 0.1
"""The longest wait for messages before asking whether to stop."""
FLOOD_SECONDS = 0.5
"""How long messages that keep coming may hold back the news of workers that have ended."""
FIRST_REMOTE_WORKER_SECONDS = 600.0
"""How long a pool without workers of its own waits for the first remote worker."""
NEXT_REMOTE_WORKER_SECONDS = 8.0
"""And for another once all are gone: with the four heartbeats after which a silent one is, less than half a minute."""
LOCAL_WORKER_SECONDS = 25.0
"""And for one of its own workers to greet, where none is at work: it has been started, but may be stuck."""
REGISTRY_CHECK_SECONDS = 0.25
"""Between two looks at who is there."""
SPARE_FILES = 64
QUIET = ("worker_started", "worker_joined", "worker_memory", "listening")
"""Events that nobody need be warned of."""

_log = logging.getLogger("fedbr.pool")


@dataclass(eq=False)
class Pool:
    """Worker processes that serve one run, as a context: when it is left, however, no process and no folder remains."""

    job: Job
    workers: int
    launcher: WorkerLauncher
    logs: Path
    """Folder for worker-N.log."""
    on_event: Callable[[HostEvent], None]
    stopped: Callable[[], bool]
    """Asked at least every `TURN_SECONDS`; True raises `Stopped`."""
    site: str = "edge.training.trainer:LocalTrainer"
    """``module:Class`` of what the workers do."""
    heartbeat_seconds: float = 5.0
    """A connection that is silent for four of them is lost."""
    remote_access: RemoteAccess | None = None
    """Where workers of other machines may join, beside the ``workers`` that are started here."""
    most_nbytes: int = 1 << 30
    """Of the largest message of such a worker, all of its parts together."""

    def __post_init__(self) -> None:
        assert self.workers >= (self.remote_access is None), self.workers
        self._scheduler = TaskScheduler(self.workers)
        self._turning = False
        self._failure: Exception | None = None
        self._news_by = float("inf")
        self._look_at = 0.0
        self._stalls = StallDetector()
        self._terms: dict[int, tuple[int, float]] = {}  # remote worker -> what it is at, and since when
        self._terms_looked_at = float("-inf")
        self._nobody_since: float | None = None

    # --- for the caller -------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and self.workers > soft - SPARE_FILES:
            raise PoolError(f"{self.workers} workers need {self.workers + SPARE_FILES} open files, allowed are {soft}")
        with ExitStack() as stack:
            folder = stack.enter_context(scratch())
            self.launcher.adopt(folder)
            self._open(folder, stack)
            stack.callback(self._registry.end_all, lambda worker: self._sender.send(worker, messages.Shutdown()))
            stack.callback(self._orders.close_all)
            self._obey(self._scheduler.begin())
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
        self._registry = WorkerRegistry(self.launcher, self.logs, self._argv)
        self._sender = MessageSender(self.job.run_id, self._sockets, self._registry)
        self._orders = TaskGroups(self._sender.cached_payloads.release)
        job = replace(self.job, workers=self.workers)
        listener = self._sockets.listener
        taken = listener.taken if listener is not None else lambda connection, parts: None
        self._handler = MessageHandler(
            job, self._registry, self._scheduler, self._orders, self._sender, self._obey, self._event, taken
        )
        self.remote_access = self._sockets.remote_access
        if self.remote_access is not None:
            self._event("listening", None, self.remote_access.endpoint)

    def _argv(self, identity: str) -> list[str]:
        return [self._sockets.own.endpoint, identity, self.site, str(round(self.heartbeat_seconds * 1000))]

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
        """How many workers there are, on this machine and on others."""
        return self.workers + sum(bool(worker.key) for worker in self._registry.alive)

    def describe(self, data: bool = True) -> tuple[ModelProfile, Payload]:
        """What a run must know before round 0; ``data=False``: of the model alone. Raises `PoolError` or `Stopped`."""
        replies: list[Reply] = []
        self.submit([PoolTask(messages.Describe(data))], lambda _, reply: replies.append(reply)).wait()
        (reply,) = replies
        assert isinstance(reply, messages.Described)
        return reply.description, reply.payload

    def submit(self, tasks: Sequence[PoolTask], heard: ReplyHandler) -> PoolTaskGroup:
        """As `coordinator.workers.task.Workers.submit`. Raises `PoolError` or `Stopped`.

        The vectors of a reply are views of the received frames. ``heard`` may submit, but must not wait.
        """
        order = PoolTaskGroup(heard, lambda: self._turn(TURN_SECONDS), self._drop, self._ask)
        offers: list[tuple[int, str, float]] = []
        for task in tasks:
            sequence = self._orders.add(OpenTask(task, order, self._sender.cached_payloads.take(task.payload)))
            offers.append((sequence, task.name, task.flops))
        self._obey(self._scheduler.submitted(offers))
        if not self._turning:
            self._turn(0.0)
        return order

    def _drop(self, sequences: Sequence[int]) -> None:
        """Part of an order is not wanted any more."""
        for sequence in sequences:
            self._orders.close(sequence)
        self._obey(self._scheduler.cancelled(sequences))

    def _ask(self, sequences: Sequence[int]) -> None:
        """The sums with these updates in them are wanted."""
        self._obey(self._scheduler.collect(sequences))

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
            self._handle(seconds)
        except Exception as error:
            self._failure = error  # what was given up, or not done to the end, would be waited for in vain
            raise
        finally:
            self._turning = False

    def _handle(self, seconds: float) -> None:
        happened = self._sockets.wait(seconds)
        if happened.rejected_key is not None:
            self._handler.refuse(None, f"from {happened.rejected_key}: not an allowed key")
        came = [self._handler.hear_some(router_socket) for router_socket in happened.sockets]
        if self._sockets.listener is not None and (closed := self._sockets.listener.news()):
            self._event("connections_closed", None, closed)
        if self._sockets.is_to_probe():
            self._probe()
        self._hear_news(happened.is_told, all(came))
        self._look_after()

    def _hear_news(self, is_told: bool, is_silent: bool) -> None:
        """Heed what has become of workers, if there is news, of the launcher (``is_told``) or of remote workers given
        up.

        After the messages, since a reply that was sent just before its worker died counts; but not only when the
        sockets are silent, which with strangers about they may never be.
        """
        if not is_told and not self._registry.has_lost_remote_workers:
            return
        self._news_by = min(self._news_by, time.monotonic() + FLOOD_SECONDS)
        if is_silent or time.monotonic() >= self._news_by:
            self._news_by = float("inf")
            for news in self._registry.events():
                self._heed(news)

    def _look_after(self) -> None:
        """End workers that are stuck; PoolError when nobody is there for too long, or when the launcher is stuck."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + REGISTRY_CHECK_SECONDS
        if self._news_by == float("inf"):  # or its answer may just not have been read
            self.launcher.check()
        if self._stalls.is_due(now):
            self._end_stuck(now)
        self._end_lapsed(now)
        if self._registry.is_loading or any(worker.greeted for worker in self._registry.alive):
            self._nobody_since = None
            return
        if self._nobody_since is None:
            self._nobody_since = now
        if self.workers:
            patience, where = LOCAL_WORKER_SECONDS, quote(self._registry.newest.tail())
        else:
            assert self.remote_access is not None
            patience = (
                NEXT_REMOTE_WORKER_SECONDS if self._registry.has_had_remote_workers else FIRST_REMOTE_WORKER_SECONDS
            )
            where = f", and none has joined at {self.remote_access.endpoint}{self._registry.last_refusal}"
        if now - self._nobody_since > patience:
            raise PoolError(f"no worker has been there for {patience:g} s{where}")

    def _end_stuck(self, now: float) -> None:
        """End workers of ours that do nothing over a visit. A description may have to wait for another run's cache."""
        for worker in self._registry.alive:
            sequence = self._scheduler.running_task(worker.number)
            opened = None if sequence is None else self._orders.get(sequence)
            if worker.pid is None or sequence is None or opened is None:
                continue
            is_visit = not isinstance(opened.task.message, messages.Describe)
            if is_visit and self._stalls.is_stuck(worker.pid, sequence, now):
                self._registry.end(worker, f"it had done nothing for {STUCK_SECONDS:g} s")

    def _end_lapsed(self, now: float) -> None:
        """End remote workers whose terms are over. A pool that has not looked for long knows nothing of the time
        between."""
        if now - self._terms_looked_at > 40 * REGISTRY_CHECK_SECONDS:
            self._terms.clear()
        self._terms_looked_at = now
        remote_workers = [worker for worker in self._registry.alive if worker.key]
        self._terms = {
            worker.number: self._terms[worker.number] for worker in remote_workers if worker.number in self._terms
        }
        for worker in remote_workers:
            term = self._scheduler.term(worker.number)
            if term is None:
                self._terms.pop(worker.number, None)
                continue
            what, seconds = term
            begun_with, begun_at = self._terms.setdefault(worker.number, (what, now))
            if begun_with != what:
                self._terms[worker.number] = what, now
            elif now - begun_at > seconds:
                self._scheduler.lapsed(worker.number, what)
                self._handler.offend(worker, f"{self._waited_for(what)} did not come within {seconds:.0f} s")

    def _waited_for(self, what: int) -> str:
        if what in (GETTING_READY, GIVING_SUMS):
            return "its sums" if what == GIVING_SUMS else "word that it is ready"
        opened = self._orders.get(what)
        return f"the reply to a cancelled task, {what}," if opened is None else f"the reply to {opened.task.name}"

    def _heed(self, news: WorkerEvent) -> None:
        worker, detail, has_ended, is_blameless = news
        if not has_ended:
            self._event("worker_started", worker, detail)
            return
        self._sender.cached_payloads.remove_worker(worker.number)
        self._event("worker_died", worker, detail)
        self._obey(self._scheduler.died(worker.number, detail, is_blameless))

    def _probe(self) -> None:
        """Find whose connection was lost: a worker that is stopped or stuck has not ended, but cannot be reached."""
        for worker in self._registry.alive:
            if worker.greeted:
                self._sender.send(worker, messages.Ping())

    def _event(self, kind: str, worker: Worker | None, detail: str) -> None:
        level = logging.INFO if kind in QUIET else logging.WARNING
        _log.log(level, "%s: %s", kind, detail)
        self.on_event(HostEvent(kind, str(worker.number) if worker else "", detail, time.time()))

    # --- instructions out -----------------------------------------------------------------------------------------

    def _obey(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            self._do(instruction, self._registry, self._sender)

    def _do(self, instruction: Instruction, registry: WorkerRegistry, sender: MessageSender) -> None:
        match instruction:
            case SendTask(number, sequence):
                sender.send_task(registry[number], sequence, self._orders[sequence])
            case StartWorker(number):
                registry.start(number, self._scheduler.slot(number))
            case CancelTask(number, sequence):
                worker = registry[number]
                sender.send(worker, messages.Cancel(), codec.Envelope(worker.identity, sequence))
            case Requeue(number, sequence, reason):
                self._event("task_repeated", registry[number], f"{self._orders[sequence].task.name}: {reason}")
            case InvalidatePartial(number, sequences, reason):
                self._orders.invalidate_partial_sums(sequences)
                lost = f"{len(sequences)} visits whose updates it had added up: {reason}"
                self._event("task_repeated", registry[number], lost)
            case RequestPartial(number, sequence):
                sender.send(registry[number], self._orders[sequence].task.collect)
            case RetireWorker(number, reason):
                self._event("worker_retired", registry[number], reason)
                registry[number].retired = True
                sender.dismiss(registry[number], "it had too little memory, and others remain")
            case ReplaceWorker(number, reason):
                sender.dismiss(registry[number], reason)
            case DropReply(number, sequence):
                self._event("late_reply", registry[number], f"the reply to task {sequence} does not count")
            case Abort(number, reason, sequence):
                self._give_up(registry[number], reason, sequence)
            case _:
                raise AssertionError(instruction)

    def _give_up(self, worker: Worker, reason: str, sequence: int) -> None:
        """PoolError, unless its order goes on without this task."""
        asked = self._orders.get(sequence)
        why = f"{reason}{quote(worker.tail())}"
        if asked is None or not asked.task.may_fail:
            raise PoolError(why)
        self._event("task_given_up", worker, why)
        task, order, _ = self._orders.close(sequence)
        order.deliver(sequence, task, task.failed_update)
