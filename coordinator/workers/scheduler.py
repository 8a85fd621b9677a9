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
from collections.abc import Iterable
from dataclasses import dataclass, field

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
have given their sums away."""
PREFETCH_SECONDS = 0.1
"""Foreseen work up to which tasks are prefetched: many round trips long, and soon repeated."""
MAX_PREFETCH = 64
"""Tasks assigned to one worker, however short they are."""
TERM_SECONDS = 120.0
"""No term is shorter."""
TERM_FACTOR = 20.0
"""So many times as long as it should take may a remote worker be at work on a task, by its own pace."""
OTHERS_TERM_FACTOR = 100.0
"""And by the pace of all workers, as long as it has answered no task of which the work is known."""
SLOWEST_FLOPS_PER_SECOND = 1e8
"""The pace that is thought possible as long as nobody has answered such a task."""
UNKNOWN_TERM_SECONDS = 3600.0
"""Of a task of which the work is not known."""
READY_SECONDS = 600.0
"""For a remote worker to get ready: it may have data to decode."""
GETTING_READY, GIVING_SUMS = 0, -1
"""What a remote worker may be at, beside tasks, whose numbers are positive."""


@dataclass
class _ScheduledTask:
    name: str
    flops: float
    failures: int = 0
    workers: set[int] = field(default_factory=set)
    """All workers that it was ever sent to."""
    failed_at: set[int | str] = field(default_factory=set)
    """Places where it could not be done."""


class TaskScheduler:
    """Tasks and the workers that hold them. Every event returns instructions, to be obeyed in order."""

    def __init__(self, workers: int) -> None:
        self._tasks: dict[int, _ScheduledTask] = {}
        self._queue: deque[int] = deque()
        self._starting: set[int] = set()
        self._assigned: dict[int, deque[int]] = {}  # ready worker -> running task, prefetched ones
        self._partials: dict[int, list[int]] = {}  # ready worker -> tasks in its partial sum
        self._asked: set[int] = set()  # workers whose sums are on their way
        self._retiring: int | None = None  # a worker that was told to retire, and has not ended yet
        self._before_retirement: set[int] = set()  # tasks assigned before the last retirement had ended
        self._deaths_before_ready = self._deaths_while_asked = 0
        self._started = 0
        self._workers = workers
        self._remote_workers: set[int] = set()
        self._places: dict[int, int | str] = {}  # worker -> the slot of one of ours, or the key of a remote worker
        self._failed_over: dict[int, set[int]] = {}  # worker -> tasks that it could not do since it did the last one
        self._dismissed: set[int] = set()  # workers that were told so, and have not ended yet
        self._flops = self._seconds = 0.0  # of the tasks that were answered and whose work was foreseen
        self._paces: dict[
            int, tuple[float, float]
        ] = {}  # remote worker -> (FLOPs, seconds) of those that it has answered

    def begin(self) -> list[Instruction]:
        """The pool opens."""
        return [self._start(slot) for slot in range(self._workers)]

    def joined(self, key: str) -> int:
        """A remote worker has come, and gets this number; it counts among the workers when it is ready."""
        worker = self._number(key)
        self._remote_workers.add(worker)
        return worker

    def submitted(self, tasks: Iterable[tuple[int, str, float]]) -> list[Instruction]:
        """New tasks: (sequence, what an error calls it, FLOPs that it will take or 0 if that is unknown)."""
        for sequence, name, flops in tasks:
            assert sequence not in self._tasks, sequence
            assert flops >= 0.0, flops
            self._tasks[sequence] = _ScheduledTask(name, flops)
            self._queue.append(sequence)
        return self._assign_tasks(self._assigned)

    def ready(self, worker: int) -> list[Instruction]:
        """A worker that was starting waits for its first task; from any other this says nothing new."""
        if worker in self._starting:
            self._starting.remove(worker)
            self._deaths_before_ready = 0
            self._assigned[worker] = deque()
            self._workers += worker in self._remote_workers
        return self._assign_tasks([worker])

    def dropped(self, worker: int, sequence: int) -> list[Instruction]:
        """A worker has nothing more to do with a cancelled task."""
        self._unassign(worker, sequence)
        return self._assign_tasks([worker])

    def answered(self, worker: int, sequence: int, seconds: float = 0.0, in_partial: bool = False) -> list[Instruction]:
        """A worker's reply to a task has come, after ``seconds``; ``in_partial``: the update is in its partial sum."""
        was_assigned = self._unassign(worker, sequence)
        task = self._tasks.get(sequence)
        if task is None or worker not in task.workers or (in_partial and not was_assigned):
            return [DropReply(worker, sequence), *self._assign_tasks([worker])]
        if in_partial:
            self._partials.setdefault(worker, []).append(sequence)
        else:
            del self._tasks[sequence]
        vain: list[Instruction] = []
        if not was_assigned and sequence in self._queue:
            self._queue.remove(sequence)
        elif not was_assigned:
            vain = [CancelTask(other, sequence) for other, assigned in self._assigned.items() if sequence in assigned]
        self._failed_over.pop(worker, None)
        if task.flops > 0.0:
            self._flops += task.flops
            self._seconds += seconds
            if worker in self._remote_workers:
                flops_before, seconds_before = self._paces.get(worker, (0.0, 0.0))
                self._paces[worker] = flops_before + task.flops, seconds_before + seconds
        return [DeliverReply(sequence), *vain, *self._assign_tasks([worker])]

    def slot(self, worker: int) -> int:
        """Of a worker of ours; the one that replaces it takes it over."""
        place = self._places[worker]
        assert isinstance(place, int), place
        return place

    def running_task(self, worker: int) -> int | None:
        """The task that a worker runs, wanted or cancelled; None if it is idle."""
        assigned = self._assigned.get(worker)
        return assigned[0] if assigned else None

    def term(self, worker: int) -> tuple[int, float] | None:
        """What a remote worker is at (a task's number, `GETTING_READY`, `GIVING_SUMS`), and for how many seconds it may
        be."""
        if worker in self._starting:
            return GETTING_READY, READY_SECONDS
        sequence = self.running_task(worker)
        if sequence is not None:
            task = self._tasks.get(sequence)
            return sequence, TERM_SECONDS if task is None else max(TERM_SECONDS, self._longest(worker, task.flops))
        return (GIVING_SUMS, TERM_SECONDS) if worker in self._asked else None

    def _longest(self, worker: int, flops: float) -> float:
        """Seconds that a remote worker may at most take over so much work."""
        own_flops, own_seconds = self._paces.get(worker, (0.0, 0.0))
        if flops == 0.0:
            return UNKNOWN_TERM_SECONDS
        if own_flops:
            return TERM_FACTOR * flops / own_flops * own_seconds
        if self._flops:
            return OTHERS_TERM_FACTOR * flops / self._flops * self._seconds
        return flops / SLOWEST_FLOPS_PER_SECOND

    def lapsed(self, worker: int, sequence: int) -> None:
        """A remote worker's term is over: others try this task first. It is to be ended next."""
        if sequence in self._tasks:
            self._tasks[sequence].failed_at.add(self._places[worker])

    def has_failed_everywhere(self, sequence: int) -> bool:
        """Whether there is no place left in which a task has not failed."""
        return self._is_tried_out(self._tasks[sequence])

    def is_assigned(self, worker: int, sequence: int) -> bool:
        """Whether a worker has been given a task, wanted or cancelled, that it has not answered or dropped."""
        return sequence in self._assigned.get(worker, ())

    def asked(self, worker: int) -> tuple[int, ...] | None:
        """The wanted tasks in the partial sum that a worker was asked for; None if it was not."""
        return tuple(self._partials.get(worker, ())) if worker in self._asked else None

    def doubted(self, worker: int, sequence: int, reason: str) -> list[Instruction]:
        """A worker's reply to a task cannot be used, as it is: another is to do it, and nobody is to blame yet."""
        if not self._unassign(worker, sequence):
            return [DropReply(worker, sequence)]
        instructions: list[Instruction] = []
        if sequence in self._tasks:  # or it was cancelled
            self._tasks[sequence].failed_at.add(self._places[worker])
            self._queue.appendleft(sequence)
            instructions.append(Requeue(worker, sequence, reason))
        return [*instructions, *self._assign_tasks(self._assigned)]

    def failed(self, worker: int, sequence: int, reason: str) -> list[Instruction]:
        """A worker could not do a task, but lives on: unless it fails whatever it does, as on a GPU that is lost."""
        if not self._unassign(worker, sequence):
            return [DropReply(worker, sequence)]
        if sequence in self._tasks:  # or it was cancelled
            self._tasks[sequence].failed_at.add(self._places[worker])
        instructions = self._count_failure(worker, sequence, reason)
        failed_over = self._failed_over.setdefault(worker, set())
        failed_over.add(sequence)
        if len(failed_over) >= TRIES and worker not in self._dismissed:
            self._dismissed.add(worker)
            instructions.append(ReplaceWorker(worker, f"it failed over {TRIES} tasks in a row; the last: {reason}"))
        return [*instructions, *self._assign_tasks(self._assigned)]

    def lacked_memory(self, worker: int, sequence: int, reason: str) -> list[Instruction]:
        """A worker lacked the memory for a task, but lives on: it leaves, unless it is the last or one has just left.

        All that work at once may find that they are too many. So one leaves at a time, and a task that was handed out
        before it had ended shows nothing about the memory that there is now.
        """
        if not self._unassign(worker, sequence):
            return [DropReply(worker, sequence)]
        is_news = self._retiring is None and sequence not in self._before_retirement
        self._before_retirement.discard(sequence)
        if is_news and self._workers == 1:
            return [*self._count_failure(worker, sequence, reason), *self._assign_tasks(self._assigned)]
        instructions: list[Instruction] = []
        if sequence in self._tasks:  # or it was cancelled
            self._queue.appendleft(sequence)
            instructions.append(Requeue(worker, sequence, reason))
        if is_news:
            self._retiring = worker
            self._workers -= 1
            instructions.append(RetireWorker(worker, reason))
        return [*instructions, *self._assign_tasks(self._assigned)]

    def died(self, worker: int, reason: str, is_blameless: bool = False) -> list[Instruction]:
        """A worker's process has ended: the task that it was at work on is to blame, those that waited are not.

        Of a remote worker, all that is known is that it cannot be reached: nobody is to blame. ``is_blameless``: nor
        are tasks of a worker of ours that was ended from outside, and its start did not fail.
        """
        if worker in self._remote_workers:
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
            first = assigned.popleft()
            self._requeue_all(assigned)
            lost += self._count_failure(worker, first, reason)
        else:
            self._requeue_all(assigned)
        lost += self._invalidate_partial(worker, reason, is_blameless)
        if is_retiring:
            self._end_retirement()
        else:
            lost.append(self._start(place))
        return [*lost, *self._assign_tasks(self._assigned)]

    def _forget(self, worker: int) -> int | str:
        """Nothing more will be heard of a worker; its place."""
        self._dismissed.discard(worker)
        self._failed_over.pop(worker, None)
        self._paces.pop(worker, None)
        return self._places.pop(worker)

    def _end_retirement(self) -> None:
        self._retiring = None
        self._before_retirement = {sequence for others in self._assigned.values() for sequence in others}

    def _remote_worker_left(self, worker: int, reason: str) -> list[Instruction]:
        """A remote worker is gone: what it held goes to the front."""
        self._remote_workers.remove(worker)
        self._starting.discard(worker)
        self._forget(worker)
        if worker == self._retiring:  # then it has been counted out already
            self._end_retirement()
        else:
            self._workers -= worker in self._assigned
        assigned = [sequence for sequence in self._assigned.pop(worker, ()) if sequence in self._tasks]
        in_partial = tuple(self._partials.pop(worker, ()))
        self._asked.discard(worker)
        self._queue.extendleft(reversed([*assigned, *in_partial]))
        lost: list[Instruction] = [Requeue(worker, sequence, reason) for sequence in assigned]
        if in_partial:
            lost.append(InvalidatePartial(worker, in_partial, reason))
        return [*lost, *self._assign_tasks(self._assigned)]

    def collect(self, sequences: Iterable[int]) -> list[Instruction]:
        """The sums with these tasks in them are wanted; workers that have been asked already are not asked again."""
        wanted = set(sequences)
        workers = {
            worker: held[0]
            for worker, held in self._partials.items()
            if worker not in self._asked and not wanted.isdisjoint(held)
        }
        self._asked.update(workers)
        return [RequestPartial(worker, sequence) for worker, sequence in workers.items()]

    def collected(self, worker: int) -> list[Instruction]:
        """A worker's partial sum has come; that of a dead worker does not count."""
        if worker not in self._asked:
            return []
        self._asked.remove(worker)
        self._deaths_while_asked = 0
        over = tuple(self._partials.pop(worker, ()))
        for sequence in over:
            del self._tasks[sequence]
        return [DeliverPartial(worker, over)]

    def cancelled(self, sequences: Iterable[int]) -> list[Instruction]:
        """These tasks are not wanted any more."""
        over = {sequence for sequence in sequences if self._tasks.pop(sequence, None) is not None}
        self._queue = deque(sequence for sequence in self._queue if sequence not in over)
        for worker, held in self._partials.items():
            self._partials[worker] = [sequence for sequence in held if sequence not in over]
        return [
            CancelTask(worker, sequence)
            for worker, assigned in self._assigned.items()
            for sequence in assigned
            if sequence in over
        ]

    def _start(self, place: int | str) -> StartWorker:
        return StartWorker(self._number(place))

    def _number(self, place: int | str) -> int:
        """The number of a worker that is not ready yet."""
        worker = self._started
        self._places[worker] = place
        self._started += 1
        self._starting.add(worker)
        return worker

    def _assign_tasks(self, workers: Iterable[int]) -> list[Instruction]:
        """Assign tasks to these workers, to idle ones first."""
        if self._retiring is not None:
            return []
        able = [worker for worker in workers if worker in self._assigned and worker not in self._dismissed]
        sent: list[Instruction] = []
        for worker in able:
            assigned = self._assigned[worker]
            if not assigned and (sequence := self._next_for(worker)) is not None:
                sent.append(self._assign(worker, assigned, sequence))
        for worker in able:
            sent += self._prefetch(worker, self._assigned[worker])
        return sent

    def _next_for(self, worker: int) -> int | None:
        """The first task that this worker may try: not one that has failed in its place, if it has not in another."""
        return next((sequence for sequence in self._queue if self._may_try(worker, self._tasks[sequence])), None)

    def _may_try(self, worker: int, task: _ScheduledTask) -> bool:
        if not task.failed_at or self._places[worker] not in task.failed_at:
            return True
        return self._is_tried_out(task)

    def _is_tried_out(self, task: _ScheduledTask) -> bool:
        to_come = self._starting - self._remote_workers  # a remote worker may never get ready
        return all(self._places[other] in task.failed_at for other in self._assigned.keys() | to_come)

    def _prefetch(self, worker: int, assigned: deque[int]) -> list[Instruction]:
        """Prefetch tasks for a worker that is not idle."""
        sent: list[Instruction] = []
        seconds = sum(map(self._foreseen, assigned)) if self._may_prefetch(assigned) else math.inf
        while self._may_prefetch(assigned) and (sequence := self._next_for(worker)) is not None:
            seconds += self._foreseen(sequence)
            if seconds > PREFETCH_SECONDS:
                break
            sent.append(self._assign(worker, assigned, sequence))
        return sent

    def _may_prefetch(self, assigned: deque[int]) -> bool:
        """Whether another task may wait at this worker, if it is short."""
        return 0 < len(assigned) <= min(len(self._queue) // (2 * self._workers), MAX_PREFETCH - 1)

    def _foreseen(self, sequence: int) -> float:
        """Seconds that a task will take at the pace seen so far; inf if that is unknown, or the task cancelled."""
        task = self._tasks.get(sequence)
        if task is None or task.flops == 0.0 or self._flops == 0.0:
            return math.inf
        return task.flops / self._flops * self._seconds

    def _assign(self, worker: int, assigned: deque[int], sequence: int) -> SendTask:
        self._queue.remove(sequence)  # among the first
        assigned.append(sequence)
        self._tasks[sequence].workers.add(worker)
        return SendTask(worker, sequence)

    def _unassign(self, worker: int, sequence: int) -> bool:
        """Take a task from a worker; whether it was assigned."""
        assigned = self._assigned.get(worker)
        if assigned is None or sequence not in assigned:
            return False
        assigned.remove(sequence)
        return True

    def _requeue_all(self, assigned: deque[int]) -> None:
        """Requeue prefetched tasks at the front, but for cancelled ones."""
        self._queue.extendleft(sequence for sequence in reversed(assigned) if sequence in self._tasks)

    def _invalidate_partial(self, worker: int, reason: str, is_blameless: bool) -> list[Instruction]:
        lost = self._partials.pop(worker, [])
        self._queue.extendleft(reversed(lost))
        recall: list[Instruction] = [InvalidatePartial(worker, tuple(lost), reason)] if lost else []
        if worker in self._asked:
            self._asked.remove(worker)
            self._deaths_while_asked += not is_blameless
            if self._deaths_while_asked >= TRIES:
                ended = f"{TRIES} workers in a row ended before they had given their sums away; the last: {reason}"
                recall.append(Abort(worker, ended))
        return recall

    def _count_failure(self, worker: int, sequence: int, reason: str) -> list[Instruction]:
        task = self._tasks.get(sequence)
        if task is None:  # cancelled, or answered by a worker thought dead
            return []
        task.failures += 1
        if task.failures >= TRIES:
            del self._tasks[sequence]
            return [Abort(worker, f"{task.name}: given up after {TRIES} workers; the last: {reason}", sequence)]
        self._queue.appendleft(sequence)
        return [Requeue(worker, sequence, reason)]
