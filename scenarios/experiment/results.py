"""The result of a sweep, from the ledgers of its runs: statistics over seeds per cell, and tests of pairs of cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from scenarios.experiment.statistics import holm, paired, tested
from scenarios.report.readings import ACCURACY, AMOUNTS, BEST, OF_TRAIL, Reading, until
from scenarios.run.progress import Trail, to_target

SPENT = ("virtual_seconds", "bytes", "joules", "rounds")
"""Amounts that sweeps report"""
TESTED = ("virtual_seconds", "bytes", "joules")
"""Amounts until a target that are compared in pairs."""
Trails = Mapping[str, Mapping[int, Trail]]
"""Name of a row -> seed -> the progress of its run; runs that are missing are left out."""


def statistics(by_seed: Mapping[int, Trail], targets: Sequence[float]) -> dict[str, Any]:
    """The statistics of one row: accuracies, totals, and what was spent until each target.

    Each value is `with_interval`: its mean is None unless every seed has it. ``reached``: of ``runs`` runs.
    """
    runs = list(by_seed.values())
    return {
        "seeds": list(by_seed),
        **{key: OF_TRAIL[key].over_seeds(runs) for key in (ACCURACY.key, BEST.key, *SPENT)},
        "to_target": [
            {
                "target": target,
                "runs": len(runs),
                "reached": sum(to_target(points, target) is not None for points in runs),
                **{key: until(AMOUNTS[key], target).over_seeds(runs) for key in SPENT},
            }
            for target in targets
        ],
    }


def tests(curves: Trails, targets: Sequence[float]) -> list[dict[str, Any]]:
    """A group per measure, with all ``pairs`` of rows (`compared`); ``p_holm`` is corrected within a group.

    Measures are ``accuracy`` (the last), ``best_accuracy``, and what was spent until each target.
    """
    measures: list[tuple[str, float | None, Reading[Trail]]] = [
        *((reading.key, None, reading) for reading in (ACCURACY, BEST)),
        *((key, target, until(AMOUNTS[key], target)) for target in targets for key in TESTED),
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


def compared(values: Mapping[str, Mapping[int, float | None]]) -> list[dict[str, Any]]:
    """``a`` minus ``b`` for every two rows, over the seeds that both have, as `tested`, with ``p_holm``.

    A pair in which a seed of both has no value in one of them, such as a target that was not reached, is not tested:
    ``without`` names these seeds.
    """
    pairs = []
    for a, b in combinations(values, 2):
        common = sorted(values[a].keys() & values[b].keys())
        without = [seed for seed in common if values[a][seed] is None or values[b][seed] is None]
        difference = None if without else paired(values[a], values[b])
        untested = {"seeds": common, "mean": None, "deviation": None, "values": [], "half_width": None}
        pairs.append({"a": a, "b": b, "without": without, **tested(difference or untested)})
    for pair, corrected in zip(pairs, holm([pair["p"] for pair in pairs]), strict=True):
        pair["p_holm"] = corrected
    return pairs


def against(pairs: Sequence[Mapping[str, Any]], baseline: str) -> dict[str, dict[str, Any]]:
    """Name of each other row -> its values minus those of ``baseline``, of `compared` pairs.

    ``p_holm`` is corrected for these tests alone, which are fewer than all pairs.
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
    for each, corrected in zip(found.values(), holm([each["p"] for each in found.values()]), strict=True):
        each["p_holm"] = corrected
    return found
