"""The workers of a pool, those that are there and those that have just ended. `coordinator.workers.launcher` runs the
processes, and `coordinator.workers.monitor` finds those that hang.

Remote workers run on other machines, and are identified by a key: nothing here starts or ends their processes. They may
come and go any number of times, so one that is lost is forgotten as soon as its tasks are requeued. A local worker's
last replies may still come when its process has ended, and they count: the last `MOST_ENDED` are remembered.
"""

from __future__ import annotations

import secrets
import select
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from coordinator.workers.launcher import END_SECONDS, WorkerLauncher, how_ended
from coordinator.workers.task import PoolError
from edge.protocol.messages import ClientState

SHUTDOWN_SECONDS = 0.5
"""Time for idle workers to end by themselves."""
MOST_ENDED = 1024
"""Local workers that have ended and are remembered."""
LOG_NBYTES = 4096


@dataclass(eq=False)
class Worker:
    """One worker process, local or remote; a replacement is another worker."""

    number: int
    slot: int
    """0, 1 ... among the workers of this machine; its replacement takes it over (`edge.runtime.gpu_share`)."""
    identity: str
    log: Path | None
    """None for a remote worker, whose log is on its own machine."""
    key: str = ""
    """The public key of a remote worker; empty for a local one."""
    workers: int = 1
    """Those of a node agent, whether or not some of them have retired."""
    connection: int = 0
    """Number of a remote worker's connection at the listener."""
    pid: int | None = None
    """None for a remote worker, and before the process has started."""
    greeted: bool = False
    dead: bool = False
    retired: bool = False
    """Whether its slot stays empty once it has ended."""
    refused: bool = False
    """Whether a message of it was refused: its later messages are, too."""
    telemetry_lines: int = 0
    """How many were recorded: one for each of its workers."""
    sent_at: dict[int, float] = field(default_factory=dict)
    """For a remote worker: task that it has not answered -> when it was sent, in monotonic seconds."""
    pending_client_state: tuple[int, ClientState] | None = None
    """Task and client state of the last message, if that was a `ClientState`: the next is the task's update."""
    last_error: str = ""
    """The error of its start, or the reason for which it was ended."""
    last_traceback: str = ""
    """Of the exception that ended its start."""

    def tail(self) -> bytes:
        """The end of its log."""
        if self.log is None:
            return b""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - LOG_NBYTES))
                return file.read()
        except FileNotFoundError:
            return b""


class WorkerEvent(NamedTuple):
    """The start or the end of a worker."""

    worker: Worker
    detail: str
    """Its process id, or the cause of its end."""
    has_ended: bool
    is_blameless: bool = False
    """Whether it ended because the process that had started it did."""


class WorkerRegistry:
    """Workers by number and by identity."""

    def __init__(self, launcher: WorkerLauncher, logs: Path, argv: Callable[[str], Sequence[str]]) -> None:
        """``logs``: folder for worker-N.log; ``argv``: identity -> arguments of a worker's process."""
        self._launcher, self._logs, self._argv = launcher, logs, argv
        self._by_number: dict[int, Worker] = {}
        self.by_identity: dict[str, Worker] = {}
        self.newest: Worker | None = None
        """The worker that was started or admitted last."""
        self._ended_workers: deque[Worker] = deque()  # local ones that are remembered, the first to have ended first
        self.lost: list[WorkerEvent] = []
        """Ends of remote workers since the last call of `events`."""
        self.retired_slots: tuple[int, ...] = ()
        """Slots of workers that have retired, and ended."""
        self.has_had_remote_workers = False
        """Whether one has ever been ready to work."""
        self.offences = Counter[str]()
        """key -> how often a remote worker of this key was dismissed for an invalid or missing message"""
        self.last_refusal = ""
        """Why the last remote worker was lost, for the error when no other comes."""
        self.is_loading = False
        """Whether the launcher has not started any worker yet: it loads modules first."""

    def __getitem__(self, number: int) -> Worker:
        return self._by_number[number]

    def authenticated(self, identity: str, key: str = "") -> Worker | None:
        """The worker of this identity and key; None for the same identity with another key."""
        worker = self.by_identity.get(identity)
        return worker if worker is not None and worker.key == key else None

    @property
    def alive(self) -> list[Worker]:
        """Workers whose end is not known."""
        return [worker for worker in self._by_number.values() if not worker.dead]

    def start(self, number: int, slot: int) -> None:
        """Start a worker in a slot, perhaps that of the worker that it replaces."""
        identity = f"worker-{number}-{secrets.token_hex(4)}"
        log = self._logs / f"worker-{number}.log"
        worker = Worker(number, slot, identity, log)
        self.is_loading |= self.newest is None
        self.add(worker)
        self._launcher.spawn(identity, list(self._argv(identity)), log)

    def add(self, worker: Worker) -> None:
        """Register a worker. The slot of a remote one is 0: slots are of one machine."""
        self._by_number[worker.number] = self.by_identity[worker.identity] = self.newest = worker

    def end(self, worker: Worker, why: str) -> None:
        """End a local worker's process, or declare a remote worker lost. The event that follows requeues its tasks."""
        if not worker.key:
            worker.last_error = why
            self._launcher.end([worker.identity])
        elif not worker.dead:
            worker.dead, worker.pending_client_state = True, None
            del self.by_identity[worker.identity]  # its further messages have no known sender
            self.last_refusal = f"; the last remote worker went: {why}"
            self.lost.append(WorkerEvent(worker, f"worker {worker.number}, a remote worker, is gone: {why}", True))

    def forget(self, worker: Worker) -> None:
        """The end of a worker has been handled: it has no tasks any more, and no instruction names it."""
        if worker.key:
            del self._by_number[worker.number]
            return
        self._ended_workers.append(worker)
        if len(self._ended_workers) > MOST_ENDED:
            oldest = self._ended_workers.popleft()
            del self._by_number[oldest.number], self.by_identity[oldest.identity]

    def events(self) -> list[WorkerEvent]:
        """Workers that have started or ended since the last call; PoolError if the launcher has ended.

        Workers of an earlier pool of the same launcher are ignored.
        """
        events, self.lost = self.lost, []
        for answer in self._launcher.answers():
            worker = self.authenticated(answer.get("spawned") or answer.get("exited") or answer["failed"])
            if worker is None:
                continue
            self.is_loading = False
            if "spawned" in answer:
                worker.pid = answer["pid"]
                events.append(WorkerEvent(worker, f"pid {answer['pid']}", False))
                continue
            worker.dead = True
            if worker.retired:
                self.retired_slots += (worker.slot,)
            if "failed" in answer:
                how = f"did not start: {answer['reason']}"
            elif "lost" in answer:
                self.is_loading = True  # the launcher is started again
                how = f"ended: {answer['lost']}"
            else:
                how = how_ended(answer["status"]) + (f": {worker.last_error}" if worker.last_error else "")
            events.append(WorkerEvent(worker, f"worker {worker.number} {how}", True, is_blameless="lost" in answer))
        return events

    def end_all(self, send_shutdown: Callable[[Worker], None]) -> None:
        """End all workers: idle ones end by themselves, the others' processes are ended."""
        with suppress(PoolError):  # of a launcher that has ended: then all workers have
            for worker in self.alive:
                if worker.greeted:
                    send_shutdown(worker)
            for remote_worker in [worker for worker in self.alive if worker.key]:
                self.end(remote_worker, "the run is over")
            self._await_ends(SHUTDOWN_SECONDS)
            self._launcher.end([worker.identity for worker in self.alive])
            self._await_ends(END_SECONDS)

    def _await_ends(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        answers = select.poll()  # which takes descriptors beyond 1,023, too
        answers.register(self._launcher.fileno(), select.POLLIN)
        while self.alive and time.monotonic() < deadline:
            answers.poll(10)
            self.events()
