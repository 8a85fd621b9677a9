"""The result of a sweep, from the ledgers of its runs: statistics over seeds per cell, and tests of pairs of cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

from scenarios.experiment.statistics import BySeed, holm, paired, tested
from scenarios.run.progress import Trail, best, final, to_target, trail, with_interval

SPENT = {"virtual_seconds": "virtual_seconds", "bytes": "nbytes", "joules": "joules", "rounds": "rounds"}
"""Key of a result -> the field of `ProgressPoint`."""
TESTED = ("virtual_seconds", "bytes", "joules")
"""Amounts until a target that are compared in pairs."""
Trails = Mapping[str, Mapping[int, Trail]]
"""Name of a cell -> seed -> the progress of its run; runs that are missing are left out."""


def trails(names: Mapping[str, Mapping[int, str]], runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, Trail]]:
    """The progress of the runs that are there; ``names``: cell -> seed -> name of its run."""
    there = {run["name"]: run for run in runs}
    return {
        cell: {seed: _whole(there[name]) for seed, name in of_cell.items() if name in there}
        for cell, of_cell in names.items()
    }


def _whole(run: Mapping[str, Any]) -> Trail:
    """The progress of a run, counting whole rounds alone: a last row that is no round counts as the round before."""
    points = trail(Path(run["run_dir"]))
    return tuple(replace(point, rounds=min(point.rounds, run["rounds"])) for point in points)


def statistics(by_seed: Mapping[int, Trail], targets: Sequence[float]) -> dict[str, Any]:
    """The statistics of one row: accuracies, totals, and what was spent until each target.

    Each value is `with_interval`: its mean is None unless every seed has it.
    """
    runs = list(by_seed.values())
    return {
        "seeds": list(by_seed),
        "accuracy": with_interval([final(points) for points in runs]),
        "best_accuracy": with_interval([best(points) for points in runs]),
        **{key: with_interval([_spent(points, name) for points in runs]) for key, name in SPENT.items()},
        "to_target": [_to_target(runs, target) for target in targets],
    }


def _spent(points: Trail, name: str) -> float:
    return float(getattr(points[-1], name)) if points else 0.0


def _to_target(runs: Sequence[Trail], target: float) -> dict[str, Any]:
    """``reached``: of ``runs`` runs."""
    points = [to_target(each, target) for each in runs]
    found = {
        key: with_interval([float(getattr(point, name)) if point else None for point in points])
        for key, name in SPENT.items()
    }
    return {"target": target, "runs": len(runs), "reached": sum(point is not None for point in points), **found}


def tests(curves: Trails, targets: Sequence[float]) -> list[dict[str, Any]]:
    """A group per measure, with all ``pairs`` of rows (`compared`); ``p_holm`` is corrected within a group.

    Measures are ``accuracy`` (the last), ``best_accuracy``, and what was spent until each target.
    """
    return [
        _group(curves, "accuracy", None, final),
        _group(curves, "best_accuracy", None, best),
        *(_group(curves, key, target, partial(_until, target, key)) for target in targets for key in TESTED),
    ]


def _group(curves: Trails, key: str, target: float | None, measure: Callable[[Trail], float | None]) -> dict[str, Any]:
    values = {name: {seed: measure(points) for seed, points in runs.items()} for name, runs in curves.items()}
    return {"measure": key, "target": target, "pairs": compared(values)}


def _until(target: float, key: str, points: Trail) -> float | None:
    point = to_target(points, target)
    return None if point is None else float(getattr(point, SPENT[key]))


def compared(values: Mapping[str, Mapping[int, float | None]]) -> list[dict[str, Any]]:
    """``a`` minus ``b`` for every two rows, over the seeds that both have, as `tested`, with ``p_holm``.

    A pair in which a seed of both has no value in one of them, such as a target that was not reached, is not tested:
    ``without`` names these seeds.
    """
    pairs = [_pair(a, values[a], b, values[b]) for a, b in combinations(values, 2)]
    for pair, corrected in zip(pairs, holm([pair["p"] for pair in pairs]), strict=True):
        pair["p_holm"] = corrected
    return pairs


def _pair(
    name: str, values: Mapping[int, float | None], other: str, others: Mapping[int, float | None]
) -> dict[str, Any]:
    common = sorted(values.keys() & others.keys())
    without = [seed for seed in common if values[seed] is None or others[seed] is None]
    difference = None if without else paired(_known(values), _known(others))
    untested = {"seeds": common, "mean": None, "deviation": None, "values": [], "half_width": None}
    return {"a": name, "b": other, "without": without, **tested(difference or untested)}


def _known(values: Mapping[int, float | None]) -> BySeed:
    return {seed: value for seed, value in values.items() if value is not None}
