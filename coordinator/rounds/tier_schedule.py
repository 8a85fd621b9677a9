"""When aggregators meet what is above them: the table ``tiers`` of a scenario."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from coordinator.rounds.policy import polynomial_discount
from costmodel import units
from edge.protocol.config import Section


def _is_duration(text: str) -> str:
    """ValueError for a text that is no duration above 0."""
    if not 0 < units.seconds(text) < math.inf:
        raise ValueError("must be more than 0 s, and finite")
    return text


Count = Annotated[int, Field(ge=1, le=1_000_000)]
Duration = Annotated[str, AfterValidator(_is_duration)]
"""A text, since a number is one of rounds"""


@dataclass(frozen=True)
class TierSchedule(Section):
    """When aggregators meet what is above them, in fleets with tiers (``fleet.tiers``)."""

    interval: Count | Duration | tuple[Count | Duration, ...] = 1
    """Rounds of an aggregator until it sends its model up, kappa_2 of HierFAVG; or virtual seconds ("30 s") from when
    its models came down, after which it begins no further round. With a tier above, a second number says how often that
    gets models until it meets the server (1 by default)."""
    participants: Count | tuple[Count, ...] | None = None
    """Aggregators that take part until all meet the server again, by default all; with a tier above, a second number
    says how many of it do, and the first ones are below these."""
    upwards: Literal["synchronous", "asynchronous"] = "synchronous"
    """synchronous: aggregators wait for each other when they meet. asynchronous: the server mixes each model in when it
    arrives, and that aggregator goes on from the result, as clients do in FedAsync (Xie, Koyejo and Gupta, 2019)."""
    mixing: Annotated[float, Field(gt=0, le=1)] = 0.6
    """asynchronous: mixing factor of a model without staleness."""
    staleness_power: Annotated[float, Field(ge=0, le=1e6)] = 0.5
    """asynchronous: a of (s + 1)^-a, the discount of a model from which the server has made s steps; 0: none."""

    @property
    def intervals(self) -> tuple[int | str, ...]:
        """Of each tier, the lowest first, as they are written."""
        return self.interval if isinstance(self.interval, tuple) else (self.interval,)

    @property
    def is_asynchronous(self) -> bool:
        return self.upwards == "asynchronous"

    @property
    def seconds(self) -> float:
        """Virtual seconds until those of the lowest tier send their models up; 0 where rounds are counted."""
        lowest = self.intervals[0]
        return units.seconds(lowest) if isinstance(lowest, str) else 0.0

    @property
    def rounds(self) -> int:
        """Rounds until those of the lowest tier send their models up; 1 where seconds are."""
        lowest = self.intervals[0]
        return lowest if isinstance(lowest, int) else 1

    @property
    def cycle(self) -> int:
        """Rounds after which all aggregators have the server's model again; 0: there is no such number."""
        counts = [each for each in self.intervals if isinstance(each, int)]
        return math.prod(counts) if len(counts) == len(self.intervals) and not self.is_asynchronous else 0

    def steps_above(self, tier: int) -> int:
        """Meetings of the lowest tier until this one meets what is above it; until the server's step, of the last."""
        return math.prod(int(count) for count in self.intervals[1 : tier + 1])

    def meetings(self, met: int) -> int:
        """How many tiers, the lowest first, meet what is above them when the lowest does so for the ``met``-th time."""
        return sum(met % self.steps_above(tier) == 0 for tier in range(len(self.intervals)))

    def taking_part(self, tier: int, size: int) -> int:
        """Aggregators of a tier of ``size`` that take part until all meet the server."""
        counts = self.participants if isinstance(self.participants, tuple) else (self.participants,)
        count = counts[tier] if tier < len(counts) else None
        return size if count is None else min(count, size)

    def mixing_at(self, staleness: int) -> float:
        """Factor on a model from which the server has made so many steps."""
        return self.mixing * polynomial_discount(staleness, self.staleness_power)
