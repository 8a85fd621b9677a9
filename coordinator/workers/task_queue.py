"""The open tasks of the task scheduler, and the order in which they wait. Never a worker's state.

A task is open until it is over or cancelled. An open task waits, or is assigned to a worker, or its update is in a
worker's partial sum. Tasks wait in the order of their submission; those that are put back come first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class ScheduledTask:
    """What the scheduler knows of a task."""

    name: str
    """For errors."""
    flops: float
    """Foreseen work; 0 if it is unknown."""
    preferred: int | None = None
    """The worker that has what the task needs, and may be lost since."""
    failures: int = 0
    local_workers: set[int] = field(default_factory=set)
    """Local workers that it was sent to: the reply of one that has died since counts."""
    failed_at: set[int | str] = field(default_factory=set)
    """Places where it has failed."""
    is_suspect: bool = False
    """Whether a local worker has died that had it and others."""


class TaskQueue:
    """Open tasks by number, and those of them that wait."""

    def __init__(self) -> None:
        self.open: dict[int, ScheduledTask] = {}
        """All that are neither over nor cancelled; it is changed here alone, as `waiting` is."""
        self.waiting: deque[int] = deque()
        """The numbers of those that wait, in order."""

    def add(self, sequence: int, task: ScheduledTask) -> None:
        """Add a new task, which waits."""
        assert sequence not in self.open, sequence
        self.open[sequence] = task
        self.waiting.append(sequence)

    def take(self, sequence: int) -> ScheduledTask:
        """A task waits no longer: it is assigned."""
        self.waiting.remove(sequence)  # among the first
        return self.open[sequence]

    def put_back(self, sequences: Iterable[int]) -> None:
        """Assigned tasks, and those of a lost partial sum, wait again, before all others; cancelled ones do not."""
        self.waiting.extendleft(sequence for sequence in reversed([*sequences]) if sequence in self.open)

    def close(self, sequence: int) -> None:
        """A task that does not wait is over."""
        del self.open[sequence]

    def stop_waiting(self, sequence: int) -> bool:
        """A task was answered though it was requeued; whether it waited."""
        if sequence not in self.waiting:
            return False
        self.waiting.remove(sequence)
        return True

    def cancel(self, sequences: Iterable[int]) -> set[int]:
        """Cancel tasks; returns those that were open."""
        over = {sequence for sequence in sequences if self.open.pop(sequence, None) is not None}
        self.waiting = deque(sequence for sequence in self.waiting if sequence not in over)
        return over
