"""Which worker has which task: a state machine, events in and instructions out. Never a socket, a process or a clock.

`TaskScheduler` follows tasks and workers. Tasks are assigned in the order of their submission; tasks of a worker that
dies or fails are requeued at the front. Each worker that is started has a new number, so that late messages of a dead
worker can be told from those of its replacement; its *place* (its slot, perhaps a GPU) is the same. A task is retried
in a place where it has failed only if it has failed in all places. A worker that fails three different tasks in a row
is replaced.

A worker runs the first of the tasks that it is assigned; the others wait in its prefetch queue, so that short tasks do
not cost a round trip each. An idle worker gets a task whenever one waits; further ones are prefetched up to
`PREFETCH_SECONDS` of foreseen work, and fewer of them as the queue empties (guided self-scheduling: Polychronopoulos
and Kuck, IEEE Transactions on Computers C-36(12), 1987), so that no task waits for one worker while another is idle.

Replies may wait in a worker for others (`edge.runtime.reply_batch`). So of several tasks that a dead worker had, nobody
knows which it ran: none has failed, but each of them is then the only one of its worker, until it is answered.

A task may *prefer* the worker that has its client's state. Another one takes it only rather than be idle.

A worker has a *capacity*: one task at a time, or as many as there are workers behind a node agent, which is one remote
worker here. Below its capacity it is idle.

An update may stay in the *partial sum* of the worker that made it, and counts when that sum has come. A worker that
dies loses its partial sum: the tasks in it are requeued without a failure. The partial sum of a dead worker never
counts, so that nothing counts twice.

Workers of one GPU share its memory. A worker that lacks memory for a task *retires*: it is ended and not replaced, and
its task is requeued without a failure. Until it has ended no task is assigned; tasks that are assigned afterwards have
more memory. Only the last worker's task counts failures.

*Remote workers* come and go: nobody starts them, and nobody replaces them. When one is lost its link may be the cause,
so that its task counts no failure. Each task that a remote worker runs has a *term* (`coordinator.workers.paces`). Once
a worker is lost nothing here refers to it, but for the numbers of local ones in the tasks that they had: their last
replies may still come.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from coordinator.workers.instructions import (
    Abort,
    CancelTask,
    DeliverPartial,
    DeliverReply,
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
from coordinator.workers.paces import READY_SECONDS, Paces
from coordinator.workers.partial_sum_tracker import PartialSumTracker
from coordinator.workers.task_queue import ScheduledTask, TaskQueue

TRIES = 3
"""Workers that may die or fail over one task, and workers in a row that may die before they are ready, or before they
have sent a requested partial sum."""
PREFETCH_SECONDS = 0.1
"""Foreseen seconds of work up to which tasks are prefetched: many round trips, and short to do again."""
MAX_PREFETCH = 256
"""Most tasks assigned to one worker per task that it runs, however short they are."""
LOOK_AHEAD = 64
"""Tasks among which one is chosen that does not prefer another worker."""
GETTING_READY, GIVING_SUMS = 0, -1
"""In place of a task's number, which is positive: the start of a remote worker, and sending its partial sum."""


class TaskScheduler:
    """Tasks and the workers that they are assigned to. Every event returns instructions, to be executed in order."""

    def __init__(self, workers: int) -> None:
        self._queue = TaskQueue()
        self._paces = Paces()
        self._sums = PartialSumTracker()
        self._starting: set[int] = set()
        self._assigned: dict[int, dict[int, None]] = {}  # ready worker -> running tasks, prefetched ones, in order
        self._retiring: int | None = None  # a worker that retires, and has not ended yet
        self._before_retirement: set[int] = set()  # tasks assigned before the last retirement had ended
        self._deaths_before_ready = 0
        self._started = 0
        self._workers = workers
        self._capacities: dict[int, int] = {}  # remote worker -> tasks that it runs at a time
        self._places: dict[int, int | str] = {}  # worker -> slot of a local worker, or key of a remote one
        self._failed_over: dict[int, set[int]] = {}  # worker -> tasks that it failed since its last success
        self._dismissed: set[int] = set()  # workers to be replaced, which have not ended yet

    def begin(self) -> list[Instruction]:
        """The pool opens."""
        return [self._start(slot) for slot in range(self._workers)]

    def joined(self, key: str, capacity: int = 1) -> int:
        """A remote worker that runs ``capacity`` tasks at a time has joined; returns its number.

        It counts among the workers when it is ready.
        """
        worker = self._number(key)
        self._capacities[worker] = capacity
        return worker

    def shrank(self, worker: int, capacity: int) -> None:
        """A node agent runs fewer tasks at a time from now on: workers of its machine have retired."""
        gone = self._capacities[worker] - capacity
        assert capacity > 0 and gone > 0, (worker, capacity, gone)
        self._capacities[worker] = capacity
        if worker in self._assigned and worker != self._retiring:  # else it is not counted yet, or any more
            self._workers -= gone

    def submitted(
        self, tasks: Iterable[tuple[int, str, float]], preferred: Mapping[int, int] | None = None
    ) -> list[Instruction]:
        """New tasks: (sequence, name for errors, foreseen FLOPs or 0 if unknown). ``preferred``: task -> worker."""
        for sequence, name, flops in tasks:
            assert flops >= 0.0, flops
            self._queue.add(sequence, ScheduledTask(name, flops, (preferred or {}).get(sequence)))
        return self._assign_tasks(self._assigned)

    def ready(self, worker: int) -> list[Instruction]:
        """A worker that was starting is ready for its first task; no event for any other worker."""
        if worker in self._starting:
            self._starting.remove(worker)
            self._deaths_before_ready = 0
            self._assigned[worker] = {}
            self._workers += self._capacities.get(worker, 0)
        return self._assign_tasks([worker])

    def dropped(self, worker: int, sequence: int) -> list[Instruction]:
        """A worker has removed a cancelled task from its queue."""
        self._unassign(worker, sequence)
        return self._assign_tasks([worker])

    def answered_all(
        self, worker: int, replies: Iterable[tuple[int, float, bool]]
    ) -> tuple[list[DeliverReply | DropReply], list[Instruction]]:
        """A worker has answered tasks; returns (a verdict for each, what follows).

        ``replies``: (task, seconds that it took, whether the update is in the worker's partial sum) of each.
        """
        followed: list[Instruction] = []
        verdicts = [self._answered(worker, *reply, followed) for reply in replies]
        return verdicts, [*followed, *self._assign_tasks([worker])]

    def _answered(
        self, worker: int, sequence: int, seconds: float, in_partial: bool, followed: list[Instruction]
    ) -> DeliverReply | DropReply:
        was_assigned = self._unassign(worker, sequence)
        task = self._queue.get(sequence)
        counts = was_assigned or (task is not None and worker in task.local_workers and not in_partial)
        if task is None or not counts:
            return DropReply(worker, sequence)
        if in_partial:
            self._sums.add(worker, sequence)
        else:
            self._queue.close(sequence)
        if not was_assigned and not self._queue.stop_waiting(sequence):
            followed += [
                CancelTask(other, sequence) for other, assigned in self._assigned.items() if sequence in assigned
            ]
        self._failed_over.pop(worker, None)
        if task.flops > 0.0:
            self._paces.answered(task.flops, seconds, worker if worker in self._capacities else None)
        return DeliverReply(sequence)

    @property
    def workers(self) -> int:
        """Tasks that run at a time when all workers are ready; of remote ones, those that are."""
        return self._workers

    def capacity(self, worker: int) -> int:
        """Tasks that a worker runs at a time."""
        return self._capacities.get(worker, 1)

    def slot(self, worker: int) -> int:
        """The slot of a local worker, which its replacement takes over."""
        place = self._places[worker]
        assert isinstance(place, int), place
        return place

    def running_task(self, worker: int) -> int | None:
        """The first task that a worker runs, perhaps a cancelled one; None if it is idle."""
        return next(iter(self._assigned.get(worker, ())), None)

    def terms(self, worker: int) -> dict[int, float]:
        """Each task that a remote worker runs, `GETTING_READY` or `GIVING_SUMS` -> its term in seconds.

        A node agent runs as many of its first tasks as it has workers: a task that waits on its machine has no term.
        """
        if worker in self._starting:
            return {GETTING_READY: READY_SECONDS}
        running = islice(self._assigned.get(worker, ()), self.capacity(worker))
        terms = {sequence: self._term(worker, sequence) for sequence in running}
        if not terms and self._sums.is_requested(worker):
            return {GIVING_SUMS: self._sum_term(worker)}
        return terms

    def _term(self, worker: int, sequence: int) -> float:
        task = self._queue.get(sequence)
        return self._paces.term(worker, None if task is None else task.flops)

    def _sum_term(self, worker: int) -> float:
        """Seconds for a partial sum, of which a node agent may do any part again, if it has lost workers of its own."""
        flops = sum(self._queue[sequence].flops for sequence in self._sums.tasks(worker))
        return self._paces.term(worker, flops or None, self.capacity(worker))

    def avoid_place(self, worker: int, sequence: int) -> None:
        """Let workers in other places try this task first."""
        task = self._queue.get(sequence)
        if task is not None:
            task.failed_at.add(self._places[worker])

    def has_failed_everywhere(self, sequence: int) -> bool:
        """Whether a task has failed in every place."""
        return self._has_failed_everywhere(self._queue[sequence])

    def is_assigned(self, worker: int, sequence: int) -> bool:
        """Whether a task, perhaps a cancelled one, is assigned to a worker that has not answered or dropped it."""
        return sequence in self._assigned.get(worker, ())

    def requested_partial_sum(self, worker: int) -> tuple[int, ...] | None:
        """The open tasks in the requested partial sum of a worker; None if it was not requested."""
        return self._sums.tasks(worker) if self._sums.is_requested(worker) else None

    def doubted(self, worker: int, sequence: int, reason: str) -> list[Instruction]:
        """A worker's reply to a task is unusable: another worker tries, and no failure is counted yet."""
        if not self._unassign(worker, sequence):
            return [DropReply(worker, sequence)]
        self.avoid_place(worker, sequence)
        return [*self._requeue(worker, sequence, reason), *self._assign_tasks(self._assigned)]

    def failed(self, worker: int, sequence: int, reason: str) -> list[Instruction]:
        """A worker has failed a task. It lives on unless it fails every task, as on a GPU that is lost."""
        if not self._unassign(worker, sequence):
            return [DropReply(worker, sequence)]
        if not self._queue.is_open(sequence):  # cancelled: what it needs may be gone, which says nothing of the worker
            return self._assign_tasks(self._assigned)
        self.avoid_place(worker, sequence)
        instructions = self._count_failure(worker, sequence, reason)
        failed_over = self._failed_over.setdefault(worker, set())
        failed_over.add(sequence)
        if len(failed_over) >= TRIES and worker not in self._dismissed:
            self._dismissed.add(worker)
            instructions.append(ReplaceWorker(worker, f"it failed over {TRIES} tasks in a row; the last: {reason}"))
        return [*instructions, *self._assign_tasks(self._assigned)]

    def lacked_memory(self, worker: int, sequence: int, reason: str) -> list[Instruction]:
        """A worker lacked memory for a task: it retires, unless it is the last or another has just retired.

        All workers may run out of memory at once. So one retires at a time, and a failure of a task that was assigned
        before that worker had ended says nothing about the memory that is free now.
        """
        if not self._unassign(worker, sequence):
            return [DropReply(worker, sequence)]
        is_news = self._retiring is None and sequence not in self._before_retirement
        self._before_retirement.discard(sequence)
        if is_news and self._workers == self.capacity(worker):
            return [*self._count_failure(worker, sequence, reason), *self._assign_tasks(self._assigned)]
        instructions = self._requeue(worker, sequence, reason)
        if is_news:
            self._retiring = worker
            self._workers -= self.capacity(worker)
            instructions.append(RetireWorker(worker, reason))
        return [*instructions, *self._assign_tasks(self._assigned)]

    def died(self, worker: int, reason: str, is_blameless: bool = False) -> list[Instruction]:
        """A worker's process has ended: a failure of its task, if it had one alone.

        Of a remote worker only the connection is known to be lost, which is no failure of a task. ``is_blameless``: a
        local worker was ended from outside, which is no failure of a task or of its start.
        """
        if worker in self._capacities:
            return self._remote_worker_left(worker, reason)
        if worker in self._starting:
            self._starting.remove(worker)
            self._deaths_before_ready += not is_blameless
            if self._deaths_before_ready >= TRIES:
                return [Abort(worker, f"{TRIES} workers in a row ended before they were ready; the last: {reason}")]
            return [self._start(self._places.pop(worker))]
        if worker not in self._assigned:
            return []
        assigned, is_retiring = self._assigned.pop(worker), worker == self._retiring
        was_dismissed = worker in self._dismissed
        place = self._forget(worker)
        lost: list[Instruction] = []
        if assigned and is_blameless:
            lost += [Requeue(worker, sequence, reason) for sequence in assigned if self._queue.is_open(sequence)]
            self._queue.put_back(assigned)
        elif assigned and not is_retiring and not was_dismissed:
            lost += self._failed_of(worker, assigned, reason)
        else:
            self._queue.put_back(assigned)
        lost += self._invalidate_partial(worker, reason, is_blameless)
        if is_retiring:
            self._end_retirement()
        else:
            lost.append(self._start(place))
        return [*lost, *self._assign_tasks(self._assigned)]

    def _failed_of(self, worker: int, assigned: Collection[int], reason: str) -> list[Instruction]:
        """One of a dead worker's tasks has failed: the only one, or nobody knows which."""
        first, *others = assigned
        if not others:
            return self._count_failure(worker, first, reason)
        self._queue.put_back(assigned)
        for task in filter(None, map(self._queue.get, assigned)):
            task.is_suspect = True
        return [Requeue(worker, first, reason)] if self._queue.is_open(first) else []

    def _forget(self, worker: int) -> int | str:
        """Remove a worker that has ended; returns its place."""
        self._dismissed.discard(worker)
        self._failed_over.pop(worker, None)
        self._paces.forget(worker)
        return self._places.pop(worker)

    def _end_retirement(self) -> None:
        self._retiring = None
        self._before_retirement = {sequence for others in self._assigned.values() for sequence in others}

    def _remote_worker_left(self, worker: int, reason: str) -> list[Instruction]:
        """A remote worker was lost: its tasks, and those in its partial sum, are requeued at the front."""
        capacity = self._capacities.pop(worker)
        self._starting.discard(worker)
        self._forget(worker)
        if worker == self._retiring:  # which is not counted any more
            self._end_retirement()
        else:
            self._workers -= capacity if worker in self._assigned else 0
        assigned = [sequence for sequence in self._assigned.pop(worker, ()) if self._queue.is_open(sequence)]
        in_partial, _ = self._sums.lose(worker, is_death=False)
        self._queue.put_back([*assigned, *in_partial])
        lost: list[Instruction] = [Requeue(worker, sequence, reason) for sequence in assigned]
        if in_partial:
            lost.append(InvalidatePartial(worker, in_partial, reason))
        return [*lost, *self._assign_tasks(self._assigned)]

    def collect(self, sequences: Iterable[int]) -> list[Instruction]:
        """Request the partial sums with these tasks in them, unless they have been requested."""
        return [RequestPartial(worker, sequence) for worker, sequence in self._sums.request(sequences).items()]

    def collected(self, worker: int) -> list[Instruction]:
        """A worker has sent its partial sum; that of a dead worker does not count."""
        if not self._sums.is_requested(worker):
            return []
        over = self._sums.come(worker)
        for sequence in over:
            self._queue.close(sequence)
        return [DeliverPartial(worker, over)]

    def cancelled(self, sequences: Iterable[int]) -> list[Instruction]:
        """These tasks are cancelled."""
        over = self._queue.cancel(sequences)
        self._sums.cancel(over)
        return [
            CancelTask(worker, sequence)
            for worker, assigned in self._assigned.items()
            for sequence in assigned
            if sequence in over
        ]

    def _start(self, place: int | str) -> StartWorker:
        return StartWorker(self._number(place))

    def _number(self, place: int | str) -> int:
        """Number a new worker, which is not ready yet."""
        worker = self._started
        self._places[worker] = place
        self._started += 1
        self._starting.add(worker)
        return worker

    def _assign_tasks(self, workers: Iterable[int]) -> list[Instruction]:
        """Assign tasks to these workers, to idle ones first."""
        if self._retiring is not None:
            return []
        idle = ready = [worker for worker in workers if worker in self._assigned and worker not in self._dismissed]
        sent: list[Instruction] = []
        while idle:  # one task each at a time
            idle = [worker for worker in idle if len(self._assigned[worker]) < self.capacity(worker)]
            given = [
                self._assign(worker, sequence) for worker in idle if (sequence := self._next_for(worker)) is not None
            ]
            sent += given
            idle = [instruction.worker for instruction in given]
        for worker in ready:
            sent += self._prefetch(worker, self._assigned[worker])
        return sent

    def _next_for(self, worker: int, is_idle: bool = True) -> int | None:
        """The first task that has not failed in this worker's place, or has failed in all places.

        One that prefers another worker comes after all of the next that do not, and only if this one is idle.
        """
        allowed = (sequence for sequence in self._queue if self._may_try(worker, self._queue[sequence], is_idle))
        first = None
        for sequence in islice(allowed, LOOK_AHEAD):
            preferred = self._queue[sequence].preferred
            if preferred is None or preferred == worker or preferred not in self._assigned:
                return sequence
            first = sequence if first is None else first
        return first if is_idle else None

    def _may_try(self, worker: int, task: ScheduledTask, is_idle: bool) -> bool:
        if task.is_suspect and not is_idle:
            return False
        if not task.failed_at or self._places[worker] not in task.failed_at:
            return True
        return self._has_failed_everywhere(task)

    def _has_failed_everywhere(self, task: ScheduledTask) -> bool:
        to_come = self._starting - self._capacities.keys()  # a remote worker may never be ready
        return all(self._places[other] in task.failed_at for other in self._assigned.keys() | to_come)

    def _prefetch(self, worker: int, assigned: Mapping[int, None]) -> list[Instruction]:
        """Prefetch tasks for a worker that is not idle."""
        sent: list[Instruction] = []
        capacity = self.capacity(worker)
        first = self._queue.get(next(iter(assigned), 0))
        if capacity == 1 and first is not None and first.is_suspect:
            return []
        seconds = sum(map(self._foreseen, assigned)) if self._may_prefetch(assigned, capacity) else math.inf
        while self._may_prefetch(assigned, capacity) and (sequence := self._next_for(worker, False)) is not None:
            seconds += self._foreseen(sequence)
            if seconds > PREFETCH_SECONDS * capacity:
                break
            sent.append(self._assign(worker, sequence))
        return sent

    def _may_prefetch(self, assigned: Mapping[int, None], capacity: int) -> bool:
        """Whether another short task may be prefetched."""
        each = min(len(self._queue) // (2 * self._workers), MAX_PREFETCH - 1)
        return capacity <= len(assigned) < capacity * (1 + each)

    def _foreseen(self, sequence: int) -> float:
        """Seconds that a task takes at the mean pace; inf if that is unknown, or the task cancelled."""
        task = self._queue.get(sequence)
        return math.inf if task is None else self._paces.foreseen(task.flops)

    def _assign(self, worker: int, sequence: int) -> SendTask:
        task = self._queue.take(sequence)
        self._assigned[worker][sequence] = None
        if worker not in self._capacities:
            task.local_workers.add(worker)
        return SendTask(worker, sequence)

    def _unassign(self, worker: int, sequence: int) -> bool:
        """Remove a task from a worker's queue; whether it was assigned."""
        assigned = self._assigned.get(worker, {})
        was_assigned = sequence in assigned
        assigned.pop(sequence, None)
        return was_assigned

    def _requeue(self, worker: int, sequence: int, reason: str) -> list[Instruction]:
        """Requeue a task at the front, unless it was cancelled."""
        if not self._queue.is_open(sequence):
            return []
        self._queue.put_back([sequence])
        return [Requeue(worker, sequence, reason)]

    def _invalidate_partial(self, worker: int, reason: str, is_blameless: bool) -> list[Instruction]:
        lost, deaths = self._sums.lose(worker, is_death=not is_blameless)
        self._queue.put_back(lost)
        instructions: list[Instruction] = [InvalidatePartial(worker, lost, reason)] if lost else []
        if deaths >= TRIES:
            ended = f"{TRIES} workers in a row ended before they had sent their sums; the last: {reason}"
            instructions.append(Abort(worker, ended))
        return instructions

    def _count_failure(self, worker: int, sequence: int, reason: str) -> list[Instruction]:
        task = self._queue.get(sequence)
        if task is None:  # cancelled, or answered by a worker that was thought dead
            return []
        task.failures += 1
        if task.failures >= TRIES:
            self._queue.close(sequence)
            return [Abort(worker, f"{task.name}: given up after {TRIES} workers; the last: {reason}", sequence)]
        return self._requeue(worker, sequence, reason)
