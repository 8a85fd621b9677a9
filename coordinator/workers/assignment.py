"""The open tasks of the task scheduler: those that wait, those that workers have, and those in partial sums.

A task is open until it is over or cancelled. An open task waits, or is assigned to a worker, or its update is in a
worker's partial sum. Tasks wait in the order of their submission; those that are put back come first. Never an event,
never a clock.

A worker runs the first of the tasks that it is assigned; the others wait in its prefetch queue, so that short tasks do
not cost a round trip each. An idle worker gets a task whenever one waits; further ones are prefetched up to
`PREFETCH_SECONDS` of foreseen work, and fewer of them as the queue empties (guided self-scheduling: Polychronopoulos
and Kuck, IEEE Transactions on Computers C-36(12), 1987), so that no task waits for one worker while another is idle.

A task may *prefer* the worker that has its client's state. Another one takes it only rather than be idle. A task that
has failed in the place of a worker is assigned to it only if it has failed in all places. One that is *suspect* is
never assigned beside others.

A worker has a *capacity*: one task at a time, or as many as there are workers behind a node agent, which is one remote
worker here. Below its capacity it is idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from coordinator.workers.instructions import SendTask
from coordinator.workers.scheduled_workers import Paces, ScheduledWorkers

PREFETCH_SECONDS = 0.2
"""Foreseen seconds of work up to which tasks are prefetched: many round trips, and short to do again."""
MAX_PREFETCH = 256
"""Most tasks assigned to one worker per task that it runs, however short they are."""
LOOK_AHEAD = 64
"""Tasks among which one is chosen that does not prefer another worker."""


@dataclass(slots=True)
class ScheduledTask:
    """What the scheduler knows of a task."""

    name: str
    """For errors."""
    flops: float
    """Foreseen work; 0 if it is unknown."""
    preferred: int | None = None
    """The worker that has what the task needs, and may be lost since."""
    failures: int = 0
    local_workers: set[int] = field(default_factory=set)
    """Local workers that it was sent to: the reply of one that has died since counts."""
    failed_at: set[int | str] = field(default_factory=set)
    """Places where it has failed."""
    is_suspect: bool = False
    """Whether a local worker has died that had it and others."""


class TaskQueue:
    """Open tasks by number, and those of them that wait."""

    def __init__(self) -> None:
        self.open: dict[int, ScheduledTask] = {}
        """All that are neither over nor cancelled; it is changed here alone, as `waiting` is."""
        self.waiting: deque[int] = deque()
        """The numbers of those that wait, in order."""

    def add(self, sequence: int, task: ScheduledTask) -> None:
        """Add a new task, which waits."""
        assert sequence not in self.open, sequence
        self.open[sequence] = task
        self.waiting.append(sequence)

    def take(self, sequence: int) -> ScheduledTask:
        """A task waits no longer: it is assigned."""
        self.waiting.remove(sequence)  # among the first
        return self.open[sequence]

    def put_back(self, sequences: Iterable[int]) -> None:
        """Assigned tasks, and those of a lost partial sum, wait again, before all others; cancelled ones do not."""
        self.waiting.extendleft(sequence for sequence in reversed([*sequences]) if sequence in self.open)

    def close(self, sequence: int) -> None:
        """A task that does not wait is over."""
        del self.open[sequence]

    def stop_waiting(self, sequence: int) -> bool:
        """A task was answered though it was requeued; whether it waited."""
        if sequence not in self.waiting:
            return False
        self.waiting.remove(sequence)
        return True

    def cancel(self, sequences: Iterable[int]) -> set[int]:
        """Cancel tasks; returns those that were open."""
        over = {sequence for sequence in sequences if self.open.pop(sequence, None) is not None}
        self.waiting = deque(sequence for sequence in self.waiting if sequence not in over)
        return over


@dataclass(eq=False)
class TaskAssignment:
    """The tasks that workers have."""

    queue: TaskQueue
    workers: ScheduledWorkers
    paces: Paces
    assigned: dict[int, dict[int, None]] = field(default_factory=dict, init=False)
    """Ready worker -> the tasks that it runs and those that it has prefetched, in order."""

    def first(self, worker: int) -> int | None:
        """The first task that a worker runs, perhaps a cancelled one; None if it is idle."""
        return next(iter(self.assigned.get(worker, ())), None)

    def has(self, worker: int, sequence: int) -> bool:
        """Whether a worker has a task."""
        return sequence in self.assigned.get(worker, ())

    def holders(self, sequence: int) -> list[int]:
        """The workers that have a task."""
        return [worker for worker, assigned in self.assigned.items() if sequence in assigned]

    def remove(self, worker: int, sequence: int) -> bool:
        """A worker has a task no longer; whether it had it."""
        assigned = self.assigned.get(worker, {})
        was_assigned = sequence in assigned
        assigned.pop(sequence, None)
        return was_assigned

    def assign(self, workers: Iterable[int], capacity: int) -> list[SendTask]:
        """Assign tasks to these workers, to idle ones first; ``capacity``: of all workers together."""
        idle = ready = [
            worker for worker in workers if worker in self.assigned and not self.workers.is_dismissed(worker)
        ]
        sent: list[SendTask] = []
        while idle:  # one task each at a time
            idle = [worker for worker in idle if len(self.assigned[worker]) < self.workers.capacity(worker)]
            given = [
                self._assign(worker, sequence) for worker in idle if (sequence := self._next_for(worker)) is not None
            ]
            sent += given
            idle = [instruction.worker for instruction in given]
        for worker in ready:
            sent += self._prefetch(worker, self.assigned[worker], capacity)
        return sent

    def _next_for(self, worker: int, is_idle: bool = True) -> int | None:
        """The first task that this worker may try.

        One that prefers another worker comes after all of the next that do not, and only if this one is idle.
        """
        allowed = (sequence for sequence in self.queue.waiting if self._may_try(worker, sequence, is_idle))
        first = None
        for sequence in islice(allowed, LOOK_AHEAD):
            preferred = self.queue.open[sequence].preferred
            if preferred is None or preferred == worker or preferred not in self.assigned:
                return sequence
            first = sequence if first is None else first
        return first if is_idle else None

    def _may_try(self, worker: int, sequence: int, is_idle: bool) -> bool:
        task = self.queue.open[sequence]
        if task.is_suspect and not is_idle:
            return False
        return not task.failed_at or self.workers.may_try(worker, task.failed_at, set(self.assigned))

    def _prefetch(self, worker: int, assigned: Mapping[int, None], all_capacity: int) -> list[SendTask]:
        """Prefetch tasks for a worker that is not idle."""
        sent: list[SendTask] = []
        capacity = self.workers.capacity(worker)
        first = self.queue.open.get(next(iter(assigned), 0))
        if capacity == 1 and first is not None and first.is_suspect:
            return []

        def may_prefetch() -> bool:
            """Whether another short task may be prefetched."""
            each = min(len(self.queue.waiting) // (2 * all_capacity), MAX_PREFETCH - 1)
            return capacity <= len(assigned) < capacity * (1 + each)

        if not may_prefetch():
            return []
        seconds = self._foreseen(assigned)
        while may_prefetch() and (sequence := self._next_for(worker, is_idle=False)) is not None:
            seconds += self.paces.foreseen(self.queue.open[sequence].flops)
            if seconds > PREFETCH_SECONDS * capacity:
                break
            sent.append(self._assign(worker, sequence))
        return sent

    def _foreseen(self, assigned: Iterable[int]) -> float:
        """Seconds that tasks take together; inf if that is unknown, or one of them was cancelled."""
        tasks = map(self.queue.open.get, assigned)
        return self.paces.foreseen_together([0.0 if task is None else task.flops for task in tasks])

    def _assign(self, worker: int, sequence: int) -> SendTask:
        task = self.queue.take(sequence)
        self.assigned[worker][sequence] = None
        if worker not in self.workers.capacities:
            task.local_workers.add(worker)
        return SendTask(worker, sequence)


class PartialSumTracker:
    """Whose partial sums have which tasks in them, and which sums are requested.

    A sum counts when it has come, and never if its worker died.
    """

    def __init__(self) -> None:
        self._tasks: dict[int, list[int]] = {}  # worker -> tasks in its partial sum
        self._requested: set[int] = set()  # workers whose partial sums were requested, and have not come
        self._deaths = 0

    def add(self, worker: int, sequence: int) -> None:
        """A worker has added the update of a task to its partial sum."""
        self._tasks.setdefault(worker, []).append(sequence)

    def tasks(self, worker: int) -> tuple[int, ...]:
        """The open tasks in the partial sum of a worker."""
        return tuple(self._tasks.get(worker, ()))

    def is_requested(self, worker: int) -> bool:
        """Whether the partial sum of a worker was requested, and has not come."""
        return worker in self._requested

    def request(self, sequences: Iterable[int]) -> dict[int, int]:
        """The partial sums with these tasks in them that were not requested, and are now: worker -> a task in it."""
        wanted = set(sequences)
        workers = {
            worker: in_partial[0]
            for worker, in_partial in self._tasks.items()
            if worker not in self._requested and not wanted.isdisjoint(in_partial)
        }
        self._requested.update(workers)
        return workers

    def come(self, worker: int) -> tuple[int, ...]:
        """A requested partial sum has come; returns the open tasks in it."""
        self._requested.remove(worker)
        self._deaths = 0
        return tuple(self._tasks.pop(worker, ()))

    def lose(self, worker: int, is_death: bool) -> tuple[tuple[int, ...], int]:
        """A worker has ended; returns (open tasks in its partial sum, see below).

        The number of workers in a row that have died, of which ``is_death`` says whether this is one, before they had
        sent a requested partial sum; 0 if this worker's was not requested.
        """
        lost = tuple(self._tasks.pop(worker, ()))
        if worker not in self._requested:
            return lost, 0
        self._requested.remove(worker)
        self._deaths += is_death
        return lost, self._deaths

    def cancel(self, over: Collection[int]) -> None:
        """These tasks are cancelled."""
        for worker, in_partial in self._tasks.items():
            self._tasks[worker] = [sequence for sequence in in_partial if sequence not in over]
