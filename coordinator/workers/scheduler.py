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
so that its task counts no failure. The task that a remote worker runs has a *term*: many times its foreseen seconds, by
the pace of that worker, or of all workers. Nothing else bounds a process on another machine.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
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

TRIES = 3
"""Workers that may die or fail over one task, and workers in a row that may die before they are ready, or before they
have sent a requested partial sum."""
PREFETCH_SECONDS = 0.2
"""Foreseen seconds of work up to which tasks are prefetched: many round trips, and short to do again."""
MAX_PREFETCH = 256
"""Most tasks assigned to one worker per task that it runs, however short they are."""
LOOK_AHEAD = 64
"""Tasks among which one is chosen that does not prefer another worker."""
TERM_SECONDS = 120.0
"""Shortest term."""
TERM_FACTOR = 20.0
"""Term of a task in foreseen times, by the remote worker's own pace."""
OTHERS_TERM_FACTOR = 100.0
"""Term of a task in foreseen times, by the pace of all workers, until the remote worker has a pace of its own."""
SLOWEST_FLOPS_PER_SECOND = 1e8
"""Assumed pace until a task of known work has been answered."""
UNKNOWN_TERM_SECONDS = 3600.0
"""Term of a task of unknown work."""
READY_SECONDS = 600.0
"""Term of a remote worker's start: it may decode data."""
GETTING_READY, GIVING_SUMS = 0, -1
"""In place of a task's number, which is positive: the start of a remote worker, and sending its partial sum."""


@dataclass
class _ScheduledTask:
    name: str
    flops: float
    preferred: int | None = None
    """The worker that has what the task needs, and may be lost since."""
    failures: int = 0
    workers: set[int] = field(default_factory=set)
    """All workers that it was sent to."""
    failed_at: set[int | str] = field(default_factory=set)
    """Places where it has failed."""
    is_suspect: bool = False
    """Whether a local worker has died that had it and others."""


class TaskScheduler:
    """Tasks and the workers that they are assigned to. Every event returns instructions, to be executed in order."""

    def __init__(self, workers: int) -> None:
        self._tasks: dict[int, _ScheduledTask] = {}
        self._queue: deque[int] = deque()
        self._starting: set[int] = set()
        self._assigned: dict[int, dict[int, None]] = {}  # ready worker -> running tasks, prefetched ones, in order
        self._partials: dict[int, list[int]] = {}  # ready worker -> tasks in its partial sum
        self._requested: set[int] = set()  # workers whose partial sums were requested, and have not come
        self._retiring: int | None = None  # a worker that retires, and has not ended yet
        self._before_retirement: set[int] = set()  # tasks assigned before the last retirement had ended
        self._deaths_before_ready = self._deaths_while_requested = 0
        self._started = 0
        self._workers = workers
        self._capacities: dict[int, int] = {}  # remote worker -> tasks that it runs at a time
        self._places: dict[int, int | str] = {}  # worker -> slot of a local worker, or key of a remote one
        self._failed_over: dict[int, set[int]] = {}  # worker -> tasks that it failed since its last success
        self._dismissed: set[int] = set()  # workers to be replaced, which have not ended yet
        self._flops = self._seconds = 0.0  # of answered tasks whose work was foreseen
        self._paces: dict[int, tuple[float, float]] = {}  # remote worker -> (FLOPs, seconds) of those that it answered

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

    def submitted(
        self, tasks: Iterable[tuple[int, str, float]], preferred: Mapping[int, int] | None = None
    ) -> list[Instruction]:
        """New tasks: (sequence, name for errors, foreseen FLOPs or 0 if unknown). ``preferred``: task -> worker."""
        for sequence, name, flops in tasks:
            assert sequence not in self._tasks, sequence
            assert flops >= 0.0, flops
            self._tasks[sequence] = _ScheduledTask(name, flops, (preferred or {}).get(sequence))
            self._queue.append(sequence)
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

    def answered(self, worker: int, sequence: int, seconds: float = 0.0, in_partial: bool = False) -> list[Instruction]:
        """As `answered_all`, for one task: its verdict, and what follows."""
        verdicts, more = self.answered_all(worker, [(sequence, seconds, in_partial)])
        return [*verdicts, *more]

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
        task = self._tasks.get(sequence)
        if task is None or worker not in task.workers or (in_partial and not was_assigned):
            return DropReply(worker, sequence)
        if in_partial:
            self._partials.setdefault(worker, []).append(sequence)
        else:
            del self._tasks[sequence]
        if not was_assigned and sequence in self._queue:
            self._queue.remove(sequence)
        elif not was_assigned:
            followed += [
                CancelTask(other, sequence) for other, assigned in self._assigned.items() if sequence in assigned
            ]
        self._failed_over.pop(worker, None)
        if task.flops > 0.0:
            self._flops += task.flops
            self._seconds += seconds
            if worker in self._capacities:
                flops_before, seconds_before = self._paces.get(worker, (0.0, 0.0))
                self._paces[worker] = flops_before + task.flops, seconds_before + seconds
        return DeliverReply(sequence)

    @property
    def workers(self) -> int:
        """Tasks that run at a time when all workers are ready; of remote ones, those that are."""
        return self._workers

    def slot(self, worker: int) -> int:
        """The slot of a local worker, which its replacement takes over."""
        place = self._places[worker]
        assert isinstance(place, int), place
        return place

    def running_task(self, worker: int) -> int | None:
        """The first task that a worker runs, perhaps a cancelled one; None if it is idle."""
        return next(iter(self._assigned.get(worker, ())), None)

    def term(self, worker: int) -> tuple[int, float] | None:
        """(task, `GETTING_READY` or `GIVING_SUMS`; term in seconds) of a remote worker; None if it is idle."""
        if worker in self._starting:
            return GETTING_READY, READY_SECONDS
        sequence = self.running_task(worker)
        if sequence is not None:
            task = self._tasks.get(sequence)
            return sequence, TERM_SECONDS if task is None else max(TERM_SECONDS, self._task_term(worker, task.flops))
        return (GIVING_SUMS, self._sum_term(worker)) if worker in self._requested else None

    def _sum_term(self, worker: int) -> float:
        """Seconds for a partial sum, of which a node agent may do any part again, if it has lost workers of its own."""
        flops = sum(self._tasks[sequence].flops for sequence in self._partials.get(worker, ()))
        return max(TERM_SECONDS, self._task_term(worker, flops) / self._capacity(worker)) if flops else TERM_SECONDS

    def _task_term(self, worker: int, flops: float) -> float:
        """Seconds that a remote worker may take for so much work."""
        own_flops, own_seconds = self._paces.get(worker, (0.0, 0.0))
        if flops == 0.0:
            return UNKNOWN_TERM_SECONDS
        if own_flops:
            return TERM_FACTOR * flops / own_flops * own_seconds
        if self._flops:
            return OTHERS_TERM_FACTOR * flops / self._flops * self._seconds
        return flops / SLOWEST_FLOPS_PER_SECOND

    def avoid_place(self, worker: int, sequence: int) -> None:
        """Let workers in other places try this task first."""
        if sequence in self._tasks:
            self._tasks[sequence].failed_at.add(self._places[worker])

    def has_failed_everywhere(self, sequence: int) -> bool:
        """Whether a task has failed in every place."""
        return self._has_failed_everywhere(self._tasks[sequence])

    def is_assigned(self, worker: int, sequence: int) -> bool:
        """Whether a task, perhaps a cancelled one, is assigned to a worker that has not answered or dropped it."""
        return sequence in self._assigned.get(worker, ())

    def requested_partial_sum(self, worker: int) -> tuple[int, ...] | None:
        """The open tasks in the requested partial sum of a worker; None if it was not requested."""
        return tuple(self._partials.get(worker, ())) if worker in self._requested else None

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
        if sequence not in self._tasks:  # cancelled: what it needs may be gone, which says nothing of the worker
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
        if is_news and self._workers == self._capacity(worker):
            return [*self._count_failure(worker, sequence, reason), *self._assign_tasks(self._assigned)]
        instructions = self._requeue(worker, sequence, reason)
        if is_news:
            self._retiring = worker
            self._workers -= self._capacity(worker)
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
            lost += [Requeue(worker, sequence, reason) for sequence in assigned if sequence in self._tasks]
            self._requeue_all(assigned)
        elif assigned and not is_retiring and not was_dismissed:
            lost += self._failed_of(worker, assigned, reason)
        else:
            self._requeue_all(assigned)
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
        self._requeue_all(assigned)
        for task in filter(None, map(self._tasks.get, assigned)):
            task.is_suspect = True
        return [Requeue(worker, first, reason)] if first in self._tasks else []

    def _forget(self, worker: int) -> int | str:
        """Remove a worker that has ended; returns its place."""
        self._dismissed.discard(worker)
        self._failed_over.pop(worker, None)
        self._paces.pop(worker, None)
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
        assigned = [sequence for sequence in self._assigned.pop(worker, ()) if sequence in self._tasks]
        in_partial = tuple(self._partials.pop(worker, ()))
        self._requested.discard(worker)
        self._queue.extendleft(reversed([*assigned, *in_partial]))
        lost: list[Instruction] = [Requeue(worker, sequence, reason) for sequence in assigned]
        if in_partial:
            lost.append(InvalidatePartial(worker, in_partial, reason))
        return [*lost, *self._assign_tasks(self._assigned)]

    def collect(self, sequences: Iterable[int]) -> list[Instruction]:
        """Request the partial sums with these tasks in them, unless they have been requested."""
        wanted = set(sequences)
        workers = {
            worker: in_partial[0]
            for worker, in_partial in self._partials.items()
            if worker not in self._requested and not wanted.isdisjoint(in_partial)
        }
        self._requested.update(workers)
        return [RequestPartial(worker, sequence) for worker, sequence in workers.items()]

    def collected(self, worker: int) -> list[Instruction]:
        """A worker has sent its partial sum; that of a dead worker does not count."""
        if worker not in self._requested:
            return []
        self._requested.remove(worker)
        self._deaths_while_requested = 0
        over = tuple(self._partials.pop(worker, ()))
        for sequence in over:
            del self._tasks[sequence]
        return [DeliverPartial(worker, over)]

    def cancelled(self, sequences: Iterable[int]) -> list[Instruction]:
        """These tasks are cancelled."""
        over = {sequence for sequence in sequences if self._tasks.pop(sequence, None) is not None}
        self._queue = deque(sequence for sequence in self._queue if sequence not in over)
        for worker, in_partial in self._partials.items():
            self._partials[worker] = [sequence for sequence in in_partial if sequence not in over]
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
            idle = [worker for worker in idle if len(self._assigned[worker]) < self._capacity(worker)]
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
        allowed = (sequence for sequence in self._queue if self._may_try(worker, self._tasks[sequence], is_idle))
        first = None
        for sequence in islice(allowed, LOOK_AHEAD):
            preferred = self._tasks[sequence].preferred
            if preferred is None or preferred == worker or preferred not in self._assigned:
                return sequence
            first = sequence if first is None else first
        return first if is_idle else None

    def _may_try(self, worker: int, task: _ScheduledTask, is_idle: bool) -> bool:
        if task.is_suspect and not is_idle:
            return False
        if not task.failed_at or self._places[worker] not in task.failed_at:
            return True
        return self._has_failed_everywhere(task)

    def _has_failed_everywhere(self, task: _ScheduledTask) -> bool:
        to_come = self._starting - self._capacities.keys()  # a remote worker may never be ready
        return all(self._places[other] in task.failed_at for other in self._assigned.keys() | to_come)

    def _prefetch(self, worker: int, assigned: Mapping[int, None]) -> list[Instruction]:
        """Prefetch tasks for a worker that is not idle."""
        sent: list[Instruction] = []
        capacity = self._capacity(worker)
        first = self._tasks.get(next(iter(assigned), 0))
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

    def _capacity(self, worker: int) -> int:
        return self._capacities.get(worker, 1)

    def _foreseen(self, sequence: int) -> float:
        """Seconds that a task takes at the mean pace; inf if that is unknown, or the task cancelled."""
        task = self._tasks.get(sequence)
        if task is None or task.flops == 0.0 or self._flops == 0.0:
            return math.inf
        return task.flops / self._flops * self._seconds

    def _assign(self, worker: int, sequence: int) -> SendTask:
        self._queue.remove(sequence)  # among the first
        self._assigned[worker][sequence] = None
        self._tasks[sequence].workers.add(worker)
        return SendTask(worker, sequence)

    def _unassign(self, worker: int, sequence: int) -> bool:
        """Remove a task from a worker's queue; whether it was assigned."""
        assigned = self._assigned.get(worker, {})
        was_assigned = sequence in assigned
        assigned.pop(sequence, None)
        return was_assigned

    def _requeue(self, worker: int, sequence: int, reason: str) -> list[Instruction]:
        """Requeue a task at the front, unless it was cancelled."""
        if sequence not in self._tasks:
            return []
        self._queue.appendleft(sequence)
        return [Requeue(worker, sequence, reason)]

    def _requeue_all(self, assigned: Collection[int]) -> None:
        """Requeue assigned tasks at the front, except cancelled ones."""
        self._queue.extendleft(sequence for sequence in reversed([*assigned]) if sequence in self._tasks)

    def _invalidate_partial(self, worker: int, reason: str, is_blameless: bool) -> list[Instruction]:
        lost = self._partials.pop(worker, [])
        self._queue.extendleft(reversed(lost))
        instructions: list[Instruction] = [InvalidatePartial(worker, tuple(lost), reason)] if lost else []
        if worker in self._requested:
            self._requested.remove(worker)
            self._deaths_while_requested += not is_blameless
            if self._deaths_while_requested >= TRIES:
                ended = f"{TRIES} workers in a row ended before they had sent their sums; the last: {reason}"
                instructions.append(Abort(worker, ended))
        return instructions

    def _count_failure(self, worker: int, sequence: int, reason: str) -> list[Instruction]:
        task = self._tasks.get(sequence)
        if task is None:  # cancelled, or answered by a worker that was thought dead
            return []
        task.failures += 1
        if task.failures >= TRIES:
            del self._tasks[sequence]
            return [Abort(worker, f"{task.name}: given up after {TRIES} workers; the last: {reason}", sequence)]
        return self._requeue(worker, sequence, reason)
