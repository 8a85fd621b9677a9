"""Tasks that were submitted together, and who hears their replies. Never a socket, and never a look into an update."""

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
    """One order of a pool (`coordinator.workers.task.TaskGroup`), which knows what is left of it."""

    on_reply: ReplyHandler
    run_event_loop: Callable[[], None]
    """Waits until something happens in the pool, and handles it."""
    drop: Callable[[Sequence[int]], None]
    """Has the pool drop these tasks."""
    ask: Callable[[Sequence[int]], None]
    """Has the pool ask for the sums of the workers that hold these deposits, if it has not."""
    tasks: int = 0
    left: set[int] = field(default_factory=set)
    """Tasks that are neither answered nor dropped."""
    in_partial_sums: set[int] = field(default_factory=set)
    """Tasks that were answered by workers which hold their updates."""
    requeued: set[int] = field(default_factory=set)
    """Deposits that were lost once: they have been heard."""
    sums: FixedPointSums | None = None
    """What was collected so far"""
    trouble: Exception | None = None
    """What ``on_reply`` raised."""

    def wait(self) -> None:
        """As `coordinator.workers.task.TaskGroup.wait`."""
        while self.left:
            self.run_event_loop()
        if self.trouble is not None:
            raise self.trouble

    def collect(self) -> Totals:
        """As `coordinator.workers.task.TaskGroup.collect`."""
        while self.left or self.in_partial_sums:
            if not self.left:
                self.ask(sorted(self.in_partial_sums))
            self.run_event_loop()
        counted = self.sums.clients if self.sums else 0
        if counted != self.tasks:
            raise PoolError(f"workers have added up {counted} updates, but {self.tasks} were asked for")
        return self.sums.message().totals if self.sums else {}

    def cancel(self) -> None:
        """As `coordinator.workers.task.TaskGroup.cancel`."""
        if self.left or self.in_partial_sums:
            self.drop(sorted(self.left | self.in_partial_sums))

    def deliver(self, sequence: int, task: PoolTask, reply: Reply) -> None:
        """Pass a reply on, once; an exception is kept for `wait`, and the other tasks are dropped."""
        if sequence in self.requeued:
            return
        try:
            self.on_reply(task, reply)
        except Exception as error:
            self.trouble = error
            self.cancel()

    def add_partial_sum(self, worker: int, round: int, sums: PartialSum) -> None:
        """What a worker has added up of this order's updates. PoolError for what does not fit to the others."""
        self.sums = self.sums or FixedPointSums(round)
        try:
            self.sums.merge(sums)
        except ValueError as error:
            raise PoolError(f"worker {worker}: {error}") from None


class OpenTask(NamedTuple):
    """A task that is not over."""

    task: PoolTask
    group: PoolTaskGroup
    cached_payload: CachedPayload


class TaskGroups:
    """All tasks that are open, by sequence number: 1, 2, ... in order of submission."""

    def __init__(self, release: Callable[[CachedPayload], None]) -> None:
        """``release`` is told that a task which needed a cached payload is over."""
        self._release = release
        self._open: dict[int, OpenTask] = {}
        self._submitted = 0

    def add(self, opened: OpenTask) -> int:
        """Open a task, and number it."""
        self._submitted += 1
        self._open[self._submitted] = opened
        opened.group.left.add(self._submitted)
        opened.group.tasks += 1
        return self._submitted

    def __getitem__(self, sequence: int) -> OpenTask:
        return self._open[sequence]

    def get(self, sequence: int) -> OpenTask | None:
        """A task, if it is open."""
        return self._open.get(sequence)

    def mark_in_partial_sum(self, sequence: int) -> OpenTask:
        """A task was answered, but its worker holds the update: it stays open."""
        opened = self._open[sequence]
        opened.group.left.remove(sequence)
        opened.group.in_partial_sums.add(sequence)
        return opened

    def invalidate_partial_sums(self, sequences: Sequence[int]) -> None:
        """Deposits were lost: these tasks are to be answered again."""
        for sequence in sequences:
            order = self._open[sequence].group
            order.in_partial_sums.remove(sequence)
            order.left.add(sequence)
            order.requeued.add(sequence)

    def close(self, sequence: int) -> OpenTask:
        """A task is over."""
        closed = self._open.pop(sequence)
        closed.group.left.discard(sequence)
        closed.group.in_partial_sums.discard(sequence)
        self._release(closed.cached_payload)
        return closed

    def close_all(self) -> None:
        """No task is wanted any more."""
        for sequence in list(self._open):
            self.close(sequence)
