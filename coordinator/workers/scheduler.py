"""Which worker has which task: a state machine, events in and instructions out. Never a socket, a process or a clock.

`TaskScheduler` follows tasks and workers. Tasks are assigned in the order of their submission, some of them ahead
(`coordinator.workers.assignment`); tasks of a worker that dies or fails are requeued at the front. A task is retried in
a place where it has failed only if it has failed in all places. A worker that fails three different tasks in a row is
replaced.

Replies may wait in a worker for others (`edge.runtime.reply_batch`). So of several tasks that a dead worker had, nobody
knows which it ran: none has failed, but each of them is then the only one of its worker, until it is answered.

An update may stay in the *partial sum* of the worker that made it, and counts when that sum has come. A worker that
dies loses its partial sum: the tasks in it are requeued without a failure. The partial sum of a dead worker never
counts, so that nothing counts twice.

Workers of one GPU share its memory. A worker that lacks memory for a task *retires*: it is ended and not replaced, and
its task is requeued without a failure. Until it has ended no task is assigned; tasks that are assigned afterwards have
more memory. Only the last worker's task counts failures.

*Remote workers* come and go: nobody starts them, and nobody replaces them. When one is lost its link may be the cause,
so that its task counts no failure. Each task that a remote worker runs has a *term*
(`coordinator.workers.scheduled_workers`).

Nothing here refers to a worker that is lost, but for the numbers of local ones in the tasks that they had: their last
replies may still come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from coordinator.workers.assignment import PartialSumTracker, ScheduledTask, TaskAssignment, TaskQueue
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
    StartWorker,
)
from coordinator.workers.scheduled_workers import READY_SECONDS, Paces, ScheduledWorkers

TRIES = 3
"""Workers that may die or fail over one task, and workers in a row that may die before they are ready, or before they
have sent a requested partial sum."""
GETTING_READY, GIVING_SUMS = 0, -1
"""In place of a task's number, which is positive: the start of a remote worker, and sending its partial sum."""


class TaskScheduler:
    """Tasks and the workers that they are assigned to. Every event returns instructions, to be executed in order."""

    def __init__(self, workers: int) -> None:
        self._queue = TaskQueue()
        self._known = ScheduledWorkers()
        self._paces = Paces()
        self._sums = PartialSumTracker()
        self._assignment = TaskAssignment(self._queue, self._known, self._paces)
        self._assigned = self._assignment.assigned
        self._retiring: int | None = None  # a worker that retires, and has not ended yet
        self._before_retirement: set[int] = set()  # tasks assigned before the last retirement had ended
        self._deaths_before_ready = 0
        self._workers = workers

    def begin(self) -> list[Instruction]:
        """The pool opens."""
        return [StartWorker(self._known.add(slot)) for slot in range(self._workers)]

    def joined(self, key: str, capacity: int = 1) -> int:
        """A remote worker that runs ``capacity`` tasks at a time has joined; returns its number.

        It counts among the workers when it is ready.
        """
        return self._known.add(key, capacity)

    def shrank(self, worker: int, capacity: int) -> None:
        """A node agent runs fewer tasks at a time from now on: workers of its machine have retired."""
        gone = self._known.lower_capacity(worker, capacity)
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
        if worker in self._known.starting:
            self._known.starting.remove(worker)
            self._deaths_before_ready = 0
            self._assigned[worker] = {}
            self._workers += self._known.capacity(worker) if self._known.is_remote(worker) else 0
        return self._assign_tasks([worker])

    def dropped(self, worker: int, sequence: int) -> list[Instruction]:
        """A worker has removed a cancelled task from its queue."""
        self._assignment.remove(worker, sequence)
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
        was_assigned = self._assignment.remove(worker, sequence)
        task = self._queue.open.get(sequence)
        counts = was_assigned or (task is not None and worker in task.local_workers and not in_partial)
        if task is None or not counts:
            return DropReply(worker, sequence)
        if in_partial:
            self._sums.add(worker, sequence)
        else:
            self._queue.close(sequence)
        if not was_assigned and not self._queue.stop_waiting(sequence):
            followed += [CancelTask(other, sequence) for other in self._assignment.holders(sequence)]
        self._known.failed_over.pop(worker, None)
        if task.flops > 0.0:
            self._paces.answered(task.flops, seconds, worker if worker in self._known.capacities else None)
        return DeliverReply(sequence)

    @property
    def workers(self) -> int:
        """Tasks that run at a time when all workers are ready; of remote ones, those that are."""
        return self._workers

    def capacity(self, worker: int) -> int:
        """Tasks that a worker runs at a time."""
        return self._known.capacity(worker)

    def slot(self, worker: int) -> int:
        """The slot of a local worker, which its replacement takes over."""
        place = self._known.place(worker)
        assert isinstance(place, int), place
        return place

    def running_task(self, worker: int) -> int | None:
        """The first task that a worker runs, perhaps a cancelled one; None if it is idle."""
        return self._assignment.first(worker)

    def terms(self, worker: int) -> dict[int, float]:
        """Each task that a remote worker runs, `GETTING_READY` or `GIVING_SUMS` -> its term in seconds.

        A node agent runs as many of its first tasks as it has workers: a task that waits on its machine has no term.
        """
        if worker in self._known.starting:
            return {GETTING_READY: READY_SECONDS}
        running = islice(self._assigned.get(worker, ()), self._known.capacity(worker))
        terms = {sequence: self._term(worker, sequence) for sequence in running}
        if not terms and self._sums.is_requested(worker):
            return {GIVING_SUMS: self._sum_term(worker)}
        return terms

    def _term(self, worker: int, sequence: int) -> float:
        task = self._queue.open.get(sequence)
        return self._paces.term(worker, None if task is None else task.flops)

    def _sum_term(self, worker: int) -> float:
        """Seconds for a partial sum, of which a node agent may do any part again, if it has lost workers of its own."""
        flops = sum(self._queue.open[sequence].flops for sequence in self._sums.tasks(worker))
        return self._paces.term(worker, flops or None, self._known.capacity(worker))

    def avoid_place(self, worker: int, sequence: int) -> None:
        """Let workers in other places try this task first."""
        task = self._queue.open.get(sequence)
        if task is not None:
            task.failed_at.add(self._known.place(worker))

    def has_failed_everywhere(self, sequence: int) -> bool:
        """Whether a task has failed in every place."""
        return self._known.have_all_failed(self._queue.open[sequence].failed_at, set(self._assigned))

    def is_assigned(self, worker: int, sequence: int) -> bool:
        """Whether a task, perhaps a cancelled one, is assigned to a worker that has not answered or dropped it."""
        return self._assignment.has(worker, sequence)

    def requested_partial_sum(self, worker: int) -> tuple[int, ...] | None:
        """The open tasks in the requested partial sum of a worker; None if it was not requested."""
        return self._sums.tasks(worker) if self._sums.is_requested(worker) else None

    def doubted(self, worker: int, sequence: int, reason: str) -> list[Instruction]:
        """A worker's reply to a task is unusable: another worker tries, and no failure is counted yet."""
        if not self._assignment.remove(worker, sequence):
            return [DropReply(worker, sequence)]
        self.avoid_place(worker, sequence)
        return [*self._requeue(worker, sequence, reason), *self._assign_tasks(self._assigned)]

    def failed(self, worker: int, sequence: int, reason: str) -> list[Instruction]:
        """A worker has failed a task. It lives on unless it fails every task, as on a GPU that is lost."""
        if not self._assignment.remove(worker, sequence):
            return [DropReply(worker, sequence)]
        if sequence not in self._queue.open:  # cancelled: what it needs may be gone, which says nothing of the worker
            return self._assign_tasks(self._assigned)
        self.avoid_place(worker, sequence)
        instructions = self._count_failure(worker, sequence, reason)
        if self._known.failed(worker, sequence) >= TRIES and self._known.dismiss(worker):
            instructions.append(ReplaceWorker(worker, f"it failed over {TRIES} tasks in a row; the last: {reason}"))
        return [*instructions, *self._assign_tasks(self._assigned)]

    def lacked_memory(self, worker: int, sequence: int, reason: str) -> list[Instruction]:
        """A worker lacked memory for a task: it retires, unless it is the last or another has just retired.

        All workers may run out of memory at once. So one retires at a time, and a failure of a task that was assigned
        before that worker had ended says nothing about the memory that is free now.
        """
        if not self._assignment.remove(worker, sequence):
            return [DropReply(worker, sequence)]
        is_news = self._retiring is None and sequence not in self._before_retirement
        self._before_retirement.discard(sequence)
        if is_news and self._workers == self._known.capacity(worker):
            return [*self._count_failure(worker, sequence, reason), *self._assign_tasks(self._assigned)]
        instructions = self._requeue(worker, sequence, reason)
        if is_news:
            self._retiring = worker
            self._workers -= self._known.capacity(worker)
            instructions.append(RetireWorker(worker, reason))
        return [*instructions, *self._assign_tasks(self._assigned)]

    def died(self, worker: int, reason: str, is_blameless: bool = False) -> list[Instruction]:
        """A worker's process has ended: a failure of its task, if it had one alone.

        Of a remote worker only the connection is known to be lost, which is no failure of a task. ``is_blameless``: a
        local worker was ended from outside, which is no failure of a task or of its start.
        """
        if self._known.is_remote(worker):
            return self._remote_worker_left(worker, reason)
        if worker in self._known.starting:
            place = self._known.forget(worker)
            self._deaths_before_ready += not is_blameless
            if self._deaths_before_ready >= TRIES:
                return [Abort(worker, f"{TRIES} workers in a row ended before they were ready; the last: {reason}")]
            return [StartWorker(self._known.add(place))]
        if worker not in self._assigned:
            return []
        assigned, is_retiring = self._assigned.pop(worker), worker == self._retiring
        was_dismissed = self._known.is_dismissed(worker)
        place = self._forget(worker)
        lost: list[Instruction] = []
        if assigned and is_blameless:
            lost += [Requeue(worker, sequence, reason) for sequence in assigned if sequence in self._queue.open]
            self._queue.put_back(assigned)
        elif assigned and not is_retiring and not was_dismissed:
            lost += self._failed_of(worker, assigned, reason)
        else:
            self._queue.put_back(assigned)
        lost += self._invalidate_partial(worker, reason, is_blameless)
        if is_retiring:
            self._end_retirement()
        else:
            lost.append(StartWorker(self._known.add(place)))
        return [*lost, *self._assign_tasks(self._assigned)]

    def _failed_of(self, worker: int, assigned: Collection[int], reason: str) -> list[Instruction]:
        """One of a dead worker's tasks has failed: the only one, or nobody knows which."""
        first, *others = assigned
        if not others:
            return self._count_failure(worker, first, reason)
        self._queue.put_back(assigned)
        for task in filter(None, map(self._queue.open.get, assigned)):
            task.is_suspect = True
        return [Requeue(worker, first, reason)] if first in self._queue.open else []

    def _forget(self, worker: int) -> int | str:
        """Remove a worker that has ended; returns its place."""
        self._paces.forget(worker)
        return self._known.forget(worker)

    def _end_retirement(self) -> None:
        self._retiring = None
        self._before_retirement = {sequence for others in self._assigned.values() for sequence in others}

    def _remote_worker_left(self, worker: int, reason: str) -> list[Instruction]:
        """A remote worker was lost: its tasks, and those in its partial sum, are requeued at the front."""
        capacity = self._known.capacity(worker)
        self._forget(worker)
        if worker == self._retiring:  # which is not counted any more
            self._end_retirement()
        else:
            self._workers -= capacity if worker in self._assigned else 0
        assigned = [sequence for sequence in self._assigned.pop(worker, ()) if sequence in self._queue.open]
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

    def _assign_tasks(self, workers: Iterable[int]) -> list[Instruction]:
        """Assign tasks to these workers, unless one retires."""
        return [] if self._retiring is not None else [*self._assignment.assign(workers, self._workers)]

    def _requeue(self, worker: int, sequence: int, reason: str) -> list[Instruction]:
        """Requeue a task at the front, unless it was cancelled."""
        if sequence not in self._queue.open:
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
        task = self._queue.open.get(sequence)
        if task is None:  # cancelled, or answered by a worker that was thought dead
            return []
        task.failures += 1
        if task.failures >= TRIES:
            self._queue.close(sequence)
            return [Abort(worker, f"{task.name}: given up after {TRIES} workers; the last: {reason}", sequence)]
        return self._requeue(worker, sequence, reason)
