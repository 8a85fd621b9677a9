"""Stop rules: what a run may spend, and when it has reached its goal.

Bytes, FLOPs and joules are reserved when a visit starts and settled when it ends; a visit that does not fit is not
started, so a budget is never overspent. Virtual seconds cut at the edge.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TARGET, ROUNDS, SECONDS, BYTES, FLOPS, JOULES, USER = (
    "target",
    "rounds",
    "virtual_seconds",
    "bytes",
    "flops",
    "joules",
    "user",
)


@dataclass(frozen=True)
class Limits:
    """What ends a run; inf or None where there is no limit."""

    rounds: int
    virtual_seconds: float = math.inf
    bytes: float = math.inf
    """Down and up together, of all clients."""
    flops: float = math.inf
    joules: float = math.inf
    target_accuracy: float | None = None


@dataclass(frozen=True)
class Cost:
    """What one visit spends at most."""

    bytes: int
    flops: float
    joules: float


class Budget:
    """What has been spent, and what is reserved for visits under way."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.bytes = 0
        self.flops = 0.0
        self.joules = 0.0
        self._under_way: list[Cost] = []
        self._reserved = _sum(())

    def reserve(self, costs: Sequence[Cost]) -> tuple[list[bool], str | None]:
        """Which of these visits may start, asked in order, and the rule that refused the first that may not."""
        fits, refused_by = [], None
        for cost in costs:
            rule = self._refuses(cost)
            fits.append(rule is None)
            if rule is None:
                self._under_way.append(cost)
                self._reserved = _sum((self._reserved, cost))
            else:
                refused_by = refused_by or rule
        return fits, refused_by

    def _refuses(self, cost: Cost) -> str | None:
        held, limits = self._reserved, self.limits
        if self.bytes + held.bytes + cost.bytes > limits.bytes:
            return BYTES
        if self.flops + held.flops + cost.flops > limits.flops:
            return FLOPS
        if self.joules + held.joules + cost.joules > limits.joules:
            return JOULES
        return None

    def settle(self, nbytes: int, flops: float, joules: float, ended: Sequence[Cost] | None = None) -> None:
        """Visits have ended, having spent this much together; reservations are void: all, or those ``ended``."""
        self.bytes += nbytes
        self.flops += flops
        self.joules += joules
        if ended is None:
            self._under_way.clear()
        for cost in ended or ():
            self._under_way.remove(cost)
        self._reserved = _sum(self._under_way)

    def reached(self, rounds: int, accuracy: float | None) -> str | None:
        """The rule that ends the run after this many rounds, or None."""
        target = self.limits.target_accuracy
        if target is not None and accuracy is not None and accuracy >= target:
            return TARGET
        return ROUNDS if rounds >= self.limits.rounds else None


def _sum(costs: Iterable[Cost]) -> Cost:
    nbytes, flops, joules = 0, 0.0, 0.0
    for cost in costs:
        nbytes, flops, joules = nbytes + cost.bytes, flops + cost.flops, joules + cost.joules
    return Cost(nbytes, flops, joules)
