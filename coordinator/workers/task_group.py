"""Tasks that were submitted together, and who hears their replies. Never a socket, and never a look into an update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.workers.block_cache import Parcel
from coordinator.workers.task import Heard, PoolError, PoolTask, Reply
from edge.protocol.fixed_point import ExactSums
from edge.protocol.messages import Sums, Totals


@dataclass(eq=False)
class PoolOrder:
    """One order of a pool (`coordinator.workers.task.Order`), which knows what is left of it."""

    heard: Heard
    turn: Callable[[], None]
    """Waits until something happens in the pool, and handles it."""
    drop: Callable[[Sequence[int]], None]
    """Has the pool drop these tasks."""
    ask: Callable[[Sequence[int]], None]
    """Has the pool ask for the sums of the workers that hold these deposits, if it has not."""
    tasks: int = 0
    left: set[int] = field(default_factory=set)
    """Tasks that are neither answered nor dropped."""
    deposits: set[int] = field(default_factory=set)
    """Tasks that were answered by workers which hold their updates."""
    repeated: set[int] = field(default_factory=set)
    """Deposits that were lost once: they have been heard."""
    sums: ExactSums | None = None
    """What was collected so far"""
    trouble: Exception | None = None
    """What ``heard`` raised."""

    def wait(self) -> None:
        """As `coordinator.workers.task.Order.wait`."""
        while self.left:
            self.turn()
        if self.trouble is not None:
            raise self.trouble

    def collect(self) -> Totals:
        """As `coordinator.workers.task.Order.collect`."""
        while self.left or self.deposits:
            if not self.left:
                self.ask(sorted(self.deposits))
            self.turn()
        counted = self.sums.clients if self.sums else 0
        if counted != self.tasks:
            raise PoolError(f"workers have added up {counted} updates, but {self.tasks} were asked for")
        return self.sums.message().totals if self.sums else {}

    def cancel(self) -> None:
        """As `coordinator.workers.task.Order.cancel`."""
        if self.left or self.deposits:
            self.drop(sorted(self.left | self.deposits))

    def hear(self, sequence: int, task: PoolTask, reply: Reply) -> None:
        """Pass a reply on, once; an exception is kept for `wait`, and the other tasks are dropped."""
        if sequence in self.repeated:
            return
        try:
            self.heard(task, reply)
        except Exception as error:
            self.trouble = error
            self.cancel()

    def gather(self, worker: int, round: int, sums: Sums) -> None:
        """What a worker has added up of this order's updates. PoolError for what does not fit to the others."""
        self.sums = self.sums or ExactSums(round)
        try:
            self.sums.merge(sums)
        except ValueError as error:
            raise PoolError(f"worker {worker}: {error}") from None


class OpenTask(NamedTuple):
    """A task that is not over."""

    task: PoolTask
    order: PoolOrder
    parcel: Parcel


class Orders:
    """All tasks that are open, by sequence number: 1, 2, ... in order of submission."""

    def __init__(self, release: Callable[[Parcel], None]) -> None:
        """``release`` is told that a task which needed a parcel is over."""
        self._release = release
        self._open: dict[int, OpenTask] = {}
        self._submitted = 0

    def add(self, opened: OpenTask) -> int:
        """Open a task, and number it."""
        self._submitted += 1
        self._open[self._submitted] = opened
        opened.order.left.add(self._submitted)
        opened.order.tasks += 1
        return self._submitted

    def __getitem__(self, sequence: int) -> OpenTask:
        return self._open[sequence]

    def get(self, sequence: int) -> OpenTask | None:
        """A task, if it is open."""
        return self._open.get(sequence)

    def deposit(self, sequence: int) -> OpenTask:
        """A task was answered, but its worker holds the update: it stays open."""
        opened = self._open[sequence]
        opened.order.left.remove(sequence)
        opened.order.deposits.add(sequence)
        return opened

    def recall(self, sequences: Sequence[int]) -> None:
        """Deposits were lost: these tasks are to be answered again."""
        for sequence in sequences:
            order = self._open[sequence].order
            order.deposits.remove(sequence)
            order.left.add(sequence)
            order.repeated.add(sequence)

    def close(self, sequence: int) -> OpenTask:
        """A task is over."""
        closed = self._open.pop(sequence)
        closed.order.left.discard(sequence)
        closed.order.deposits.discard(sequence)
        self._release(closed.parcel)
        return closed

    def close_all(self) -> None:
        """No task is wanted any more."""
        for sequence in list(self._open):
            self.close(sequence)
