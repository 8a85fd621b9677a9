"""Stop rules: what a run, and each client, may spend, and when a run has reached its goal.

Bytes, FLOPs and joules are reserved when a visit starts and settled when it ends; a visit that does not fit is not
started, so these budgets are never overspent. Virtual seconds of the run cut at the edge. What a visit of an
asynchronous policy will spend in seconds and joules is known only once it has ended, since visits that begin later may
slow it down: there it is reserved as if nobody else used the links.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated

from coordinator.rounds.quantities import Flops, Joules, NBytes, Seconds
from edge.protocol.config import Also, Section

TARGET, ROUNDS, SECONDS, BYTES, BYTES_DOWN, BYTES_UP, FLOPS, JOULES, CLIENTS, USER = (
    "target",
    "rounds",
    "virtual_seconds",
    "bytes",
    "bytes_down",
    "bytes_up",
    "flops",
    "joules",
    "clients",
    "user",
)


@dataclass(frozen=True)
class Cost:
    """What one visit spends at most, or what some have spent."""

    bytes_down: int = 0
    bytes_up: int = 0
    flops: float = 0.0
    joules: float = 0.0
    virtual_seconds: float = 0.0
    """From the beginning of the visit to its end."""

    @property
    def bytes(self) -> int:
        """In both directions."""
        return self.bytes_down + self.bytes_up

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.bytes_down + other.bytes_down,
            self.bytes_up + other.bytes_up,
            self.flops + other.flops,
            self.joules + other.joules,
            self.virtual_seconds + other.virtual_seconds,
        )


_COLUMNS = tuple(column.name for column in fields(Cost))


@dataclass(frozen=True)
class Limits(Section):
    """What may be spent in the whole run, and is never overspent; by default there is no limit."""

    virtual_seconds: Annotated[Seconds | None, Also("time", "seconds")] = None
    """Until the run ends; of a client, those in which it is at work."""
    bytes: Annotated[NBytes | None, Also("bandwidth", "traffic")] = None
    """Down and up together."""
    bytes_down: NBytes | None = None
    """From the server to clients."""
    bytes_up: NBytes | None = None
    """From clients to the server."""
    flops: Flops | None = None
    joules: Annotated[Joules | None, Also("energy")] = None


@dataclass(frozen=True)
class RunLimits(Limits):
    """What all clients together may spend, and each of them."""

    client: Limits = Limits()
    """A client that has no more to spend takes part no more."""


FLEET_RULES = (BYTES, BYTES_DOWN, BYTES_UP, FLOPS, JOULES)
"""Of a run; its virtual seconds refuse nothing, they cut."""
CLIENT_RULES = (*FLEET_RULES, SECONDS)


def _exceeded(limits: Limits, rules: Sequence[str], cost: Cost) -> str | None:
    """The first of these rules that does not allow so much."""
    for rule in rules:
        limit = getattr(limits, rule)
        if limit is not None and getattr(cost, rule) > limit:
            return rule
    return None


class Budget:
    """What has been spent, and what is reserved for visits under way; and the rules that end a run otherwise."""

    def __init__(self, limits: RunLimits, rounds: int, target_accuracy: float | None = None) -> None:
        self.limits, self.rounds, self.target_accuracy = limits, rounds, target_accuracy
        self.ends_at = math.inf if limits.virtual_seconds is None else limits.virtual_seconds
        """The virtual second in which the run is over"""
        self.spent = Cost()
        self._by_client: defaultdict[int, Cost] = defaultdict(Cost)
        self._is_limited = any(getattr(limits, rule) is not None for rule in FLEET_RULES)
        self._under_way: Counter[Cost] = Counter()

    def reserve(self, costs: Sequence[Cost]) -> tuple[list[bool], str | None]:
        """Which of these visits may start, asked in order, and the rule that refused the first that may not."""
        if not self._is_limited:
            return [True] * len(costs), None
        fits, refused_by, held = [], None, self.spent + self._reserved()
        for cost in costs:
            rule = _exceeded(self.limits, FLEET_RULES, held + cost)
            fits.append(rule is None)
            if rule is None:
                self._under_way[cost] += 1
                held = held + cost
            else:
                refused_by = refused_by or rule
        return fits, refused_by

    def release(self, costs: Sequence[Cost]) -> None:
        """These reservations are void."""
        for cost in costs if self._is_limited else ():
            assert self._under_way[cost] > 0, cost
            self._under_way[cost] -= 1
            if not self._under_way[cost]:
                del self._under_way[cost]

    def _reserved(self) -> Cost:
        # Added up anew each time, since what is subtracted again leaves a rest.
        held = list(self._under_way.elements())
        return Cost(*(sum(getattr(cost, name) for cost in held) for name in _COLUMNS))

    def admits(self, client: int, cost: Cost) -> bool:
        """Whether a client's own budget allows it a visit."""
        return _exceeded(self.limits.client, CLIENT_RULES, self._by_client[client] + cost) is None

    def settle(self, client: int, spent: Cost) -> None:
        """A visit has ended, having spent this much."""
        self.spent = self.spent + spent
        self._by_client[client] = self._by_client[client] + spent

    def reached(self, rounds: int, accuracy: float | None) -> str | None:
        """The rule that ends the run after this many rounds, or None."""
        if self.target_accuracy is not None and accuracy is not None and accuracy >= self.target_accuracy:
            return TARGET
        return ROUNDS if rounds >= self.rounds else None
