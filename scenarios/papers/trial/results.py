"""The result of a trial's part, from the ledgers of its runs: means over seeds, intervals, and paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scenarios.experiment.statistics import paired
from scenarios.papers.trial.plan import TrialCell, TrialPlan
from scenarios.report.progress import Trail, final, spread, to_target, trail, with_interval

SPENT = {
    "virtual_seconds": "virtual_seconds",
    "bytes": "nbytes",
    "nominal_bytes": "nominal_nbytes",
    "joules": "joules",
    "rounds": "rounds",
}
"""Key of a result -> the field of `ProgressPoint`."""
Trails = Mapping[str, Mapping[int, Trail]]
"""Name of a cell -> seed -> the progress of its run; runs that are missing are left out."""


def trails(plan: TrialPlan, runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, Trail]]:
    """The progress of all runs that are there."""
    folders = {run["name"]: Path(run["run_dir"]) for run in runs}
    found: dict[str, dict[int, Trail]] = {}
    for cell in plan.cells:
        names = {seed: cell.run_name(seed) for seed in plan.seeds}
        found[cell.name] = {seed: trail(folders[name]) for seed, name in names.items() if name in folders}
    return found


def read_off(plan: TrialPlan, done: Mapping[str, Any]) -> dict[str, Any]:
    """What ``study trial --json`` prints for every part, from what `make_runs` returns."""
    curves = trails(plan, done["runs"])
    return {
        "part": plan.name,
        "scenario": plan.run_set.name,
        "seeds": list(plan.seeds),
        "target": plan.target,
        "targets": list(plan.targets),
        "left_out": dict(plan.left_out),
        "variants": [_row(plan, cell, curves) for cell in plan.cells if curves[cell.name]],
        **done,
    }


def _row(plan: TrialPlan, cell: TrialCell, curves: Trails) -> dict[str, Any]:
    own = curves[cell.name]
    return {
        "name": cell.name,
        "variant": cell.variant.name,
        "skew": cell.skew,
        "method": cell.variant.method,
        "overrides": [*cell.partition, *cell.variant.overrides],
        "seeds": list(own),
        "accuracy": with_interval([final(points) for points in own.values()]),
        "reference": cell.reference,
        "difference": None if cell.reference == cell.name else difference(own, curves.get(cell.reference, {})),
        "to_target": [to_targets(list(own.values()), target) for target in plan.targets],
    }


def difference(own: Mapping[int, Trail], reference: Mapping[int, Trail]) -> dict[str, Any] | None:
    """The final accuracy minus that of the reference, paired over seeds."""
    return paired(finals(own), finals(reference))


def finals(by_seed: Mapping[int, Trail]) -> dict[int, float]:
    """Seed -> the accuracy evaluated last."""
    known = {seed: final(points) for seed, points in by_seed.items()}
    return {seed: accuracy for seed, accuracy in known.items() if accuracy is not None}


def to_targets(runs: Sequence[Trail], target: float) -> dict[str, Any]:
    """What was spent until a target: means over the seeds if all ``reached`` it, else None; ``values`` by seed."""
    points = [to_target(each, target) for each in runs]
    values = {key: [float(getattr(point, name)) if point else None for point in points] for key, name in SPENT.items()}
    means = {key: spread(spent)["mean"] for key, spent in values.items()}
    return {"target": target, "reached": sum(point is not None for point in points), **means, "values": values}
