"""Which of the tasks that wait a worker gets, and how many. Never an event, never a clock.

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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from coordinator.workers.instructions import SendTask
from coordinator.workers.paces import Paces
from coordinator.workers.scheduled_workers import ScheduledWorkers
from coordinator.workers.task_queue import TaskQueue

PREFETCH_SECONDS = 0.2
"""Foreseen seconds of work up to which tasks are prefetched: many round trips, and short to do again."""
MAX_PREFETCH = 256
"""Most tasks assigned to one worker per task that it runs, however short they are."""
LOOK_AHEAD = 64
"""Tasks among which one is chosen that does not prefer another worker."""


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
