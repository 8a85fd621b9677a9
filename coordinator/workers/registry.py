"""The workers of a pool, alive and dead, and a detector of stalls. `coordinator.workers.launcher` runs the processes.

Remote workers run on other machines, and are identified by a key: nothing here starts or ends their processes.

A local worker has stalled if its main thread has used no CPU time over a visit for `STUCK_SECONDS`. Heartbeats say
nothing, since libzmq's own thread answers them; nor does silence, since a training step may take minutes. But a thread
that uses no CPU time waits for something that will not come: a lock, a disk, a GPU.
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
"""Time for idle workers to end by themselves."""
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
    pid: int | None = None
    """None for a remote worker, and before the process has started."""
    greeted: bool = False
    dead: bool = False
    retired: bool = False
    """Whether its slot stays empty once it has ended."""
    refused: bool = False
    """Whether a message of it was refused: its later messages are, too."""
    has_sent_telemetry: bool = False
    sent_at: dict[int, float] = field(default_factory=dict)
    """For a remote worker: task that it has not answered -> when it was sent, in monotonic seconds."""
    pending_client_state: tuple[int, ClientState] | None = None
    """Task and client state of the last message, if that was a `ClientState`: the next is the task's update."""
    last_error: str = ""
    """The error of its start, or the reason for which it was ended."""

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
        self._by_identity: dict[str, Worker] = {}
        self._lost: list[WorkerEvent] = []  # ends of remote workers since the last call of `events`
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
        worker = self.by_identity(identity)
        return worker if worker is not None and worker.key == key else None

    def by_identity(self, identity: str) -> Worker | None:
        """The worker of this identity, whatever its key."""
        return self._by_identity.get(identity)

    @property
    def alive(self) -> list[Worker]:
        """Workers whose end is not known."""
        return [worker for worker in self._by_number.values() if not worker.dead]

    @property
    def newest(self) -> Worker:
        """The worker that was started or admitted last."""
        return self._by_number[max(self._by_number)]

    @property
    def has_lost_remote_workers(self) -> bool:
        """Whether remote workers have been lost since the last call of `events`."""
        return bool(self._lost)

    def start(self, number: int, slot: int) -> None:
        """Start a worker in a slot, perhaps that of the worker that it replaces."""
        identity = f"worker-{number}-{secrets.token_hex(4)}"
        log = self._logs / f"worker-{number}.log"
        worker = Worker(number, slot, identity, log)
        if not self._by_number:
            self.is_loading = True
        self._by_number[number] = self._by_identity[identity] = worker
        self._launcher.spawn(identity, list(self._argv(identity)), log)

    def admit(self, number: int, identity: str, key: str) -> Worker:
        """Register a remote worker. Its slot is 0: slots are of one machine."""
        remote_worker = Worker(number, 0, identity, None, key)
        self._by_number[number] = self._by_identity[identity] = remote_worker
        return remote_worker

    def end(self, worker: Worker, why: str) -> None:
        """End a local worker's process, or declare a remote worker lost. The event that follows requeues its tasks."""
        if not worker.key:
            worker.last_error = why
            self._launcher.end([worker.identity])
        elif not worker.dead:
            worker.dead, worker.pending_client_state = True, None
            del self._by_identity[worker.identity]  # its further messages have no known sender
            self.last_refusal = f"; the last remote worker went: {why}"
            self._lost.append(WorkerEvent(worker, f"worker {worker.number}, a remote worker, is gone: {why}", True))

    def events(self) -> list[WorkerEvent]:
        """Workers that have started or ended since the last call; PoolError if the launcher has ended.

        Workers of an earlier pool of the same launcher are ignored.
        """
        events, self._lost = self._lost, []
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
            events.append(self._ended(worker, answer))
        return events

    def _ended(self, worker: Worker, answer: dict[str, Any]) -> WorkerEvent:
        if "failed" in answer:
            return WorkerEvent(worker, f"worker {worker.number} did not start: {answer['reason']}", True)
        if "lost" in answer:
            self.is_loading = True  # the launcher is started again
            return WorkerEvent(worker, f"worker {worker.number} ended: {answer['lost']}", True, is_blameless=True)
        error = f": {worker.last_error}" if worker.last_error else ""
        return WorkerEvent(worker, f"worker {worker.number} {how_ended(answer['status'])}{error}", True)

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
