"""Tasks that were submitted together, and the handler of their replies. Never a socket, never a vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.workers.block_cache import CachedPayload
from coordinator.workers.task import PoolError, PoolTask, Reply, ReplyHandler
from edge.protocol.fixed_point import FixedPointSums
from edge.protocol.messages import PartialSum, Totals


@dataclass(eq=False)
class PoolTaskGroup:
    """One group of a pool (`coordinator.workers.task.TaskGroup`), with the tasks that are left of it."""

    on_reply: ReplyHandler
    run_event_loop: Callable[[], None]
    """One turn of the pool's event loop."""
    drop: Callable[[Sequence[int]], None]
    """Cancels tasks."""
    request_partial_sums: Callable[[Sequence[int]], None]
    """Requests the partial sums with these tasks' updates in them, unless that was done."""
    tasks: int = 0
    left: set[int] = field(default_factory=set)
    """Tasks that are neither answered nor cancelled."""
    in_partial_sums: set[int] = field(default_factory=set)
    """Tasks whose updates are in the partial sum of a worker."""
    requeued: set[int] = field(default_factory=set)
    """Tasks whose partial sum was lost: their replies have been handled."""
    sums: FixedPointSums | None = None
    """The partial sums received so far, added up."""
    seconds: float = 0.0
    """How long the worker took over the task whose reply is handled."""
    error: Exception | None = None
    """Exception of ``on_reply``."""

    def wait(self) -> None:
        """As `coordinator.workers.task.TaskGroup.wait`."""
        while self.left:
            self.run_event_loop()
        if self.error is not None:
            raise self.error

    def collect(self) -> Totals:
        """As `coordinator.workers.task.TaskGroup.collect`."""
        while (sums := self.try_collect()) is None:
            self.run_event_loop()
        if sums.clients != self.tasks:
            raise PoolError(f"workers have added up {sums.clients} updates of {self.tasks} tasks")
        return sums.totals

    def try_collect(self) -> PartialSum | None:
        """All updates that workers have added up; None, and what is missing is requested, while a sum is missing."""
        if not self.left and self.in_partial_sums:
            self.request_partial_sums(sorted(self.in_partial_sums))
        if self.left or self.in_partial_sums:
            return None
        return self.sums.message() if self.sums else PartialSum(0, 0, {})

    def cancel(self) -> None:
        """As `coordinator.workers.task.TaskGroup.cancel`."""
        if self.left or self.in_partial_sums:
            self.drop(sorted(self.left | self.in_partial_sums))

    def deliver(self, sequence: int, task: PoolTask, reply: Reply, seconds: float = 0.0) -> None:
        """Call the handler with a reply, once; an exception is raised by `wait`, and the other tasks are cancelled."""
        if sequence in self.requeued:
            return
        self.seconds = seconds
        try:
            self.on_reply(task, reply)
        except Exception as error:
            self.error = error
            self.cancel()

    def add_partial_sum(self, worker: int, round: int, sums: PartialSum) -> None:
        """Add a worker's partial sum of this group's updates. PoolError if its shapes differ from the others'."""
        self.sums = self.sums or FixedPointSums(round)
        try:
            self.sums.merge(sums)
        except ValueError as error:
            raise PoolError(f"worker {worker}: {error}") from None


class OpenTask(NamedTuple):
    """A task that is neither done nor cancelled."""

    task: PoolTask
    group: PoolTaskGroup
    cached_payload: CachedPayload | None
    """None until its payload is built"""


class TaskGroups:
    """All tasks that are open, by sequence number: 1, 2, ... in order of submission."""

    def __init__(self, release: Callable[[CachedPayload], None]) -> None:
        """``release`` is called with the cached payload of each task that is over."""
        self._release = release
        self.open: dict[int, OpenTask] = {}
        """Changed here alone."""
        self._submitted = 0

    def add(self, opened: OpenTask) -> int:
        """Add an open task; returns its sequence number."""
        self._submitted += 1
        self.open[self._submitted] = opened
        opened.group.left.add(self._submitted)
        opened.group.tasks += 1
        return self._submitted

    def replace(self, sequence: int, task: PoolTask, cached_payload: CachedPayload) -> OpenTask:
        """An open task with the payload that was built for it."""
        opened = self.open[sequence]
        self.open[sequence] = opened._replace(task=task, cached_payload=cached_payload)
        return self.open[sequence]

    def mark_in_partial_sum(self, sequence: int) -> OpenTask:
        """Note that a task's update is in its worker's partial sum: the task stays open."""
        opened = self.open[sequence]
        opened.group.left.remove(sequence)
        opened.group.in_partial_sums.add(sequence)
        return opened

    def invalidate_partial_sums(self, sequences: Sequence[int]) -> None:
        """A worker's partial sum was lost: the tasks in it are to be done again."""
        for sequence in sequences:
            group = self.open[sequence].group
            group.in_partial_sums.remove(sequence)
            group.left.add(sequence)
            group.requeued.add(sequence)

    def close(self, sequence: int) -> OpenTask:
        """Remove a task that is done or cancelled."""
        closed = self.open.pop(sequence)
        closed.group.left.discard(sequence)
        closed.group.in_partial_sums.discard(sequence)
        if closed.cached_payload is not None:
            self._release(closed.cached_payload)
        return closed

    def withdraw(self, sequence: int) -> OpenTask:
        """Remove a task as if it had never been in its group."""
        closed = self.close(sequence)
        closed.group.tasks -= 1
        return closed

    def close_all(self) -> None:
        """Remove all tasks."""
        for sequence in list(self.open):
            self.close(sequence)
