"""Stop rules: budgets of a run and of each client, the number of rounds, the target accuracy, and convergence.

Bytes, FLOPs and joules are reserved when a visit starts and settled when it ends; a visit that would exceed a budget is
not started, so these budgets are never overspent. The run's virtual seconds interrupt visits. In asynchronous policies
the seconds and joules of a visit are known only at its end, since visits that start later may slow it down: the
reservation assumes links without contention.
"""

from __future__ import annotations

import math
import operator
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import reduce
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, Field

from costmodel import units
from costmodel.config import Joules, Prices, Seconds
from edge.protocol.better import HIGHER, Better
from edge.protocol.config import Also, Section

LARGEST_INTEGER = 2**53
"""Largest integer up to which float64 is exact"""

NBytes = Annotated[int, BeforeValidator(units.nbytes), Field(gt=0, le=LARGEST_INTEGER)]
Flops = Annotated[float, BeforeValidator(units.flops), Field(gt=0)]


TARGET, CONVERGED, ROUNDS, SECONDS = "target", "converged", "rounds", "virtual_seconds"
BYTES, BYTES_DOWN, BYTES_UP, FLOPS, JOULES = "bytes", "bytes_down", "bytes_up", "flops", "joules"
WAN_BYTES, PRICE, EPSILON = "wan_bytes", "price", "epsilon"
CLIENTS, USER, TIME_LIMIT = "clients", "user", "time_limit"
EARLY = (USER, TIME_LIMIT)
"""What stops a run before its end: the user, or the end of the piece that was asked for; it can be resumed"""


@dataclass(frozen=True)
class Cost:
    """The cost of a visit or of several: an upper bound before the end, then the real one."""

    bytes_down: int = 0
    bytes_up: int = 0
    flops: float = 0.0
    joules: float = 0.0
    virtual_seconds: float = 0.0
    """Duration of the visit"""

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
    """Budgets, which are never overspent; by default there is no limit."""

    virtual_seconds: Annotated[Seconds | None, Also("time", "seconds")] = None
    """Duration of the run; for a client, total duration of its visits."""
    bytes: Annotated[NBytes | None, Also("bandwidth", "traffic")] = None
    """Down and up together."""
    bytes_down: NBytes | None = None
    """From the server to clients."""
    bytes_up: NBytes | None = None
    """From clients to the server."""
    flops: Flops | None = None
    """Floating-point operations that clients execute."""
    joules: Annotated[Joules | None, Also("energy")] = None
    """Energy that clients spend on visits."""


@dataclass(frozen=True)
class RunLimits(Limits):
    """Budgets of all clients together, and of each client."""

    wan_bytes: NBytes | None = None
    """Between aggregators and what is above them (``fleet.tiers``), down and up together."""
    price: Annotated[float | None, Field(gt=0)] = None
    """Of these bytes, in the currency of ``fleet.tiers.price``; without aggregators, of clients' bytes and joules, in
    that of ``fleet.price``."""
    epsilon: Annotated[float | None, Field(gt=0, le=1e9), Also("privacy_budget", "target_epsilon", "eps")] = None
    """Differential privacy (``privacy``): the round that would exceed it is refused."""
    client: Limits = Limits()
    """A client whose budget cannot pay for a visit is not selected."""

    def refuses_messages(self, nbytes: int, price: float, more_nbytes: int, more_price: float) -> str | None:
        """The rule that ``more`` messages of aggregators would exceed, beyond those until now; None if none."""
        if self.wan_bytes is not None and nbytes + more_nbytes > self.wan_bytes:
            return WAN_BYTES
        return PRICE if self.price is not None and price + more_price > self.price else None


FLEET_RULES = (BYTES, BYTES_DOWN, BYTES_UP, FLOPS, JOULES)
"""Rules that refuse visits of a run; its virtual seconds interrupt them instead"""
CLIENT_RULES = (*FLEET_RULES, SECONDS)


def _exceeded(limits: Limits, rules: Sequence[str], cost: Cost) -> str | None:
    """The first of these rules that the cost exceeds, or None."""
    for rule in rules:
        limit = getattr(limits, rule)
        if limit is not None and getattr(cost, rule) > limit:
            return rule
    return None


class Lacking(NamedTuple):
    """Visits that a budget does not allow."""

    key: str
    """Key of the budget, below ``budget``"""
    visits: int
    amount: float
    """That they would take at most together, in SI units; of virtual seconds, their round's length"""


class Convergence:
    """The end of progress: ``patience`` rounds after the best evaluation, an evaluation that is no better."""

    def __init__(self, patience: int | None, better: Better = HIGHER) -> None:
        self.patience, self.better = patience, better
        """Patience: None for a run that never converges"""
        self.best, self.best_rounds = better.worst, 0
        """The best value so far, and the rounds after which it was first measured"""

    def reached(self, rounds: int, value: float) -> bool:
        """Whether the run has converged with this value after so many rounds; the same if it is asked again."""
        if self.better.prefers(value, self.best):
            self.best, self.best_rounds = value, rounds
        return self.patience is not None and rounds - self.best_rounds >= self.patience


class Budget:
    """Spent and reserved costs, and the stop rules of a run."""

    def __init__(
        self,
        limits: RunLimits,
        rounds: int,
        target: float | None = None,
        patience: int | None = None,
        prices: Prices | None = None,
        better: Better = HIGHER,
    ) -> None:
        """``target``: of the value by which the run is judged, whose better direction is ``better``; ``prices``: of
        what clients spend."""
        self.limits, self.rounds, self.target, self.better = limits, rounds, target, better
        self.convergence = Convergence(patience, better)
        self.ends_at = math.inf if limits.virtual_seconds is None else limits.virtual_seconds
        """Virtual seconds at which the run ends"""
        self.spent = Cost()
        self._by_client: defaultdict[int, Cost] = defaultdict(Cost)
        self._prices = prices if prices is not None and prices.are_known else None
        limits_price = limits.price is not None and self._prices is not None
        self._is_limited = limits_price or any(getattr(limits, rule) is not None for rule in FLEET_RULES)
        self.limits_clients = limits.client != Limits()
        """Whether clients have budgets of their own"""
        self._reservations: Counter[Cost] = Counter()
        self.lacking: Lacking | None = None
        """Costs of the first visits that were refused"""

    def reserve(self, costs: Sequence[Cost]) -> tuple[list[bool], str | None]:
        """Reserve in order: (whether each visit may start, the rule that refused the first that may not)."""
        if not self._is_limited:
            return [True] * len(costs), None
        # Reservations are summed each time, since subtracting floats leaves a remainder.
        reserved = list(self._reservations.elements())
        committed = self.spent + Cost(*(sum(getattr(cost, name) for cost in reserved) for name in _COLUMNS))
        fits, refused_by = [], None
        for cost in costs:
            rule = _exceeded(self.limits, FLEET_RULES, committed + cost) or self._too_dear(committed + cost)
            fits.append(rule is None)
            if rule is None:
                self._reservations[cost] += 1
                committed = committed + cost
            else:
                refused_by = refused_by or rule
        if refused_by is not None:
            self.lacks(refused_by, len(costs), sum(self._amount(refused_by, cost) for cost in costs))
        return fits, refused_by

    def _amount(self, rule: str, cost: Cost) -> float:
        if rule == PRICE:
            return 0.0 if self._prices is None else self._prices.of(cost.bytes, cost.joules)
        return float(getattr(cost, rule))

    def _too_dear(self, cost: Cost) -> str | None:
        limit = self.limits.price
        return PRICE if limit is not None and self._amount(PRICE, cost) > limit else None

    def release(self, costs: Sequence[Cost]) -> None:
        """Cancel these reservations."""
        for cost in costs if self._is_limited else ():
            assert self._reservations[cost] > 0, cost
            self._reservations[cost] -= 1
            if not self._reservations[cost]:
                del self._reservations[cost]

    def admits(self, client: int, cost: Cost) -> bool:
        """Whether the client's own budget can pay for the visit."""
        if not self.limits_clients:
            return True
        rule = _exceeded(self.limits.client, CLIENT_RULES, self._by_client[client] + cost)
        if rule is not None:
            self.lacks(f"client.{rule}", 1, getattr(cost, rule))
        return rule is None

    def lacks(self, key: str, visits: int, amount: float) -> None:
        """Keep what visits would have taken of a budget, if they are the first that do not fit in one."""
        self.lacking = self.lacking or Lacking(key, visits, amount)

    def settle(self, clients: Sequence[int], costs: Sequence[Sequence[Any]]) -> None:
        """Add the real costs of visits that have ended. ``costs``: by column of `Cost`, (visits,) each."""
        totals = zip(_COLUMNS, costs, strict=True)
        self.spent = Cost(*(reduce(operator.add, column, getattr(self.spent, name)) for name, column in totals))
        if self.limits_clients:
            for client, *cost in zip(clients, *costs, strict=True):
                self._by_client[client] += Cost(*cost)

    def reached(self, rounds: int, judged: float | None, selecting: float | None = None) -> str | None:
        """The rule that ends the run after this many rounds with this value by which it is judged, or None.

        ``selecting``: the value by which the best round is chosen. Both are None for a round without evaluation.
        """
        has_converged = selecting is not None and self.convergence.reached(rounds, selecting)
        if self.target is not None and judged is not None and self.better.reaches(judged, self.target):
            return TARGET
        if has_converged:
            return CONVERGED
        return ROUNDS if rounds >= self.rounds else None
