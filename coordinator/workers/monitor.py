"""Finds workers that are stuck, late or missing. Never a socket, never a process: others end them.

A local worker has stalled if its main thread has used no CPU time over a visit for `STUCK_SECONDS`. Heartbeats say
nothing, since libzmq's own thread answers them; nor does silence, since a training step may take minutes. But a thread
that uses no CPU time waits for something that will not come: a lock, a disk, a GPU.

A remote worker is late if the term of one of its tasks is over (`coordinator.workers.scheduler`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import psutil

from coordinator.workers.file_sender import FileSender
from coordinator.workers.launcher import WorkerLauncher, quote
from coordinator.workers.registry import Worker, WorkerRegistry
from coordinator.workers.scheduler import GETTING_READY, GIVING_SUMS, TaskScheduler
from coordinator.workers.sockets import RemoteAccess
from coordinator.workers.task import PoolError
from coordinator.workers.task_group import TaskGroups
from edge.protocol import messages

FIRST_REMOTE_WORKER_SECONDS = 600.0
"""Wait of a pool without local workers for the first remote worker."""
NEXT_REMOTE_WORKER_SECONDS = 8.0
"""Wait for another once all are lost; with the four heartbeats of silence before that, less than half a minute."""
LOCAL_WORKER_SECONDS = 25.0
"""Wait for a local worker that has been started to greet, while no worker is at work: it may be stuck."""
CHECK_SECONDS = 0.25
"""Between two checks of all workers."""
STUCK_SECONDS = 120.0
"""Without any CPU time over the same task."""
STALL_CHECK_SECONDS = 5.0
"""Between two checks of CPU times."""


@dataclass(eq=False)
class WorkerMonitor:
    """Checks the workers of one pool."""

    workers: int
    """Local workers that the pool was opened with."""
    launcher: WorkerLauncher
    registry: WorkerRegistry
    scheduler: TaskScheduler
    groups: TaskGroups
    files: FileSender
    remote_access: RemoteAccess | None
    dismiss: Callable[[Worker, str], None]
    """Ends a remote worker that is late: (worker, reason)."""
    _check_at: float = field(default=0.0, init=False)
    _no_worker_since: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._stalls = StallDetector()
        self._terms = TermClock()

    def check(self, has_read_launcher: bool) -> None:
        """End workers that are stuck or late, if it is time for a check.

        ``has_read_launcher``: whether all answers of the launcher were handled. PoolError if there has been no worker
        for too long, or if the launcher is stuck.
        """
        now = time.monotonic()
        if now < self._check_at:
            return
        self._check_at = now + CHECK_SECONDS
        if has_read_launcher:  # else its answer may only not have been read yet
            self.launcher.check()
        if self._stalls.is_due(now):
            self._end_stuck(now)
        self._end_late(now)
        self._check_presence(now)

    def _check_presence(self, now: float) -> None:
        """PoolError if no worker has been there for too long."""
        if self.registry.is_loading or any(worker.greeted for worker in self.registry.alive):
            self._no_worker_since = None
            return
        if self._no_worker_since is None:
            self._no_worker_since = now
        if self.workers:
            assert self.registry.newest is not None
            limit, where = LOCAL_WORKER_SECONDS, quote(self.registry.newest.tail())
        else:
            assert self.remote_access is not None
            seconds = self.remote_access.next_worker_seconds or NEXT_REMOTE_WORKER_SECONDS
            limit = seconds if self.registry.has_had_remote_workers else FIRST_REMOTE_WORKER_SECONDS
            where = f", and none has joined at {self.remote_access.endpoint}{self.registry.last_refusal}"
        if now - self._no_worker_since > limit:
            raise PoolError(f"no worker has been there for {limit:g} s{where}")

    def _end_stuck(self, now: float) -> None:
        """End local workers that are stuck in a visit. A description may wait for a lock on the cache."""
        local_workers = [(worker, worker.pid) for worker in self.registry.alive if worker.pid is not None]
        self._stalls.forget_others({pid for _, pid in local_workers})
        for worker, pid in local_workers:
            sequence = self.scheduler.running_task(worker.number)
            opened = None if sequence is None else self.groups.open.get(sequence)
            if sequence is None or opened is None:
                continue
            is_visit = not isinstance(opened.task.message, messages.Describe) and opened.cached_payload is not None
            if is_visit and self._stalls.is_stuck(pid, sequence, now):
                self.registry.end(worker, f"it had done nothing for {STUCK_SECONDS:g} s")

    def _end_late(self, now: float) -> None:
        """End remote workers whose terms are over.

        While files are sent to any worker, others of its machine may wait for them: none is late in getting ready.
        """
        remote_workers = [worker for worker in self.registry.alive if worker.key]
        self._terms.begin_check(now, [worker.number for worker in remote_workers])
        for worker in remote_workers:
            late = self._terms.late(worker.number, self.scheduler.terms(worker.number), now, self.files.last_sent_at)
            if late is not None:
                sequence, seconds = late
                self.scheduler.avoid_place(worker.number, sequence)
                opened = self.groups.open.get(sequence)
                if sequence in (GETTING_READY, GIVING_SUMS):
                    overdue = "its sums" if sequence == GIVING_SUMS else "word that it is ready"
                elif opened is None:
                    overdue = f"the reply to a cancelled task, {sequence},"
                else:
                    overdue = f"the reply to {opened.task.name}"
                self.dismiss(worker, f"{overdue} did not come within {seconds:.0f} s")


class TermClock:
    """Since when the tasks of remote workers have terms (`TaskScheduler.terms`), and which of the terms are over."""

    def __init__(self) -> None:
        self._since: dict[int, dict[int, float]] = {}  # remote worker -> task with a term -> since when
        self._checked_at = float("-inf")

    def begin_check(self, now: float, remote_workers: Collection[int]) -> None:
        """Forget others than these. All terms begin anew if this process itself was stopped."""
        if now - self._checked_at > 40 * CHECK_SECONDS:
            self._since.clear()
        self._checked_at = now
        self._since = {worker: self._since.get(worker, {}) for worker in remote_workers}

    def late(
        self, worker: int, terms: dict[int, float], now: float, file_sent_at: float = float("-inf")
    ) -> tuple[int, float] | None:
        """(task, term in seconds) of the first of a remote worker's terms that is over, or None.

        The terms of tasks that were not among ``terms`` at the last check begin now; that of `GETTING_READY` begins
        anew with each part of a file that is sent.
        """
        since = self._since[worker] = {task: self._since[worker].get(task, now) for task in terms}
        for task, seconds in terms.items():
            if now - max(since[task], file_sent_at if task == GETTING_READY else since[task]) > seconds:
                return task, seconds
        return None


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

    def forget_others(self, pids: Collection[int]) -> None:
        """Processes of other ids have ended."""
        self._last = {pid: last for pid, last in self._last.items() if pid in pids}

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
