"""The instructions of the task scheduler, which the pool executes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StartWorker:
    """Start a worker with this number."""

    worker: int


@dataclass(frozen=True)
class SendTask:
    """Send this task to this worker."""

    worker: int
    sequence: int


@dataclass(frozen=True)
class DeliverReply:
    """Deliver the reply to this task: it counts."""

    sequence: int


@dataclass(frozen=True)
class DropReply:
    """Drop this reply: its task is over, or the partial sum with its update was lost."""

    worker: int
    sequence: int


@dataclass(frozen=True)
class Requeue:
    """Record that this task was taken from this worker, and waits for another."""

    worker: int
    sequence: int
    reason: str


@dataclass(frozen=True)
class InvalidatePartial:
    """The partial sum of this worker is lost: the tasks in it wait for another."""

    worker: int
    sequences: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class RequestPartial:
    """Request this worker's partial sum, which has this task's update in it."""

    worker: int
    sequence: int


@dataclass(frozen=True)
class DeliverPartial:
    """Deliver this worker's partial sum: the tasks in it are over."""

    worker: int
    sequences: tuple[int, ...]


@dataclass(frozen=True)
class CancelTask:
    """Cancel this task, which is assigned to this worker."""

    worker: int
    sequence: int


@dataclass(frozen=True)
class RetireWorker:
    """End this worker without a replacement: there is too little memory for so many."""

    worker: int
    reason: str


@dataclass(frozen=True)
class ReplaceWorker:
    """End this worker, which fails all tasks; a local one is replaced."""

    worker: int
    reason: str


@dataclass(frozen=True)
class Abort:
    """End the run, or give this task up; the cause is in this worker's log."""

    worker: int
    reason: str
    sequence: int = 0
    """The task that ended three workers; 0 for none."""


Instruction = (
    StartWorker
    | SendTask
    | DeliverReply
    | DropReply
    | Requeue
    | InvalidatePartial
    | RequestPartial
    | DeliverPartial
    | CancelTask
    | RetireWorker
    | ReplaceWorker
    | Abort
)
