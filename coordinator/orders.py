"""Tasks that were submitted together, and who hears their replies. Never a socket, and never a look into a reply."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from coordinator.parcels import Parcel
from coordinator.tasks import Heard, PoolTask, Reply


@dataclass(eq=False)
class PoolOrder:
    """One order of a pool (`coordinator.tasks.Order`), which knows what is left of it."""

    heard: Heard
    turn: Callable[[], None]
    """Waits until something happens in the pool, and handles it."""
    drop: Callable[[Sequence[int]], None]
    """Has the pool drop these tasks."""
    left: set[int] = field(default_factory=set)
    """Tasks that are neither heard nor dropped."""
    trouble: Exception | None = None
    """What ``heard`` raised."""

    def wait(self) -> None:
        """As `coordinator.tasks.Order.wait`."""
        while self.left:
            self.turn()
        if self.trouble is not None:
            raise self.trouble

    def cancel(self) -> None:
        """As `coordinator.tasks.Order.cancel`."""
        if self.left:
            self.drop(sorted(self.left))

    def hear(self, task: PoolTask, reply: Reply) -> None:
        """Pass a reply on; an exception is kept for `wait`, and the other tasks are dropped."""
        try:
            self.heard(task, reply)
        except Exception as error:
            self.trouble = error
            self.cancel()


class OpenTask(NamedTuple):
    """A task that is not over."""

    task: PoolTask
    order: PoolOrder
    parcel: Parcel


class Orders:
    """All tasks that are open, by sequence number: 1, 2, ... in order of submission."""

    def __init__(self) -> None:
        self._open: dict[int, OpenTask] = {}
        self._submitted = 0

    def add(self, opened: OpenTask) -> int:
        """Open a task, and number it."""
        self._submitted += 1
        self._open[self._submitted] = opened
        opened.order.left.add(self._submitted)
        return self._submitted

    def __getitem__(self, sequence: int) -> OpenTask:
        return self._open[sequence]

    def get(self, sequence: int) -> OpenTask | None:
        """A task, if it is open."""
        return self._open.get(sequence)

    def close(self, sequence: int) -> OpenTask:
        """A task is over."""
        closed = self._open.pop(sequence)
        closed.order.left.remove(sequence)
        return closed

    def close_all(self) -> None:
        """No task is wanted any more."""
        for sequence in list(self._open):
            self.close(sequence)
