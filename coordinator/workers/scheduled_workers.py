"""The workers of the task scheduler, by number: where they are, and how they have done. Never their tasks.

Each worker has a new number, so that late messages of a dead worker can be told from those of its replacement. Its
*place* is its slot, perhaps a GPU, which its replacement takes over, or the key of a remote worker.
"""

from __future__ import annotations

from collections.abc import Collection


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
