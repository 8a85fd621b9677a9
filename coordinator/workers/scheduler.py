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
so that its task counts no failure. Each task that a remote worker runs has a *term*: many times its foreseen seconds,
by the pace of that worker, or of all workers. Nothing else bounds a process on another machine.

Nothing here refers to a worker that is lost, but for the numbers of local ones in the tasks that they had: their last
replies may still come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice

from coordinator.workers.assignment import ScheduledTask, ScheduledWorker, TaskAssignment
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

TRIES = 3
"""Workers that may die or fail over one task, and workers in a row that may die before they are ready, or before they
have sent a requested partial sum."""
GETTING_READY, GIVING_SUMS = 0, -1
"""In place of a task's number, which is positive: the start of a remote worker, and sending its partial sum."""
TERM_SECONDS = 180.0
"""Shortest term: a node agent finds a worker of its own that hangs before that, and loses it alone
(`coordinator.workers.monitor`)."""
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


class TaskScheduler:
    """Tasks and the workers that they are assigned to. Every event returns instructions, to be executed in order."""

    def __init__(self, workers: int) -> None:
        self._tasks = TaskAssignment()
        self._workers, self._ready = self._tasks.workers, self._tasks.ready
        self._started = 0
        self._retiring: ScheduledWorker | None = None  # it has not ended yet
        self._before_retirement: set[int] = set()  # tasks assigned before the last retirement had ended
        self._deaths_before_ready = 0
        self._deaths_before_sums = 0
        self.workers = workers
        """Tasks that run at a time when all workers are ready; of remote ones, those that are."""

    # --- workers come ---------------------------------------------------------------------------------------------

    def begin(self) -> list[Instruction]:
        """The pool opens."""
        return [StartWorker(self._add(slot)) for slot in range(self.workers)]

    def joined(self, key: str, capacity: int = 1) -> int:
        """A remote worker that runs ``capacity`` tasks at a time has joined; returns its number.

        It counts among the workers when it is ready.
        """
        return self._add(key, True, capacity)

    def _add(self, place: int | str, is_remote: bool = False, capacity: int = 1) -> int:
        number = self._started
        self._started += 1
        self._workers[number] = ScheduledWorker(number, place, is_remote, capacity)
        return number

    def ready(self, number: int) -> list[Instruction]:
        """A worker that was starting is ready for its first task; no event for any other worker."""
        worker = self._workers.get(number)
        if worker is None:
            return []
        if not worker.is_ready:
            worker.is_ready = True
            self._deaths_before_ready = 0
            self._ready[number] = worker
            self.workers += worker.capacity if worker.is_remote else 0
        return self._assign_tasks([worker])

    def shrank(self, number: int, capacity: int) -> None:
        """A node agent runs fewer tasks at a time from now on: workers of its machine have retired."""
        worker = self._workers[number]
        assert 0 < capacity < worker.capacity, (number, capacity, worker.capacity)
        if worker.is_ready and worker is not self._retiring:  # else it is not counted yet, or any more
            self.workers -= worker.capacity - capacity
        worker.capacity = capacity

    # --- tasks come, and are over ---------------------------------------------------------------------------------

    def submitted(
        self,
        tasks: Iterable[tuple[int, str, float]],
        preferred: Mapping[int, int] | None = None,
        together: Mapping[int, bytes] | None = None,
    ) -> list[Instruction]:
        """New tasks: (sequence, name for errors, foreseen FLOPs or 0 if unknown). ``preferred``: task -> worker;
        ``together``: task -> what it shares with those that one worker does."""
        for sequence, name, flops in tasks:
            assert flops >= 0.0 and sequence not in self._tasks.open, (sequence, flops)
            shared = (together or {}).get(sequence)
            self._tasks.open[sequence] = ScheduledTask(name, flops, (preferred or {}).get(sequence), shared)
            self._tasks.waiting.append(sequence)
        return self._assign_tasks(self._ready.values())

    def cancelled(self, sequences: Iterable[int]) -> list[Instruction]:
        """These tasks are cancelled."""
        over = {sequence for sequence in sequences if self._tasks.open.pop(sequence, None) is not None}
        self._tasks.waiting = deque(sequence for sequence in self._tasks.waiting if sequence not in over)
        for worker in self._ready.values():
            worker.summed = [sequence for sequence in worker.summed if sequence not in over]
        return [
            CancelTask(worker.number, sequence)
            for worker in self._ready.values()
            for sequence in worker.tasks
            if sequence in over
        ]

    def dropped(self, number: int, sequence: int) -> list[Instruction]:
        """A worker has removed a cancelled task from its queue."""
        worker = self._workers.get(number)
        if worker is None:
            return []
        worker.release(sequence)
        return self._assign_tasks([worker])

    def answered_all(
        self, number: int, replies: Iterable[tuple[int, float, bool]]
    ) -> tuple[list[DeliverReply | DropReply], list[Instruction]]:
        """A worker has answered tasks; returns (a verdict for each, what follows).

        ``replies``: (task, seconds that it took, whether the update is in the worker's partial sum) of each.
        """
        worker = self._workers.get(number)
        verdicts: list[DeliverReply | DropReply] = []
        followed: list[Instruction] = []
        for sequence, seconds, in_partial in replies:
            was_assigned = worker is not None and worker.release(sequence)
            task = self._tasks.open.get(sequence)
            counts = was_assigned or (task is not None and number in task.local_workers and not in_partial)
            if task is None or not counts:
                verdicts.append(DropReply(number, sequence))
                continue
            verdicts.append(DeliverReply(sequence))
            if in_partial and worker is not None:
                worker.summed.append(sequence)
            else:
                del self._tasks.open[sequence]
            if not was_assigned:  # it was requeued: it waits, or others have it
                if sequence in self._tasks.waiting:
                    self._tasks.waiting.remove(sequence)
                followed += [
                    CancelTask(other.number, sequence) for other in self._ready.values() if sequence in other.tasks
                ]
            if worker is not None:
                worker.failed_over.clear()
            if task.flops > 0.0:
                self._tasks.pace.add(task.flops, seconds)
                if worker is not None and worker.is_remote:
                    worker.pace.add(task.flops, seconds)
        return verdicts, followed + self._assign_tasks([] if worker is None else [worker])

    # --- partial sums ---------------------------------------------------------------------------------------------

    def collect(self, sequences: Iterable[int]) -> list[Instruction]:
        """Request the partial sums with these tasks in them, unless they have been requested."""
        wanted, requests = set(sequences), list[Instruction]()
        for worker in self._ready.values():
            if not worker.is_sum_requested and not wanted.isdisjoint(worker.summed):
                worker.is_sum_requested = True
                requests.append(RequestPartial(worker.number, worker.summed[0]))
        return requests

    def requested_partial_sum(self, number: int) -> tuple[int, ...] | None:
        """The open tasks in the requested partial sum of a worker; None if it was not requested."""
        worker = self._workers.get(number)
        return tuple(worker.summed) if worker is not None and worker.is_sum_requested else None

    def collected(self, number: int) -> list[Instruction]:
        """A worker has sent its partial sum; that of a dead worker does not count."""
        over = self.requested_partial_sum(number)
        if over is None:
            return []
        worker = self._workers[number]
        worker.is_sum_requested, worker.summed = False, []
        self._deaths_before_sums = 0
        for sequence in over:
            del self._tasks.open[sequence]
        return [DeliverPartial(number, over)]

    # --- questions ------------------------------------------------------------------------------------------------

    def capacity(self, number: int) -> int:
        """Tasks that a worker runs at a time."""
        return self._workers[number].capacity

    def slot(self, number: int) -> int:
        """The slot of a local worker, which its replacement takes over."""
        place = self._workers[number].place
        assert isinstance(place, int), place
        return place

    def running_task(self, number: int) -> int | None:
        """The first task that a worker runs, perhaps a cancelled one; None if it is idle."""
        worker = self._workers.get(number)
        return None if worker is None else next(iter(worker.tasks), None)

    def is_assigned(self, number: int, sequence: int) -> bool:
        """Whether a task, perhaps a cancelled one, is assigned to a worker that has not answered or dropped it."""
        worker = self._workers.get(number)
        return worker is not None and sequence in worker.tasks

    def has_failed_everywhere(self, sequence: int) -> bool:
        """Whether a task has failed in every place."""
        return self._tasks.has_failed_everywhere(self._tasks.open[sequence])

    def terms(self, number: int) -> dict[int, float]:
        """Each task that a remote worker runs, `GETTING_READY` or `GIVING_SUMS` -> its term in seconds.

        A node agent runs as many of its first tasks as it has workers: a task that waits on its machine has no term.
        """
        worker, tasks = self._workers[number], self._tasks.open
        if not worker.is_ready:
            return {GETTING_READY: READY_SECONDS}
        terms = {
            sequence: self._term(worker, tasks[sequence].flops) if sequence in tasks else TERM_SECONDS
            for sequence in islice(worker.tasks, worker.capacity)
        }
        if terms or not worker.is_sum_requested:
            return terms
        # a node agent may do any part of its sum again, if it has lost workers of its own
        flops = sum(tasks[sequence].flops for sequence in worker.summed)
        return {GIVING_SUMS: self._term(worker, flops, worker.capacity) if flops else TERM_SECONDS}

    def _term(self, worker: ScheduledWorker, flops: float, workers: int = 1) -> float:
        """Seconds that a remote worker may take for so much work, which ``workers`` of a node agent share."""
        if flops == 0.0:
            seconds = UNKNOWN_TERM_SECONDS
        elif worker.pace.flops:
            seconds = TERM_FACTOR * worker.pace.foreseen(flops)
        elif self._tasks.pace.flops:
            seconds = OTHERS_TERM_FACTOR * self._tasks.pace.foreseen(flops)
        else:
            seconds = flops / SLOWEST_FLOPS_PER_SECOND
        return max(TERM_SECONDS, seconds / workers)

    # --- tasks fail, and workers end ------------------------------------------------------------------------------

    def avoid_place(self, number: int, sequence: int) -> None:
        """Let workers in other places try this task first."""
        task = self._tasks.open.get(sequence)
        if task is not None:
            task.failed_at.add(self._workers[number].place)

    def doubted(self, number: int, sequence: int, reason: str) -> list[Instruction]:
        """A worker's reply to a task is unusable: another worker tries, and no failure is counted yet."""
        if not self._release(number, sequence):
            return [DropReply(number, sequence)]
        self.avoid_place(number, sequence)
        return [*self._requeue(number, sequence, reason), *self._assign_tasks(self._ready.values())]

    def failed(self, number: int, sequence: int, reason: str) -> list[Instruction]:
        """A worker has failed a task. It lives on unless it fails every task, as on a GPU that is lost."""
        if not self._release(number, sequence):
            return [DropReply(number, sequence)]
        instructions: list[Instruction] = []
        if sequence in self._tasks.open:  # else it was cancelled: what it needs may be gone
            worker = self._workers[number]
            self.avoid_place(number, sequence)
            instructions += self._count_failure(number, sequence, reason)
            worker.failed_over.add(sequence)
            if len(worker.failed_over) >= TRIES and not worker.is_dismissed:
                worker.is_dismissed = True
                instructions.append(ReplaceWorker(number, f"it failed over {TRIES} tasks in a row; the last: {reason}"))
        return [*instructions, *self._assign_tasks(self._ready.values())]

    def lacked_memory(self, number: int, sequence: int, reason: str) -> list[Instruction]:
        """A worker lacked memory for a task: it retires, unless it is the last or another has just retired.

        All workers may run out of memory at once. So one retires at a time, and a failure of a task that was assigned
        before that worker had ended says nothing about the memory that is free now.
        """
        if not self._release(number, sequence):
            return [DropReply(number, sequence)]
        worker = self._workers[number]
        is_news = self._retiring is None and sequence not in self._before_retirement
        self._before_retirement.discard(sequence)
        if is_news and self.workers == worker.capacity:
            instructions = self._count_failure(number, sequence, reason)
        else:
            instructions = self._requeue(number, sequence, reason)
            if is_news:
                self._retiring = worker
                self.workers -= worker.capacity
                instructions.append(RetireWorker(number, reason))
        return [*instructions, *self._assign_tasks(self._ready.values())]

    def died(self, number: int, reason: str, is_blameless: bool = False) -> list[Instruction]:
        """A worker's process has ended: a failure of its task, if it had one alone.

        Of a remote worker only the connection is known to be lost, which is no failure of a task. ``is_blameless``: a
        local worker was ended from outside, which is no failure of a task or of its start.
        """
        worker = self._workers.pop(number, None)
        if worker is None:
            return []
        if not worker.is_ready and not worker.is_remote:
            self._deaths_before_ready += not is_blameless
            if self._deaths_before_ready >= TRIES:
                return [Abort(number, f"{TRIES} workers in a row ended before they were ready; the last: {reason}")]
            return [StartWorker(self._add(worker.place))]
        self._ready.pop(number, None)
        if worker.is_remote:
            lost = self._repeat(worker, [*worker.tasks, *worker.summed], reason)
            self.workers -= worker.capacity if worker.is_ready and worker is not self._retiring else 0
        else:
            if is_blameless:
                lost = self._repeat(worker, worker.tasks, reason)
            elif worker is self._retiring or worker.is_dismissed:
                lost = []
                self._tasks.put_back(worker.tasks)
            else:
                lost = self._blame(worker, reason)
            self._tasks.put_back(worker.summed)
        if worker.summed:
            lost.append(InvalidatePartial(number, tuple(worker.summed), reason))
        if worker.is_sum_requested and not worker.is_remote:
            self._deaths_before_sums += not is_blameless
            if self._deaths_before_sums >= TRIES:
                ended = f"{TRIES} workers in a row ended before they had sent their sums; the last: {reason}"
                lost.append(Abort(number, ended))
        if worker is self._retiring:
            self._retiring = None
            self._before_retirement = {sequence for other in self._ready.values() for sequence in other.tasks}
        elif not worker.is_remote:
            lost.append(StartWorker(self._add(worker.place)))
        return [*lost, *self._assign_tasks(self._ready.values())]

    def _repeat(self, worker: ScheduledWorker, sequences: Iterable[int], reason: str) -> list[Instruction]:
        """These tasks of a lost worker wait again; a `Requeue` for each that it had."""
        self._tasks.put_back(sequences)
        return [Requeue(worker.number, sequence, reason) for sequence in worker.tasks if sequence in self._tasks.open]

    def _blame(self, worker: ScheduledWorker, reason: str) -> list[Instruction]:
        """One of a dead worker's tasks has failed: the only one, or nobody knows which."""
        first = next(iter(worker.tasks), None)
        if first is None:
            return []
        if len(worker.tasks) == 1:
            return self._count_failure(worker.number, first, reason)
        self._tasks.put_back(worker.tasks)
        for task in filter(None, map(self._tasks.open.get, worker.tasks)):
            task.is_suspect = True
        return [Requeue(worker.number, first, reason)] if first in self._tasks.open else []

    def _release(self, number: int, sequence: int) -> bool:
        worker = self._workers.get(number)
        return worker is not None and worker.release(sequence)

    def _assign_tasks(self, workers: Iterable[ScheduledWorker]) -> list[Instruction]:
        """Assign tasks to these workers, unless one retires."""
        return [] if self._retiring is not None else [*self._tasks.assign(workers, self.workers)]

    def _requeue(self, number: int, sequence: int, reason: str) -> list[Instruction]:
        """Requeue a task at the front, unless it was cancelled."""
        if sequence not in self._tasks.open:
            return []
        self._tasks.put_back([sequence])
        return [Requeue(number, sequence, reason)]

    def _count_failure(self, number: int, sequence: int, reason: str) -> list[Instruction]:
        task = self._tasks.open.get(sequence)
        if task is None:  # cancelled, or answered by a worker that was thought dead
            return []
        task.failures += 1
        if task.failures >= TRIES:
            del self._tasks.open[sequence]
            return [Abort(number, f"{task.name}: given up after {TRIES} workers; the last: {reason}", sequence)]
        return self._requeue(number, sequence, reason)
