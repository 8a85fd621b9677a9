"""What the scheduler of a pool tell it to do."""

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
    """This task's reply counts: pass it on."""

    sequence: int


@dataclass(frozen=True)
class DropReply:
    """This reply does not count: its task is over, or the deposit lost with its worker."""

    worker: int
    sequence: int


@dataclass(frozen=True)
class Requeue:
    """Nothing to do but to record it: this task was taken from this worker and waits for another."""

    worker: int
    sequence: int
    reason: str


@dataclass(frozen=True)
class InvalidatePartial:
    """These deposits of this worker are lost and wait for another."""

    worker: int
    sequences: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class RequestPartial:
    """Ask this worker for its sums, which have this task's update in them."""

    worker: int
    sequence: int


@dataclass(frozen=True)
class DeliverPartial:
    """This worker's sums have come: these tasks are over."""

    worker: int
    sequences: tuple[int, ...]


@dataclass(frozen=True)
class CancelTask:
    """Tell this worker that this task in its hand is not wanted any more."""

    worker: int
    sequence: int


@dataclass(frozen=True)
class RetireWorker:
    """End this worker, which nobody replaces: there is too little memory for so many."""

    worker: int
    reason: str


@dataclass(frozen=True)
class ReplaceWorker:
    """End this worker, which will be replaced if it is ours: it does nothing right."""

    worker: int
    reason: str


@dataclass(frozen=True)
class Abort:
    """The run cannot go on, or not with this task; this worker's log is the place to look."""

    worker: int
    reason: str
    sequence: int = 0
    """The task that ended three workers; 0 if it was none."""


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
