"""Whose partial sums have which tasks in them, and which sums are requested. Never the sums themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterable


class PartialSumTracker:
    """The partial sums of workers that are ready: a sum counts when it has come, and never if its worker died."""

    def __init__(self) -> None:
        self._tasks: dict[int, list[int]] = {}  # worker -> tasks in its partial sum
        self._requested: set[int] = set()  # workers whose partial sums were requested, and have not come
        self._deaths = 0

    def add(self, worker: int, sequence: int) -> None:
        """A worker has added the update of a task to its partial sum."""
        self._tasks.setdefault(worker, []).append(sequence)

    def tasks(self, worker: int) -> tuple[int, ...]:
        """The open tasks in the partial sum of a worker."""
        return tuple(self._tasks.get(worker, ()))

    def is_requested(self, worker: int) -> bool:
        """Whether the partial sum of a worker was requested, and has not come."""
        return worker in self._requested

    def request(self, sequences: Iterable[int]) -> dict[int, int]:
        """The partial sums with these tasks in them that were not requested, and are now: worker -> a task in it."""
        wanted = set(sequences)
        workers = {
            worker: in_partial[0]
            for worker, in_partial in self._tasks.items()
            if worker not in self._requested and not wanted.isdisjoint(in_partial)
        }
        self._requested.update(workers)
        return workers

    def come(self, worker: int) -> tuple[int, ...]:
        """A requested partial sum has come; returns the open tasks in it."""
        self._requested.remove(worker)
        self._deaths = 0
        return tuple(self._tasks.pop(worker, ()))

    def lose(self, worker: int, is_death: bool) -> tuple[tuple[int, ...], int]:
        """A worker has ended; returns (open tasks in its partial sum, see below).

        The number of workers in a row that have died, of which ``is_death`` says whether this is one, before they had
        sent a requested partial sum; 0 if this worker's was not requested.
        """
        lost = tuple(self._tasks.pop(worker, ()))
        if worker not in self._requested:
            return lost, 0
        self._requested.remove(worker)
        self._deaths += is_death
        return lost, self._deaths

    def cancel(self, over: Collection[int]) -> None:
        """These tasks are cancelled."""
        for worker, in_partial in self._tasks.items():
            self._tasks[worker] = [sequence for sequence in in_partial if sequence not in over]
