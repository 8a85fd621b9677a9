"""Means over seeds with their 95 % intervals (Student's t), and differences that are paired over seeds.

A difference is tested with the paired t-test, several of them with Holm's correction (S. Holm, Scandinavian Journal of
Statistics, 1979). Nothing is read or drawn here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

from msgspec import Struct
from msgspec.structs import asdict, replace
from scipy.special import nctdtr, ndtri, stdtr

from coordinator.rounds.amounts import BYTES, ENERGY, ROUNDS, VIRTUAL_SECONDS
from scenarios.report.readings import ACCURACY, BEST, Reading, of_score, of_some, total_of, until
from scenarios.run.progress import LEVEL, Mean, PairTest, Trail, t_quantile
from scenarios.run.score import OF_ACCURACY, RunScore

POWER = 0.8
"""Probability with which `seeds_needed` finds a difference."""
MOST_SEEDS = 100_000
LARGEST_EFFECT = 50.0
"""Mean over deviation from which on two seeds are enough; beyond it the noncentral t is not computed reliably."""
ROUNDING = 1e-12
"""A deviation below this share of the mean difference stems from the rounding of floats."""
BySeed = Mapping[int, float | None]
"""Seed -> a value of its run, or None for a run without it"""


class PairedTest(Struct, frozen=True):
    """The two-sided paired t-test that the mean of differences is 0."""

    higher: int
    """Seeds in which the difference is above 0"""
    lower: int
    p: float | None
    """None with one seed and where the difference is the same in all, as the next"""
    seeds_needed: int | None
    """As of `seeds_needed`"""


class MeasureTests(Struct, frozen=True):
    """The tests of all pairs of rows in one measure."""

    measure: str
    target: float | None
    """The score until which an amount was spent"""
    pairs: list[PairTest]


def paired(values: BySeed, reference: BySeed) -> dict[int, float]:
    """Seed -> ``values`` minus ``reference``, where both have one."""
    return {
        seed: value - other
        for seed in sorted(values.keys() & reference.keys())
        if (value := values[seed]) is not None and (other := reference[seed]) is not None
    }


def tested(differences: Sequence[float]) -> PairedTest:
    """The test of differences, one for each seed."""
    found = Mean.of(differences)
    mean, deviation = found.mean or 0.0, found.deviation or 0.0
    is_spread = deviation > ROUNDING * abs(mean)
    return PairedTest(
        higher=sum(value > 0 for value in differences),
        lower=sum(value < 0 for value in differences),
        p=float(2 * stdtr(len(differences) - 1, -abs(mean) / deviation * math.sqrt(len(differences))))
        if is_spread
        else None,
        seeds_needed=seeds_needed(mean, deviation) if is_spread else None,
    )


def reached_p(one: Sequence[float | None], other: Sequence[float | None]) -> float:
    """The p of Fisher's exact test, two-sided, that as many seeds have a value in both: 1 of 3 and 0 of 3 give 1.

    It takes the seeds as independent, so that runs which are paired by seed differ less often by chance than it says.
    """
    from scipy.stats import fisher_exact  # a second to import, which few tables need

    with_value = [sum(value is not None for value in values) for values in (one, other)]
    table = [[count, len(values) - count] for count, values in zip(with_value, (one, other), strict=True)]
    return float(fisher_exact(table).pvalue)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """The values adjusted for the number of tests, in their order; None stays None and counts as no test."""
    tests = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(tests):
        largest = max(largest, min(1.0, (len(tests) - rank) * p))
        adjusted[index] = largest
    return adjusted


def seeds_needed(mean: float, deviation: float) -> int | None:
    """How many seeds a study needs so that a paired t-test (two-sided, 5 %) finds such a difference in 80 % of cases.

    None above `MOST_SEEDS`. ``deviation`` is that of the differences, above 0.
    """
    effect = min(abs(mean) / deviation, LARGEST_EFFECT)
    factor = float(ndtri((1 + LEVEL) / 2) + ndtri(POWER))
    if not effect or (factor / effect) ** 2 > MOST_SEEDS:
        return None
    count = max(2, math.floor((factor / effect) ** 2))  # of a normal distribution, a little below that of Student's t
    while count > 2 and power(effect, count - 1) >= POWER:
        count -= 1
    while power(effect, count) < POWER:
        count += 1
    return count


def power(effect: float, count: int) -> float:
    """The probability that a paired t-test over ``count`` seeds finds a mean of ``effect`` deviations."""
    critical, shift = t_quantile(count), effect * math.sqrt(count)
    return float(1 - nctdtr(count - 1, shift, critical) + nctdtr(count - 1, shift, -critical))


# --- of an experiment's rows ------------------------------------------------------------------------------------------


SPENT = (VIRTUAL_SECONDS, BYTES, ENERGY, ROUNDS)
"""Amounts that sweeps report"""
TESTED = (VIRTUAL_SECONDS, BYTES, ENERGY)
"""Amounts until a target that are compared in pairs."""


def of_clients(score: RunScore) -> tuple[str, str, str]:
    """Keys of a summary's ``evaluation``: over the clients of a run, on their own examples, the mean, that of the worst
    tenth, and the standard deviation."""
    (mean,) = score.named({"clients_score": None})
    return mean, "worst_decile", "spread"


Trails = Mapping[str, Mapping[int, Trail]]
"""Name of a row -> seed -> the progress of its run; runs that are missing are left out."""


class TargetCosts(Struct, frozen=True):
    """The costs of a row's runs until a target."""

    target: float
    runs: int
    reached: int
    """Of these runs"""
    spent: dict[str, Mean]
    """Key of an amount -> over seeds; its mean is None unless every seed reached the target"""


class RowStatistics(Struct, frozen=True):
    """The runs of a row over their seeds."""

    seeds: list[int]
    final: Mean
    """Of the score, as the next"""
    best: Mean
    spent: dict[str, Mean]
    """Key of an amount -> total; those of `readings.OF_SOME` are there if any of these runs has spent them"""
    to_target: list[TargetCosts]

    def plain(self, score: RunScore = OF_ACCURACY) -> dict[str, object]:
        """For JSON: amounts stand beside the other keys."""
        return {
            "seeds": self.seeds,
            **{key: asdict(each) for key, each in {**self.scores(score), **self.spent}.items()},
            "to_target": [
                {
                    "target": each.target,
                    "runs": each.runs,
                    "reached": each.reached,
                    **{key: asdict(amount) for key, amount in each.spent.items()},
                }
                for each in self.to_target
            ],
        }

    def scores(self, score: RunScore) -> dict[str, Mean]:
        """The last and the best, by the keys of their readings."""
        last, best = of_score(score)
        return {last.key: self.final, best.key: self.best}


def over_seeds(by_seed: Mapping[int, Trail], targets: Sequence[float]) -> RowStatistics:
    """The statistics of one row: scores, totals, and what was spent until each target."""
    runs = list(by_seed.values())
    amounts = [*SPENT, *of_some(runs)]
    return RowStatistics(
        list(by_seed),
        ACCURACY.over_seeds(runs),
        BEST.over_seeds(runs),
        {amount.key: total_of(amount).over_seeds(runs) for amount in amounts},
        [
            TargetCosts(
                target,
                len(runs),
                sum(trail.until(target) is not None for trail in runs),
                {amount.key: until(amount, target).over_seeds(runs) for amount in amounts},
            )
            for target in targets
        ],
    )


def over_clients(
    evaluations: Mapping[str, Sequence[Mapping[str, float | None]]], score: RunScore = OF_ACCURACY
) -> dict[str, dict[str, Mean]]:
    """Name of each row with values of clients in all of its runs -> `of_clients`, over seeds.

    ``evaluations``: name of a row -> the ``evaluation`` of each run's summary.
    """
    keys = of_clients(score)
    return {
        name: {key: Mean.of([own[key] for own in found]) for key in keys}
        for name, found in evaluations.items()
        if found and all(own.get(key) is not None for own in found for key in keys)
    }


def tests(curves: Trails, targets: Sequence[float], score: RunScore = OF_ACCURACY) -> list[MeasureTests]:
    """All pairs of rows (`compared`) by measure; ``p_holm`` is corrected within one.

    Measures are the last score and the best (``accuracy``, ``best_accuracy``), and what was spent until each target.
    """
    measures: list[tuple[str, float | None, Reading[Trail]]] = [
        *((reading.key, None, reading) for reading in of_score(score)),
        *((amount.key, target, until(amount, target)) for target in targets for amount in TESTED),
    ]
    return [
        MeasureTests(
            key,
            target,
            compared(
                {name: {seed: measure.value(points) for seed, points in runs.items()} for name, runs in curves.items()}
            ),
        )
        for key, target, measure in measures
    ]


def compared(values: Mapping[str, BySeed], counts_reached: bool = False) -> list[PairTest]:
    """``a`` minus ``b`` for every two rows, over the seeds that both have.

    A pair in which a seed of both has no value in one of them, such as a target that was not reached, is not tested.
    With ``counts_reached`` the seeds that have a value are, by `reached_p`.
    """
    pairs = []
    for a, b in combinations(values, 2):
        common = sorted(values[a].keys() & values[b].keys())
        without = [seed for seed in common if values[a][seed] is None or values[b][seed] is None]
        differences = {} if without else paired(values[a], values[b])
        test, mean = tested([*differences.values()]), Mean.of([*differences.values()])
        p = test.p
        if without and counts_reached:
            p = reached_p([values[a][seed] for seed in common], [values[b][seed] for seed in common])
        pairs.append(
            PairTest(
                a=a,
                b=b,
                without=without,
                seeds=[*differences] or common,
                mean=mean.mean,
                deviation=mean.deviation,
                values=[*differences.values()],
                half_width=mean.half_width,
                higher=test.higher,
                lower=test.lower,
                p=p,
                seeds_needed=test.seeds_needed,
            )
        )
    corrected = holm([pair.p for pair in pairs])
    return [replace(pair, p_holm=p) for pair, p in zip(pairs, corrected, strict=True)]


def against(pairs: Sequence[PairTest], baseline: str) -> dict[str, PairTest]:
    """Name of each other row -> its values minus those of ``baseline``, of `compared` pairs.

    ``p_holm`` stays that of all pairs, so that a test has one value wherever it is shown.
    """
    found: dict[str, PairTest] = {}
    for pair in pairs:
        if pair.b == baseline:
            found[pair.a] = pair
        elif pair.a == baseline:
            found[pair.b] = replace(
                pair,
                mean=None if pair.mean is None else -pair.mean,
                values=[-each for each in pair.values],
                higher=pair.lower,
                lower=pair.higher,
            )
    return found
