"""Means over seeds with their 95 % intervals (Student's t), and differences that are paired over seeds.

A difference is tested with the paired t-test, several of them with Holm's correction (S. Holm, Scandinavian Journal of
Statistics, 1979). Nothing is read or drawn here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from scipy import stats

from coordinator.rounds.amounts import BYTES, ENERGY, ROUNDS, VIRTUAL_SECONDS
from scenarios.report.readings import ACCURACY, BEST, Reading, of_tiers, total_of, until
from scenarios.run.progress import LEVEL, Trail, t_quantile, with_interval

POWER = 0.8
"""Probability with which `seeds_needed` finds a difference."""
MOST_SEEDS = 100_000
LARGEST_EFFECT = 50.0
"""Mean over deviation from which on two seeds are enough; beyond it the noncentral t is not computed reliably."""
ROUNDING = 1e-12
"""A deviation below this share of the mean difference stems from the rounding of floats."""
BySeed = Mapping[int, float | None]
"""Seed -> a value of its run, or None for a run without it"""


def paired(values: BySeed, reference: BySeed) -> dict[str, Any] | None:
    """``values`` minus ``reference`` over the ``seeds`` whose runs both have one; None if there are none."""
    differences = {
        seed: value - other
        for seed in sorted(values.keys() & reference.keys())
        if (value := values[seed]) is not None and (other := reference[seed]) is not None
    }
    return {"seeds": list(differences), **with_interval(list(differences.values()))} if differences else None


def tested(difference: Mapping[str, Any]) -> dict[str, Any]:
    """A difference of `paired` with its test.

    ``higher`` and ``lower``: seeds in which it is above and below 0; ``p`` of the two-sided paired t-test, and
    ``seeds_needed``, both None with one seed and where the difference is the same in all.
    """
    values, mean, deviation = difference["values"], difference["mean"], difference["deviation"]
    is_spread = deviation is not None and deviation > ROUNDING * abs(mean)
    # of the two-sided t-test that the mean of the differences is 0
    p = float(2 * stats.t.sf(abs(mean) / deviation * math.sqrt(len(values)), len(values) - 1)) if is_spread else None
    return {
        **difference,
        "higher": sum(value > 0 for value in values),
        "lower": sum(value < 0 for value in values),
        "p": p,
        "seeds_needed": seeds_needed(mean, deviation) if is_spread else None,
    }


def reached_p(one: Sequence[float | None], other: Sequence[float | None]) -> float:
    """The p of Fisher's exact test, two-sided, that as many seeds have a value in both: 1 of 3 and 0 of 3 give 1.

    It takes the seeds as independent, so that runs which are paired by seed differ less often by chance than it says.
    """
    with_value = [sum(value is not None for value in values) for values in (one, other)]
    table = [[count, len(values) - count] for count, values in zip(with_value, (one, other), strict=True)]
    return float(stats.fisher_exact(table).pvalue)


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
    factor = float(stats.norm.ppf((1 + LEVEL) / 2) + stats.norm.ppf(POWER))
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
    return float(stats.nct.sf(critical, count - 1, shift) + stats.nct.cdf(-critical, count - 1, shift))


# --- of an experiment's rows ------------------------------------------------------------------------------------------


SPENT = (VIRTUAL_SECONDS, BYTES, ENERGY, ROUNDS)
"""Amounts that sweeps report"""
TESTED = (VIRTUAL_SECONDS, BYTES, ENERGY)
"""Amounts until a target that are compared in pairs."""
OF_CLIENTS = ("clients_accuracy", "worst_decile", "spread")
"""Over the clients of a run, on their own examples: the mean, that of the worst tenth, and the standard deviation"""
Trails = Mapping[str, Mapping[int, Trail]]
"""Name of a row -> seed -> the progress of its run; runs that are missing are left out."""


def over_seeds(by_seed: Mapping[int, Trail], targets: Sequence[float]) -> dict[str, Any]:
    """The statistics of one row: accuracies, totals, and what was spent until each target.

    Each value is `with_interval`: its mean is None unless every seed has it. ``reached``: of ``runs`` runs. Amounts of
    `readings.OF_TIERS` are there if any of these runs has spent them.
    """
    runs = list(by_seed.values())
    amounts = [*SPENT, *of_tiers(runs)]
    return {
        "seeds": list(by_seed),
        **{each.key: each.over_seeds(runs) for each in (ACCURACY, BEST, *map(total_of, amounts))},
        "to_target": [
            {
                "target": target,
                "runs": len(runs),
                "reached": sum(trail.until(target) is not None for trail in runs),
                **{amount.key: until(amount, target).over_seeds(runs) for amount in amounts},
            }
            for target in targets
        ],
    }


def over_clients(evaluations: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Name of each row with values of clients in all of its runs -> `OF_CLIENTS`, each `with_interval` over seeds.

    ``evaluations``: name of a row -> the ``evaluation`` of each run's summary.
    """
    return {
        name: {key: with_interval([own[key] for own in found]) for key in OF_CLIENTS}
        for name, found in evaluations.items()
        if found and all(own.get(key) is not None for own in found for key in OF_CLIENTS)
    }


def tests(curves: Trails, targets: Sequence[float]) -> list[dict[str, Any]]:
    """A group per measure, with all ``pairs`` of rows (`compared`); ``p_holm`` is corrected within a group.

    Measures are ``accuracy`` (the last), ``best_accuracy``, and what was spent until each target.
    """
    measures: list[tuple[str, float | None, Reading[Trail]]] = [
        *((reading.key, None, reading) for reading in (ACCURACY, BEST)),
        *((amount.key, target, until(amount, target)) for target in targets for amount in TESTED),
    ]
    return [
        {
            "measure": key,
            "target": target,
            "pairs": compared(
                {name: {seed: measure.value(points) for seed, points in runs.items()} for name, runs in curves.items()}
            ),
        }
        for key, target, measure in measures
    ]


def compared(values: Mapping[str, Mapping[int, float | None]], counts_reached: bool = False) -> list[dict[str, Any]]:
    """``a`` minus ``b`` for every two rows, over the seeds that both have, as `tested`, with ``p_holm``.

    A pair in which a seed of both has no value in one of them, such as a target that was not reached, is not tested:
    ``without`` names these seeds. With ``counts_reached`` the seeds that have a value are, by `reached_p`.
    """
    pairs = []
    for a, b in combinations(values, 2):
        common = sorted(values[a].keys() & values[b].keys())
        without = [seed for seed in common if values[a][seed] is None or values[b][seed] is None]
        difference = None if without else paired(values[a], values[b])
        untested = {"seeds": common, "mean": None, "deviation": None, "values": [], "half_width": None}
        pair = {"a": a, "b": b, "without": without, **tested(difference or untested)}
        if without and counts_reached:
            pair["p"] = reached_p([values[a][seed] for seed in common], [values[b][seed] for seed in common])
        pairs.append(pair)
    for pair, corrected in zip(pairs, holm([pair["p"] for pair in pairs]), strict=True):
        pair["p_holm"] = corrected
    return pairs


def against(pairs: Sequence[Mapping[str, Any]], baseline: str) -> dict[str, dict[str, Any]]:
    """Name of each other row -> its values minus those of ``baseline``, of `compared` pairs.

    ``p_holm`` stays that of all pairs, so that a test has one value wherever it is shown.
    """
    found: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        if pair["b"] == baseline:
            found[pair["a"]] = dict(pair)
        elif pair["a"] == baseline:
            turned = {
                "mean": None if pair["mean"] is None else -pair["mean"],
                "values": [-each for each in pair["values"]],
            }
            found[pair["b"]] = {**pair, **turned, "higher": pair["lower"], "lower": pair["higher"]}
    return found
