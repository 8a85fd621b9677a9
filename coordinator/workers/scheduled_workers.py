"""The workers of the task scheduler, by number: where they are, how they have done, and how long tasks take.

Each worker has a new number, so that late messages of a dead worker can be told from those of its replacement. Its
*place* is its slot, perhaps a GPU, which its replacement takes over, or the key of a remote worker.

The *pace* of workers is the seconds per FLOP of those of their tasks whose work was foreseen: of all workers, and of
each remote worker. By the first the scheduler foresees how long a task takes.

A task that a remote worker runs has a *term*: many times its foreseen seconds, by the pace of that worker, or of all
workers. Nothing else bounds a process on another machine. Never a task's state, never a clock.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

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


class ScheduledWorkers:
    """Workers that have started or joined, and have not ended."""

    def __init__(self) -> None:
        self.starting: set[int] = set()
        """Those that are not ready."""
        self._added = 0
        self._places: dict[int, int | str] = {}
        self.capacities: dict[int, int] = {}
        """Remote worker -> tasks that it runs at a time."""
        self.failed_over: dict[int, set[int]] = {}
        """Worker -> tasks that it failed since its last success, if there are any."""
        self._dismissed: set[int] = set()

    def add(self, place: int | str, capacity: int | None = None) -> int:
        """Number a new worker, which is not ready; ``capacity``: of a remote worker."""
        worker = self._added
        self._added += 1
        self._places[worker] = place
        self.starting.add(worker)
        if capacity is not None:
            self.capacities[worker] = capacity
        return worker

    def forget(self, worker: int) -> int | str:
        """Remove a worker that has ended; returns its place."""
        self.starting.discard(worker)
        self._dismissed.discard(worker)
        self.failed_over.pop(worker, None)
        self.capacities.pop(worker, None)
        return self._places.pop(worker)

    def place(self, worker: int) -> int | str:
        """The slot of a local worker, or the key of a remote one."""
        return self._places[worker]

    def is_remote(self, worker: int) -> bool:
        """Whether nobody here started it."""
        return worker in self.capacities

    def capacity(self, worker: int) -> int:
        """Tasks that it runs at a time."""
        return self.capacities.get(worker, 1)

    def lower_capacity(self, worker: int, capacity: int) -> int:
        """Workers of a node agent have retired; returns how many."""
        gone = self.capacities[worker] - capacity
        assert capacity > 0 and gone > 0, (worker, capacity, gone)
        self.capacities[worker] = capacity
        return gone

    def failed(self, worker: int, sequence: int) -> int:
        """A worker has failed a task; returns how many it failed since its last success."""
        failed_over = self.failed_over.setdefault(worker, set())
        failed_over.add(sequence)
        return len(failed_over)

    def dismiss(self, worker: int) -> bool:
        """Mark a worker that is to be replaced, and has not ended; whether it was not marked before."""
        is_news = worker not in self._dismissed
        self._dismissed.add(worker)
        return is_news

    def is_dismissed(self, worker: int) -> bool:
        """Whether it gets no more tasks."""
        return worker in self._dismissed

    def may_try(self, worker: int, failed_at: Collection[int | str], ready: set[int]) -> bool:
        """Whether a task that has failed in these places may be tried in this worker's: not in it, or in all."""
        return self._places[worker] not in failed_at or self.have_all_failed(failed_at, ready)

    def have_all_failed(self, failed_at: Collection[int | str], ready: set[int]) -> bool:
        """Whether a task has failed in the places of all workers that are ready, or are soon."""
        to_come = self.starting - self.capacities.keys()  # a remote worker may never be ready
        return all(self._places[other] in failed_at for other in ready | to_come)


class Paces:
    """The pace of all workers, and those of remote workers that are there."""

    def __init__(self) -> None:
        self._flops = 0.0
        self.seconds = 0.0
        """Of all answered tasks whose work was foreseen."""
        self._remote: dict[int, tuple[float, float]] = {}  # remote worker -> (FLOPs, seconds) of those that it answered

    def answered(self, flops: float, seconds: float, remote_worker: int | None) -> None:
        """A task of known work took so long. ``remote_worker``: the one that did it; None for a local worker."""
        self._flops += flops
        self.seconds += seconds
        if remote_worker is not None:
            flops_before, seconds_before = self._remote.get(remote_worker, (0.0, 0.0))
            self._remote[remote_worker] = flops_before + flops, seconds_before + seconds

    def forget(self, worker: int) -> None:
        """A worker has ended."""
        self._remote.pop(worker, None)

    def foreseen(self, flops: float) -> float:
        """Seconds of a task of so much work at the pace of all workers; inf if either is unknown."""
        return flops / self._flops * self.seconds if flops and self._flops else math.inf

    def foreseen_together(self, flops: Sequence[float]) -> float:
        """Seconds of several tasks, one after another."""
        if not self._flops or not all(flops):
            return math.inf
        return sum([each / self._flops * self.seconds for each in flops])

    def term(self, worker: int, flops: float | None, workers: int = 1) -> float:
        """Seconds that a remote worker may take for so much work, which ``workers`` of a node agent share.

        0 FLOPs: the work is unknown; None: there is none to be done.
        """
        return TERM_SECONDS if flops is None else max(TERM_SECONDS, self._unbounded_term(worker, flops) / workers)

    def _unbounded_term(self, worker: int, flops: float) -> float:
        own_flops, own_seconds = self._remote.get(worker, (0.0, 0.0))
        if flops == 0.0:
            return UNKNOWN_TERM_SECONDS
        if own_flops:
            return TERM_FACTOR * flops / own_flops * own_seconds
        if self._flops:
            return OTHERS_TERM_FACTOR * flops / self._flops * self.seconds
        return flops / SLOWEST_FLOPS_PER_SECOND
