"""The progress of a run: running totals and score after each round, read at budgets and targets.

Accuracy at a budget is that of the last evaluated round whose running total lies within it. It is not the best so
far, since a user with that budget cannot know which round was best on the test set.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from coordinator.records.schema import RoundRow
from coordinator.rounds.amounts import BY_KIND, Amount
from costmodel.config import Prices
from costmodel.fleet.carbon import Intensity
from edge.protocol.better import HIGHER, Better


class AboveClients(NamedTuple):
    """What the messages between aggregators and what is above them took, in runs with tiers."""

    nbytes: int
    joules: float
    """Of aggregators: their messages, and their waiting before these"""
    price: float


Limits = Mapping[Amount, float]
"""Amount -> the most of it, in SI units"""
NO_LIMITS: Limits = MappingProxyType({})
NONE: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class ProgressPoint:
    """Running totals after one round."""

    rounds: int
    """Rows so far; 1 after the first. The last row may be no round: one that was cut, or a score after the last."""
    virtual_seconds: float
    nbytes: int
    """Down and up, real"""
    nominal_nbytes: float
    """As FedBR's Eq. 3 charges them"""
    score: float | None
    """The value by which the run is judged, such as its accuracy; None where the round was not evaluated"""
    best: float
    """The best of them so far; before the first evaluation `Better.worst`"""
    joules: float = 0.0
    """Of clients"""
    wan_nbytes: int | None = None
    """Between aggregators and what is above them; None, as the next one, in runs without tiers"""
    aggregator_joules: float | None = None
    price: float | None = None
    """Of these bytes, and of clients' bytes and joules; None where neither has a price"""
    co2e_grams: float | None = None
    """Of clients' joules; None without a carbon intensity"""
    epsilon: float | None = None
    """Differential privacy that is spent; None without any, or without noise"""
    device_joules: float | None = None
    """Of the client that has spent the most; None, as the next one, where visits were not read"""
    device_nbytes: int | None = None
    """Of the client that has sent and received the most"""
    better: Better = HIGHER
    """Of scores"""


class Trail(tuple[ProgressPoint, ...]):
    """The progress of a run, a point per round, in order; `within` and `until` are the two ways to read it."""

    __slots__ = ()

    def within(self, limits: Limits) -> Trail:
        """The rounds until one exceeds a limit. ``limits``: in SI units."""
        return Trail(takewhile(lambda point: all(limit >= each.spent(point) for each, limit in limits.items()), self))

    def until(self, target: float | None, limits: Limits = NO_LIMITS) -> ProgressPoint | None:
        """The first round within the limits whose score reached the target; None without such a round or target."""
        if target is None:
            return None
        scored = ((point, point.score) for point in self.within(limits) if point.score is not None)
        return next((point for point, score in scored if point.better.reaches(score, target)), None)

    @property
    def evaluated(self) -> ProgressPoint | None:
        """The last evaluated round; None if none was."""
        return next((point for point in reversed(self) if point.score is not None), None)

    @property
    def final(self) -> float | None:
        """The last score that was evaluated; None if none was."""
        return None if self.evaluated is None else self.evaluated.score

    @property
    def best(self) -> float | None:
        """The best score of any round; None if none was evaluated."""
        return None if self.evaluated is None else self[-1].best


ROUNDS = f"SELECT {', '.join(RoundRow._fields)} FROM rounds ORDER BY round"
"""Query of a ledger for the fields of `RoundRow`."""

TARGET = "target"
"""Beside amounts in the needs of a run: a best score to reach."""
Spent = Iterable[tuple[int, int, float, int]]
"""(round, client, joules, bytes) of visits"""


def accumulated(
    rows: Iterable[RoundRow],
    above: Mapping[int, AboveClients] | None = None,
    prices: Prices | None = None,
    carbon: Intensity | None = None,
    better: Better = HIGHER,
) -> Trail:
    """The progress curve of these rounds, the first of them first; ``above``: by round, of runs with tiers; ``prices``,
    ``carbon``: of what clients spend; ``better``: of scores."""
    points: list[ProgressPoint] = []
    for row in rows:
        own = None if above is None else above.get(row.round, NOTHING_ABOVE)
        points.append(after(points[-1] if points else None, row, own, prices, carbon, better))
    return Trail(points)


def with_devices(trail: Trail, spent: Spent) -> Trail:
    """The progress with what the clients that have spent the most joules, and the most bytes, have spent of them by
    the end of each round."""
    by_round: defaultdict[int, list[tuple[int, float, int]]] = defaultdict(list)
    for round, client, joules, nbytes in spent:
        by_round[round].append((client, joules, nbytes))
    joules_of: defaultdict[int, float] = defaultdict(float)
    nbytes_of: defaultdict[int, int] = defaultdict(int)
    points, seen = [], -1
    most_joules, most_nbytes = 0.0, 0
    for point in trail:
        for round in range(seen + 1, point.rounds):  # rounds count from 0, and points from 1
            for client, joules, nbytes in by_round[round]:
                joules_of[client] += joules
                nbytes_of[client] += nbytes
                most_joules, most_nbytes = max(most_joules, joules_of[client]), max(most_nbytes, nbytes_of[client])
        seen = max(seen, point.rounds - 1)
        points.append(replace(point, device_joules=most_joules, device_nbytes=most_nbytes))
    return Trail(points)


NOTHING_ABOVE = AboveClients(0, 0.0, 0.0)


def after(
    last: ProgressPoint | None,
    row: RoundRow,
    above: AboveClients | None = None,
    prices: Prices | None = None,
    carbon: Intensity | None = None,
    better: Better = HIGHER,
) -> ProgressPoint:
    """The running totals after one more round; ``last`` is None for the first. ``above``: None without tiers."""
    spent = 0.0 if above is None else above.price
    if prices is not None:
        spent += prices.of(row.bytes_down + row.bytes_up, row.joules)
    has_price = above is not None or (prices is not None and prices.are_known)
    nbytes, nominal, best = (last.nbytes, last.nominal_nbytes, last.best) if last else (0, 0.0, better.worst)
    joules = (last.joules if last else 0.0) + row.joules
    return ProgressPoint(
        row.round + 1,
        float(row.end_s),
        nbytes + row.bytes_down + row.bytes_up,
        nominal + row.nominal_bytes,
        row.judged,
        best if row.judged is None else better.best((best, row.judged)),
        joules,
        None if above is None else ((last and last.wan_nbytes) or 0) + above.nbytes,
        None if above is None else ((last and last.aggregator_joules) or 0.0) + above.joules,
        ((last and last.price) or 0.0) + spent if has_price else None,
        None if carbon is None else carbon.co2e_grams(joules),
        row.epsilon,
        better=better,
    )


def is_cut_step(row: RoundRow) -> bool:
    """Whether a budget cut this round, and the clients that were left still made a step (``rounds.min_fraction``)."""
    return bool(row.cut_by) and row.participants > 0


def reached(points: Trail, needs: Mapping[str, float], enough: Mapping[str, float] = NONE) -> bool:
    """Whether a run has met every need, or anything that is ``enough``: amounts by their kinds, and `TARGET`.

    A run without needs goes on to its limit, unless it has had enough before.
    """
    if not points:
        return False
    last = points[-1]

    def met(kind: str, amount: float) -> bool:
        if kind == TARGET:
            return last.better.reaches(last.best, amount)
        return float(getattr(last, BY_KIND[kind].field) or 0.0) >= amount

    if any(met(kind, amount) for kind, amount in enough.items()):
        return True
    return bool(needs) and all(met(kind, need) for kind, need in needs.items())


LEVEL = 0.95
"""Confidence of intervals over seeds"""


def t_quantile(count: int) -> float:
    """The factor of a two-sided 95 % interval of a mean of ``count`` values (Student's t); 4.303 for 3."""
    from scipy.special import stdtrit  # which a run does not load

    return float(stdtrit(count - 1, (1 + LEVEL) / 2))


def percent(share: float) -> str:
    """A share in [0, 1] for a table: 0.8125 -> "81.25 %"."""
    return f"{100 * share:.2f} %"


class Spread(msgspec.Struct, frozen=True):
    """Mean and sample deviation over seeds: None unless every seed has a value; the deviation of one seed is None."""

    mean: float | None
    deviation: float | None
    values: list[float | None]

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Spread:
        """That of these values, one for each seed."""
        known = [value for value in values if value is not None and math.isfinite(value)]
        whole = bool(known) and len(known) == len(values)
        deviation = statistics.stdev(known) if whole and len(known) > 1 else None
        return Spread(statistics.fmean(known) if whole else None, deviation, list(values))


class Mean(Spread, frozen=True):
    """A mean over seeds with its interval."""

    half_width: float | None
    """Half the 95 % interval of the mean; None where there is no deviation"""

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Mean:
        found, count = Spread.of(values), len(values)
        deviation = found.deviation
        half_width = None if deviation is None else t_quantile(count) * deviation / math.sqrt(count)
        return cls(found.mean, deviation, found.values, half_width)


class PairTest(msgspec.Struct, frozen=True, kw_only=True):
    """The values of row ``a`` minus those of ``b`` over the seeds that both have: the fields of their `Mean`, and of
    their `PairedTest`."""

    a: str
    b: str
    without: list[int]
    """Seeds of both that have no value in one of them"""
    seeds: list[int]
    mean: float | None
    deviation: float | None
    values: list[float]
    half_width: float | None
    higher: int
    lower: int
    p: float | None
    seeds_needed: int | None
    p_holm: float | None = None
    """Corrected for the number of tests"""

    @property
    def difference(self) -> Mean:
        return Mean(self.mean, self.deviation, [*self.values], self.half_width)
