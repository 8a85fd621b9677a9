"""How long tasks take: the seconds that are foreseen, and the terms of remote workers. Never a clock.

The *pace* of workers is the seconds per FLOP of those of their tasks whose work was foreseen: of all workers, and of
each remote worker. By the first the scheduler foresees how long a task takes.

A task that a remote worker runs has a *term*: many times its foreseen seconds, by the pace of that worker, or of all
workers. Nothing else bounds a process on another machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
