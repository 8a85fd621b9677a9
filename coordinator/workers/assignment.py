"""What the task scheduler knows: open tasks, workers, their pace, and which worker gets which task next.

A task is open until it is over or cancelled. An open task waits, or is assigned to a worker, or its update is in a
worker's partial sum. Tasks wait in the order of their submission; those that are put back come first. Never an event,
never a clock.

A worker runs the first of the tasks that it is assigned; the others wait in its prefetch queue, so that short tasks do
not cost a round trip each. An idle worker gets a task whenever one waits; further ones are prefetched up to
`PREFETCH_SECONDS` of foreseen work, and fewer of them as the queue empties (guided self-scheduling: Polychronopoulos
and Kuck, IEEE Transactions on Computers C-36(12), 1987), so that no task waits for one worker while another is idle.

Tasks that belong *together* are given to one worker, since the first of them takes the work of all. A task may *prefer*
the worker that has its client's state. Another one takes it only rather than be idle. A task that has failed in the
place of a worker is assigned to it only if it has failed in all places. One that is *suspect* is never assigned beside
others.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from coordinator.workers.instructions import SendTask

PREFETCH_SECONDS = 0.2
"""Foreseen seconds of work up to which tasks are prefetched: many round trips, and short to do again."""
MAX_PREFETCH = 256
"""Most tasks assigned to one worker per task that it runs, however short they are."""
LOOK_AHEAD = 64
"""Tasks among which one is chosen that does not prefer another worker."""


@dataclass(slots=True)
class TaskPace:
    """Seconds per FLOP of answered tasks whose work was foreseen."""

    flops: float = 0.0
    seconds: float = 0.0

    def add(self, flops: float, seconds: float) -> None:
        """A task of known work took so long."""
        self.flops += flops
        self.seconds += seconds

    def foreseen(self, flops: float) -> float:
        """Seconds of so much work; inf if it is unknown, which 0 means, or the pace is."""
        return flops / self.flops * self.seconds if flops and self.flops else math.inf


@dataclass(slots=True)
class ScheduledTask:
    """What the scheduler knows of a task."""

    name: str
    """For errors."""
    flops: float
    """Foreseen work; 0 if it is unknown."""
    preferred: int | None = None
    """The worker that has what the task needs, and may be lost since."""
    together: bytes | None = None
    """What it shares with tasks that are given to one worker, as long as that lives and does not fail them"""
    failures: int = 0
    local_workers: set[int] = field(default_factory=set)
    """Local workers that it was sent to: the reply of one that has died since counts."""
    failed_at: set[int | str] = field(default_factory=set)
    """Places where it has failed."""
    is_suspect: bool = False
    """Whether a local worker has died that had it and others."""


@dataclass(slots=True, eq=False)
class ScheduledWorker:
    """A worker that has started or joined, and has not ended.

    Each has a new number, so that late messages of a dead worker can be told from those of its replacement.
    """

    number: int
    place: int | str
    """The slot of a local worker, perhaps a GPU, which its replacement takes over; the key of a remote one."""
    is_remote: bool = False
    capacity: int = 1
    """Tasks that it runs at a time: as many as there are workers behind a node agent, which is one remote worker here.
    Below its capacity it is idle."""
    is_ready: bool = False
    is_dismissed: bool = False
    """Whether it is to be replaced, and gets no more tasks."""
    tasks: dict[int, None] = field(default_factory=dict)
    """The tasks that it runs and those that it has prefetched, in order; some may be cancelled."""
    failed_over: set[int] = field(default_factory=set)
    """Tasks that it has failed since its last success."""
    summed: list[int] = field(default_factory=list)
    """Open tasks whose updates are in its partial sum."""
    is_sum_requested: bool = False
    """Whether its partial sum was requested, and has not come."""
    pace: TaskPace = field(default_factory=TaskPace)
    """Of a remote worker."""

    def release(self, sequence: int) -> bool:
        """It has a task no longer; whether it had it."""
        had = sequence in self.tasks
        self.tasks.pop(sequence, None)
        return had


class TaskAssignment:
    """The open tasks and the workers, both by number."""

    def __init__(self) -> None:
        self.open: dict[int, ScheduledTask] = {}
        """All tasks that are neither over nor cancelled."""
        self.waiting: deque[int] = deque()
        """The open tasks that wait, in order."""
        self.workers: dict[int, ScheduledWorker] = {}
        self.ready: dict[int, ScheduledWorker] = {}
        """Those that are ready, in the order in which they became so."""
        self.pace = TaskPace()
        """Of all workers."""
        self.holder: tuple[bytes, int] | None = None
        """`ScheduledTask.together` of the last such task, and the worker that it was given to"""

    def put_back(self, sequences: Iterable[int]) -> None:
        """Assigned tasks, and those of a lost partial sum, wait again, before all others; cancelled ones do not."""
        self.waiting.extendleft(sequence for sequence in reversed([*sequences]) if sequence in self.open)

    def has_failed_everywhere(self, task: ScheduledTask) -> bool:
        """Whether a task has failed in the places of all workers that are ready, or are soon."""
        return all(
            worker.place in task.failed_at
            for worker in self.workers.values()
            if worker.is_ready or not worker.is_remote  # a remote worker may never be ready
        )

    def assign(self, workers: Iterable[ScheduledWorker], capacity: int) -> list[SendTask]:
        """Assign tasks to these workers, to idle ones first; ``capacity``: of all workers together."""
        idle = ready = [worker for worker in workers if worker.is_ready and not worker.is_dismissed]
        sent: list[SendTask] = []
        while idle:  # one task each at a time
            given = []
            for worker in idle:
                if len(worker.tasks) < worker.capacity and (sequence := self._next_for(worker)) is not None:
                    sent.append(self._give(worker, sequence))
                    given.append(worker)
            idle = given
        for worker in ready:
            self._prefetch(worker, capacity, sent)
        return sent

    def _next_for(self, worker: ScheduledWorker, is_idle: bool = True) -> int | None:
        """The first task that this worker may try.

        One that prefers another worker comes after all of the next that do not, and only if this one is idle.
        """
        first, looked = None, 0
        for sequence in self.waiting:
            task = self.open[sequence]
            if task.is_suspect and not is_idle:
                continue
            if worker.place in task.failed_at and not self.has_failed_everywhere(task):
                continue
            if self._is_anothers(task, worker):
                continue
            if task.preferred is None or task.preferred == worker.number or task.preferred not in self.ready:
                return sequence
            first = sequence if first is None else first
            looked += 1
            if looked == LOOK_AHEAD:
                break
        return first if is_idle else None

    def _is_anothers(self, task: ScheduledTask, worker: ScheduledWorker) -> bool:
        """Whether another worker does the tasks that belong together with this one."""
        if task.together is None or self.holder is None or self.holder[0] != task.together:
            return False
        other = self.ready.get(self.holder[1], worker)
        return other is not worker and not other.is_dismissed and other.place not in task.failed_at

    def _prefetch(self, worker: ScheduledWorker, all_capacity: int, sent: list[SendTask]) -> None:
        """Prefetch tasks for a worker that is not idle."""
        assigned, capacity, seconds = worker.tasks, worker.capacity, None
        first = self.open.get(next(iter(assigned), 0))
        if len(assigned) < capacity or (capacity == 1 and first is not None and first.is_suspect):
            return
        while len(assigned) < capacity * (1 + min(len(self.waiting) // (2 * all_capacity), MAX_PREFETCH - 1)):
            if (sequence := self._next_for(worker, is_idle=False)) is None:
                return
            if seconds is None:
                tasks = map(self.open.get, assigned)
                flops = [0.0 if task is None else task.flops for task in tasks]  # unknown if one was cancelled
                seconds = self.pace.foreseen(sum(flops)) if all(flops) else math.inf
            seconds += self.pace.foreseen(self.open[sequence].flops)
            if seconds > PREFETCH_SECONDS * capacity:
                return
            sent.append(self._give(worker, sequence))

    def _give(self, worker: ScheduledWorker, sequence: int) -> SendTask:
        self.waiting.remove(sequence)  # among the first
        if (together := self.open[sequence].together) is not None:
            self.holder = together, worker.number
        worker.tasks[sequence] = None
        if not worker.is_remote:
            self.open[sequence].local_workers.add(worker.number)
        return SendTask(worker.number, sequence)
