"""The workers of one run, and the loop that waits for them.

What comes in is heard by `coordinator.workers.message_handler`, what to do next is decided by
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

from coordinator.records.store import HostEvent
from coordinator.workers.door import Gate
from coordinator.workers.instructions import (
    Cancel,
    Collect,
    Dismiss,
    GiveUp,
    Instruction,
    Late,
    Recall,
    Repeat,
    Retire,
    Send,
    Start,
)
from coordinator.workers.launcher import Nursery, quote
from coordinator.workers.message_handler import Hearing
from coordinator.workers.message_sender import Outbox
from coordinator.workers.registry import Crew, News, Worker
from coordinator.workers.scheduler import GETTING_READY, GIVING_SUMS, Leases
from coordinator.workers.sockets import Entrance
from coordinator.workers.stall_detector import STUCK_SECONDS, Pulse
from coordinator.workers.task import Heard, PoolError, PoolTask, Reply, Stopped
from coordinator.workers.task_group import OpenTask, Orders, PoolOrder
from edge.protocol import codec, messages
from edge.protocol.config import Description, Job
from edge.protocol.payload import Payload
from edge.protocol.scratch import scratch

TURN_SECONDS = 0.1
"""The longest wait for messages before asking whether to stop."""
FLOOD_SECONDS = 0.5
"""How long messages that keep coming may hold back the news of workers that have ended."""
FIRST_GUEST_SECONDS = 600.0
"""How long a pool without workers of its own waits for the first guest."""
NEXT_GUEST_SECONDS = 8.0
"""And for another once all are gone: with the four heartbeats after which a silent one is, less than half a minute."""
OWN_SECONDS = 25.0
"""And for one of its own workers to greet, where none is at work: it has been started, but may be stuck."""
LOOK_SECONDS = 0.25
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
    nursery: Nursery
    logs: Path
    """Folder for worker-N.log."""
    on_event: Callable[[HostEvent], None]
    stopped: Callable[[], bool]
    """Asked at least every `TURN_SECONDS`; True raises `Stopped`."""
    site: str = "edge.training.trainer:Site"
    """``module:Class`` of what the workers do."""
    heartbeat_seconds: float = 5.0
    """A connection that is silent for four of them is lost."""
    gate: Gate | None = None
    """Where workers of other machines may join, beside the ``workers`` that are started here."""
    most_nbytes: int = 1 << 30
    """Of the largest message of such a worker, all of its parts together."""

    def __post_init__(self) -> None:
        assert self.workers >= (self.gate is None), self.workers
        self._leases = Leases(self.workers)
        self._turning = False
        self._failure: Exception | None = None
        self._news_by = float("inf")
        self._look_at = 0.0
        self._pulse = Pulse()
        self._terms: dict[int, tuple[int, float]] = {}  # guest -> what it is at, and since when
        self._terms_looked_at = float("-inf")
        self._nobody_since: float | None = None

    # --- for the caller -------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and self.workers > soft - SPARE_FILES:
            raise PoolError(f"{self.workers} workers need {self.workers + SPARE_FILES} open files, allowed are {soft}")
        with ExitStack() as stack:
            folder = stack.enter_context(scratch())
            self.nursery.adopt(folder)
            self._open(folder, stack)
            stack.callback(self._crew.end_all, lambda worker: self._outbox.send(worker, messages.Bye()))
            stack.callback(self._orders.close_all)
            self._obey(self._leases.begin())
            self._exits = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()

    def _open(self, folder: Path, stack: ExitStack) -> None:
        self._entrance = Entrance(
            folder, self.gate, self.most_nbytes, self.heartbeat_seconds, self.nursery.fileno(), stack
        )
        self._crew = Crew(self.nursery, self.logs, self._argv)
        self._outbox = Outbox(self.job.run_id, self._entrance, self._crew)
        self._orders = Orders(self._outbox.parcels.release)
        job = replace(self.job, workers=self.workers)
        listener = self._entrance.listener
        taken = listener.taken if listener is not None else lambda connection, parts: None
        self._hearing = Hearing(
            job, self._crew, self._leases, self._orders, self._outbox, self._obey, self._event, taken
        )
        self.gate = self._entrance.gate
        if self.gate is not None:
            self._event("listening", None, self.gate.endpoint)

    def _argv(self, identity: str) -> list[str]:
        return [self._entrance.own.endpoint, identity, self.site, str(round(self.heartbeat_seconds * 1000))]

    @property
    def physical_bytes(self) -> tuple[int, int]:
        """Bytes (sent, received) on the sockets."""
        return self._outbox.nbytes, self._hearing.nbytes

    @property
    def refused(self) -> int:
        """Messages that did not follow the protocol, whoever sent them."""
        return self._hearing.refused

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
        """As `coordinator.workers.task.Workers.submit`. Raises `PoolError` or `Stopped`.

        The vectors of a reply are views of the received frames. ``heard`` may submit, but must not wait.
        """
        order = PoolOrder(heard, lambda: self._turn(TURN_SECONDS), self._drop, self._ask)
        offers: list[tuple[int, str, float]] = []
        for task in tasks:
            sequence = self._orders.add(OpenTask(task, order, self._outbox.parcels.take(task.payload)))
            offers.append((sequence, task.name, task.flops))
        self._obey(self._leases.submitted(offers))
        if not self._turning:
            self._turn(0.0)
        return order

    def _drop(self, sequences: Sequence[int]) -> None:
        """Part of an order is not wanted any more."""
        for sequence in sequences:
            self._orders.close(sequence)
        self._obey(self._leases.cancelled(sequences))

    def _ask(self, sequences: Sequence[int]) -> None:
        """The sums with these updates in them are wanted."""
        self._obey(self._leases.collect(sequences))

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
        happened = self._entrance.wait(seconds)
        if happened.stranger is not None:
            self._hearing.refuse(None, f"from {happened.stranger}: not an allowed key")
        came = [self._hearing.hear_some(door) for door in happened.doors]
        if self._entrance.listener is not None and (closed := self._entrance.listener.news()):
            self._event("connections_closed", None, closed)
        if self._entrance.is_to_probe():
            self._probe()
        self._hear_news(happened.is_told, all(came))
        self._look_after()

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

    def _look_after(self) -> None:
        """End workers that are stuck; PoolError when nobody is there for too long, or when the nursery is stuck."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        if self._news_by == float("inf"):  # or its answer may just not have been read
            self.nursery.check()
        if self._pulse.look(now):
            self._end_stuck(now)
        self._end_lapsed(now)
        if self._crew.is_loading or any(worker.greeted for worker in self._crew.alive):
            self._nobody_since = None
            return
        if self._nobody_since is None:
            self._nobody_since = now
        if self.workers:
            patience, where = OWN_SECONDS, quote(self._crew.newest.tail())
        else:
            assert self.gate is not None
            patience = NEXT_GUEST_SECONDS if self._crew.has_had_guests else FIRST_GUEST_SECONDS
            where = f", and none has joined at {self.gate.endpoint}{self._crew.last_refusal}"
        if now - self._nobody_since > patience:
            raise PoolError(f"no worker has been there for {patience:g} s{where}")

    def _end_stuck(self, now: float) -> None:
        """End workers of ours that do nothing over a visit. A description may have to wait for another run's cache."""
        for worker in self._crew.alive:
            sequence = self._leases.at_work_on(worker.number)
            opened = None if sequence is None else self._orders.get(sequence)
            if worker.pid is None or sequence is None or opened is None:
                continue
            is_visit = not isinstance(opened.task.message, messages.Describe)
            if is_visit and self._pulse.is_stuck(worker.pid, sequence, now):
                self._crew.end(worker, f"it had done nothing for {STUCK_SECONDS:g} s")

    def _end_lapsed(self, now: float) -> None:
        """End guests whose terms are over. A pool that has not looked for long knows nothing of the time between."""
        if now - self._terms_looked_at > 40 * LOOK_SECONDS:
            self._terms.clear()
        self._terms_looked_at = now
        guests = [worker for worker in self._crew.alive if worker.key]
        self._terms = {worker.number: self._terms[worker.number] for worker in guests if worker.number in self._terms}
        for worker in guests:
            term = self._leases.term(worker.number)
            if term is None:
                self._terms.pop(worker.number, None)
                continue
            what, seconds = term
            begun_with, begun_at = self._terms.setdefault(worker.number, (what, now))
            if begun_with != what:
                self._terms[worker.number] = what, now
            elif now - begun_at > seconds:
                self._leases.lapsed(worker.number, what)
                self._hearing.offend(worker, f"{self._waited_for(what)} did not come within {seconds:.0f} s")

    def _waited_for(self, what: int) -> str:
        if what in (GETTING_READY, GIVING_SUMS):
            return "its sums" if what == GIVING_SUMS else "word that it is ready"
        opened = self._orders.get(what)
        return f"the reply to a cancelled task, {what}," if opened is None else f"the reply to {opened.task.name}"

    def _heed(self, news: News) -> None:
        worker, detail, has_ended, is_blameless = news
        if not has_ended:
            self._event("worker_started", worker, detail)
            return
        self._outbox.parcels.gone(worker.number)
        self._event("worker_died", worker, detail)
        self._obey(self._leases.died(worker.number, detail, is_blameless))

    def _probe(self) -> None:
        """Find whose connection was lost: a worker that is stopped or stuck has not ended, but cannot be reached."""
        for worker in self._crew.alive:
            if worker.greeted:
                self._outbox.send(worker, messages.Ping())

    def _event(self, kind: str, worker: Worker | None, detail: str) -> None:
        level = logging.INFO if kind in QUIET else logging.WARNING
        _log.log(level, "%s: %s", kind, detail)
        self.on_event(HostEvent(kind, str(worker.number) if worker else "", detail, time.time()))

    # --- instructions out -----------------------------------------------------------------------------------------

    def _obey(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            self._do(instruction, self._crew, self._outbox)

    def _do(self, instruction: Instruction, crew: Crew, outbox: Outbox) -> None:
        match instruction:
            case Send(number, sequence):
                outbox.send_task(crew[number], sequence, self._orders[sequence])
            case Start(number):
                crew.start(number, self._leases.seat(number))
            case Cancel(number, sequence):
                worker = crew[number]
                outbox.send(worker, messages.Cancel(), codec.Envelope(worker.identity, sequence))
            case Repeat(number, sequence, reason):
                self._event("task_repeated", crew[number], f"{self._orders[sequence].task.name}: {reason}")
            case Recall(number, sequences, reason):
                self._orders.recall(sequences)
                lost = f"{len(sequences)} visits whose updates it had added up: {reason}"
                self._event("task_repeated", crew[number], lost)
            case Collect(number, sequence):
                outbox.send(crew[number], self._orders[sequence].task.collect)
            case Retire(number, reason):
                self._event("worker_retired", crew[number], reason)
                crew[number].retired = True
                outbox.dismiss(crew[number], "it had too little memory, and others remain")
            case Dismiss(number, reason):
                outbox.dismiss(crew[number], reason)
            case Late(number, sequence):
                self._event("late_reply", crew[number], f"the reply to task {sequence} does not count")
            case GiveUp(number, reason, sequence):
                self._give_up(crew[number], reason, sequence)
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
        order.hear(sequence, task, task.unanswered)
