"""Successive halving: in each rung the candidates that are left train on, and the worse half of them is left out.

Jamieson and Talwalkar, AISTATS 2016. The resource is rounds, and at the end seeds; runs are paired by seed. Candidates
differ in what a round costs, so that neither equal rounds nor equal costs alone compare them fairly: one is ahead of
another if it has needed less for the score that both have reached, and has the better score for the cost that
both have spent. If these contradict each other, the pair is open.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from edge.protocol.better import HIGHER, LOWER
from scenarios.run.progress import ProgressPoint, Trail
from scenarios.studies.decide.objective import Objective

EARLY_SEEDS = 2
"""Of a rung before the last: more candidates are worth more than more seeds"""
CROWD = 4
"""Candidates per finalist; a rung with more has one seed"""
BySeed = Mapping[int, Trail]


@dataclass(frozen=True)
class Rung:
    share: Fraction
    """Of a candidate's rounds"""
    seeds: int
    """The first so many"""
    keep: int
    """Candidates that go on to the next one"""

    def rounds(self, most: int, every: int) -> int:
        """Rounds of a candidate that has ``most`` of them, and is evaluated after ``every`` so many."""
        return min(most, every * math.ceil(self.share * most / every))


def rungs(candidates: int, seeds: int, finalists: int) -> list[Rung]:
    """The rungs for so many candidates: rounds double from one to the next, until the finalists have all rounds and
    seeds."""
    counts = [candidates]
    while counts[-1] > finalists:
        counts.append(max(finalists, math.ceil(counts[-1] / 2)))
    early = [1 if count > CROWD * finalists else min(EARLY_SEEDS, seeds) for count in counts]
    last = len(counts) - 1
    halved = [Rung(Fraction(1, 2 ** (last - number)), early[number], counts[number + 1]) for number in range(last)]
    return [*halved, Rung(Fraction(1), seeds, counts[-1])]


def ahead(objective: Objective, one: Trail, other: Trail) -> int:
    """1 if the first of two runs of a seed is ahead, -1 if the second is, 0 if that is open."""
    trails = [objective.kept(trail) for trail in (one, other)]
    reached = [objective.reached(trail) for trail in (one, other)]
    if reached[0] is not None and reached[1] is not None:
        return _sign(objective.spent(reached[1]) - objective.spent(reached[0]))
    better = objective.score.better
    level = (min if better is HIGHER else max)(_best(objective, trail) for trail in trails)
    until = [_spent(objective, trail.until(level)) for trail in trails]
    common = min(objective.spent(trail[-1]) if trail else 0.0 for trail in trails)
    at = [_best(objective, Trail(point for point in trail if objective.spent(point) <= common)) for trail in trails]
    lead = better.prefers(at[0], at[1]) - better.prefers(at[1], at[0])
    return _sign(_sign(until[1] - until[0]) + lead)


def _best(objective: Objective, trail: Trail) -> float:
    """The best score; without any, the worst that there can be."""
    return objective.score.better.worst if trail.best is None else trail.best


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def _spent(objective: Objective, point: ProgressPoint | None) -> float:
    return math.inf if point is None else objective.spent(point)


def order(objective: Objective, found: Mapping[str, BySeed]) -> list[str]:
    """The candidates, the best first: by the pairs in which they are ahead minus those in which they are behind, over
    all seeds that both have; then by their best score, and by their place."""
    points = dict.fromkeys(found, 0)
    for one, other in combinations(found, 2):
        for seed in found[one].keys() & found[other].keys():
            lead = ahead(objective, found[one][seed], found[other][seed])
            points[one] += lead
            points[other] -= lead
    return sorted(found, key=lambda name: (-points[name], _worse_first(objective, found[name])))


def _worse_first(objective: Objective, own: BySeed) -> float:
    """The lower, the better: the best scores of a candidate's runs within the budgets, turned where more is better."""
    total = sum(_best(objective, objective.kept(trail)) for trail in own.values())
    return -total if objective.score.better is HIGHER else total


def cannot_win(objective: Objective, found: Mapping[str, BySeed]) -> dict[str, str]:
    """Candidates without a chance -> the one that has reached the target, in every seed, for less than they have spent
    without reaching it in any."""
    if objective.target is None:
        return {}
    winners: dict[str, float] = {}
    for name, own in found.items():
        spent = [objective.value(trail) for trail in own.values()]
        if all(each is not None for each in spent):
            winners[name] = max(each for each in spent if each is not None)
    if not winners:
        return {}
    first = min(winners, key=lambda name: winners[name])
    return {
        name: first
        for name, own in found.items()
        if name != first
        and all(objective.reached(trail) is None for trail in own.values())
        and all(trail and objective.spent(trail[-1]) >= winners[first] for trail in own.values())
    }


def final_order(objective: Objective, found: Mapping[str, BySeed]) -> list[str]:
    """The finalists, the best first: most seeds with a value, then its mean; without any, their best score."""

    def key(name: str) -> tuple[float, float, float]:
        values = [objective.value(trail) for trail in found[name].values()]
        return *place(objective, values), _worse_first(objective, found[name])

    return sorted(found, key=key)


def place(objective: Objective, values: Sequence[float | None]) -> tuple[float, float]:
    """The lower, the better: minus the seeds that have a value, and their mean, turned where more is better."""
    known = [value for value in values if value is not None]
    mean = sum(known) / len(known) if known else math.inf
    return -len(known), mean if objective.better is LOWER else -mean
