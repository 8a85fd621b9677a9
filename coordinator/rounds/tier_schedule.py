"""When aggregators meet what is above them: the table ``tiers`` of a scenario."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from edge.protocol.config import Section

Interval = Annotated[int, Field(ge=1, le=1_000_000)]


@dataclass(frozen=True)
class TierSchedule(Section):
    """When aggregators meet what is above them, in fleets with tiers (``fleet.tiers``)."""

    interval: Interval | tuple[Interval, ...] = 1
    """Rounds of an aggregator until it sends its model up, kappa_2 of HierFAVG; with a tier above, a second number says
    how often that gets models until it meets the server (1 by default)."""
    participants: Annotated[int, Field(ge=1)] | None = None
    """Aggregators that take part until all meet the server again; by default all."""

    @property
    def intervals(self) -> tuple[int, ...]:
        """Of each tier, the lowest first."""
        return self.interval if isinstance(self.interval, tuple) else (self.interval,)

    @property
    def cycle(self) -> int:
        """Rounds per step of the server."""
        return math.prod(self.intervals)

    def meetings(self, rounds: int) -> int:
        """How many tiers, the lowest first, meet what is above them after this many rounds."""
        return sum(rounds % math.prod(self.intervals[: tier + 1]) == 0 for tier in range(len(self.intervals)))
