"""The clock of a run that its user may stop while it computes.

A round of a fleet that is large enough, or whose clients come, go and slow down often enough, takes hours to compute,
and no worker is waited for meanwhile. Virtual times are those of `costmodel.clock.Clock`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from numpy.typing import ArrayLike

from costmodel.clock import Clock
from costmodel.fleet.conditions import Conditions
from costmodel.visits.leftovers import Leftovers, Solution
from costmodel.visits.timeline import Timeline
from costmodel.visits.work import Work, Works
from scenarios.run.host import interruptible


class StoppableClock(Clock):
    """A clock whose computations raise Stopped as soon as the user stops the run; it is of no use after that."""

    def first_available(self, clients: Sequence[int]) -> float:
        with interruptible():
            return super().first_available(clients)

    def solve(
        self, starts: ArrayLike, works: Sequence[Work] | Works, conditions: Conditions, until: float = math.inf
    ) -> Timeline:
        with interruptible():
            return super().solve(starts, works, conditions, until)

    def solve_beside(
        self,
        leftovers: Leftovers | None,
        starts: ArrayLike,
        works: Sequence[Work],
        conditions: Conditions,
        until: float = math.inf,
    ) -> Solution:
        with interruptible():
            return super().solve_beside(leftovers, starts, works, conditions, until)

    def begin(self, work: Work, conditions: Conditions, order: int) -> None:
        with interruptible():
            super().begin(work, conditions, order)

    def next(self, until: float = math.inf) -> Any:
        with interruptible():
            return super().next(until)
