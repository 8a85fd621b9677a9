"""The workers of a pool, living and dead, the launcher that starts and ends them, and a detector of stalls.

Remote workers run on other machines, and are known by their key: nothing here starts or ends their processes.

A local worker has stalled if its main thread has used no CPU time over a visit for `STUCK_SECONDS`: libzmq's own thread
answers heartbeats whatever the main thread does, and a step may take minutes, but a thread that uses no CPU time waits
for something that will not come: a lock, a disk, a GPU.
"""

from __future__ import annotations

import secrets
import select
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from coordinator.workers.launcher import END_SECONDS, WorkerLauncher, how_ended
from coordinator.workers.task import PoolError
from edge.protocol.messages import ClientState

SHUTDOWN_SECONDS = 0.5
"""How long idle workers may take to leave on their own."""
LOG_NBYTES = 4096


@dataclass(eq=False)
class Worker:
    """One worker process, ours or a remote worker; a replacement is another worker."""

    number: int
    slot: int
    """Its place among those that work at a time, 0, 1 ..; the one that replaces it takes it over
    (`edge.runtime.gpu_share`)."""
    identity: str
    log: Path | None
    """None of a remote worker, whose log is on its own machine."""
    key: str = ""
    """The public key of a remote worker; empty for a worker of ours."""
    pid: int | None = None
    """None of a remote worker, and before it has started."""
    greeted: bool = False
    dead: bool = False
    retired: bool = False
    """Whether its slot stays empty once it has ended."""
    refused: bool = False
    """Whether a message of it was refused: nothing that it sends counts any more."""
    noted: bool = False
    """Whether it has told what it measured of itself."""
    sent_at: dict[int, float] = field(default_factory=dict)
    """Of a remote worker: when it was sent each task that it has not answered; monotonic seconds."""
    pending_client_state: tuple[int, ClientState] | None = None
    """What a client keeps, which came last: for the update of this task, which comes next."""
    last_words: str = ""
    """The error that its start ended in, or why it was ended."""

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
    """What has become of a worker."""

    worker: Worker
    detail: str
    """Its process id, or how it ended."""
    has_ended: bool
    is_blameless: bool = False
    """Whether it ended with the process that had started it."""


class WorkerRegistry:
    """Workers by number and by identity."""

    def __init__(self, launcher: WorkerLauncher, logs: Path, argv: Callable[[str], Sequence[str]]) -> None:
        """``logs``: folder for worker-N.log; ``argv``: identity -> what a worker is started with."""
        self._launcher, self._logs, self._argv = launcher, logs, argv
        self._by_number: dict[int, Worker] = {}
        self._by_identity: dict[str, Worker] = {}
        self._gone: list[WorkerEvent] = []  # remote workers that have been given up since the last news
        self.left: tuple[int, ...] = ()
        """Seats of those that have retired, and ended."""
        self.has_had_remote_workers = False
        """Whether one has ever been ready to work."""
        self.offences = Counter[str]()
        """key -> how often a remote worker of this key was ended for what it sent, or did not"""
        self.last_refusal = ""
        """Why the remote worker that came last is gone, for who waits in vain for another."""
        self.is_loading = False
        """Whether the launcher has started none of the first workers yet: it may have much to load."""

    def __getitem__(self, number: int) -> Worker:
        return self._by_number[number]

    def authenticated(self, identity: str, key: str = "") -> Worker | None:
        """The worker of this identity and key: the same identity with another key is not that worker."""
        worker = self.by_identity(identity)
        return worker if worker is not None and worker.key == key else None

    def by_identity(self, identity: str) -> Worker | None:
        """The worker of this identity, whatever its key."""
        return self._by_identity.get(identity)

    @property
    def alive(self) -> list[Worker]:
        """All that have not ended, as far as is known."""
        return [worker for worker in self._by_number.values() if not worker.dead]

    @property
    def newest(self) -> Worker:
        """The one that came last."""
        return self._by_number[max(self._by_number)]

    @property
    def has_lost_remote_workers(self) -> bool:
        """Whether remote workers have been given up since the last `news`."""
        return bool(self._gone)

    def start(self, number: int, slot: int) -> None:
        """Have a worker started, on the slot of the one that it replaces."""
        identity = f"worker-{number}-{secrets.token_hex(4)}"
        log = self._logs / f"worker-{number}.log"
        worker = Worker(number, slot, identity, log)
        if not self._by_number:
            self.is_loading = True
        self._by_number[number] = self._by_identity[identity] = worker
        self._launcher.spawn(identity, list(self._argv(identity)), log)

    def admit(self, number: int, identity: str, key: str) -> Worker:
        """A remote worker has come. Its machine is its own, and so is its slot there."""
        remote_worker = Worker(number, 0, identity, None, key)
        self._by_number[number] = self._by_identity[identity] = remote_worker
        return remote_worker

    def end(self, worker: Worker, why: str) -> None:
        """Have a worker ended, or give a remote worker up; its death brings its tasks back."""
        if not worker.key:
            worker.last_words = why
            self._launcher.end([worker.identity])
        elif not worker.dead:
            worker.dead, worker.pending_client_state = True, None
            del self._by_identity[worker.identity]  # whatever it still sends comes from nobody
            self.last_refusal = f"; the last remote worker went: {why}"
            self._gone.append(WorkerEvent(worker, f"worker {worker.number}, a remote worker, is gone: {why}", True))

    def events(self) -> list[WorkerEvent]:
        """Who has started or ended since the last call; PoolError when the launcher has ended.

        Workers of an earlier pool are passed over.
        """
        news, self._gone = self._gone, []
        for answer in self._launcher.answers():
            worker = self.authenticated(answer.get("spawned") or answer.get("exited") or answer["failed"])
            if worker is None:
                continue
            self.is_loading = False
            if "spawned" in answer:
                worker.pid = answer["pid"]
                news.append(WorkerEvent(worker, f"pid {answer['pid']}", False))
                continue
            worker.dead = True
            if worker.retired:
                self.left += (worker.slot,)
            news.append(self._ended(worker, answer))
        return news

    def _ended(self, worker: Worker, answer: dict[str, Any]) -> WorkerEvent:
        if "failed" in answer:
            return WorkerEvent(worker, f"worker {worker.number} did not start: {answer['reason']}", True)
        if "lost" in answer:
            self.is_loading = True  # what starts workers is started again
            return WorkerEvent(worker, f"worker {worker.number} ended: {answer['lost']}", True, is_blameless=True)
        words = f": {worker.last_words}" if worker.last_words else ""
        return WorkerEvent(worker, f"worker {worker.number} {how_ended(answer['status'])}{words}", True)

    def end_all(self, say_bye: Callable[[Worker], None]) -> None:
        """The idle leave by themselves, the others are ended; of a launcher that is gone, all have ended."""
        with suppress(PoolError):
            for worker in self.alive:
                if worker.greeted:
                    say_bye(worker)
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


STUCK_SECONDS = 120.0
"""Without any CPU time over the same task."""
STALL_CHECK_SECONDS = 5.0
"""Between two checks."""


class StallDetector:
    """Tells which processes use no CPU time: their main threads' time at the last check, and since when it stands."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, float | None, float]] = {}  # pid -> (task, CPU seconds, since when)
        self._checked_at = float("-inf")

    def is_due(self, now: float) -> bool:
        """Whether it is time to ask `is_stuck`. After a long pause of this process nothing is known of the past."""
        if now - self._checked_at < STALL_CHECK_SECONDS:
            return False
        if now - self._checked_at > 2 * STALL_CHECK_SECONDS:
            self._last.clear()
        self._checked_at = now
        return True

    def is_stuck(self, pid: int, task: int, now: float) -> bool:
        """Whether this process has used no CPU time over this task for too long."""
        seconds = main_thread_seconds(pid)
        last_task, last_seconds, since = self._last.get(pid, (-1, None, now))
        if seconds is None or (task, seconds) != (last_task, last_seconds):
            self._last[pid] = task, seconds, now
            return False
        return now - since > STUCK_SECONDS


def main_thread_seconds(pid: int) -> float | None:
    """CPU time of a process's main thread; None if it has ended."""
    try:
        threads = psutil.Process(pid).threads()
    except psutil.Error:
        return None
    return next((thread.user_time + thread.system_time for thread in threads if thread.id == pid), None)
