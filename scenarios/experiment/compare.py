"""Several methods on the same data, fleet and seeds: which reaches the target first, and at what cost?

A comparison is a sweep over ``method`` whose scores are also read at the bytes and the virtual time that all of its
runs have spent. Each method runs to its limit; the target does not stop it. One folder holds it: a run folder per
method and seed, ``compare.json``, ``report.html`` and the files of a sweep.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from scenarios.config.errors import COMMAND_LINE, ScenarioError
from scenarios.experiment import sweep_tables
from scenarios.experiment.experiment import Experiment, ExperimentRow, Result
from scenarios.experiment.grid import METHOD, Grid, over_methods, variant_name
from scenarios.experiment.run_set import RunSet
from scenarios.experiment.statistics import Trails
from scenarios.experiment.sweep import Sweep, default_targets
from scenarios.report import readings
from scenarios.run.progress import Spread
from scenarios.run.score import OF_ACCURACY

KIND, MARK = "compare", "compare.json"
METHODS = ("fedavg", "fedprox", "fedmlb", "fedbr")


@dataclass(frozen=True)
class Comparison(Sweep):
    """A sweep over methods, read at what its runs have in common."""

    def run_name(self, row: ExperimentRow, seed: int) -> str:
        """Runs of the first seed have the names of their methods, so that seeds can be added to a comparison."""
        return row.folder if seed == self.seeds[0] else Experiment.run_name(self, row, seed)

    def result(self, done: Result) -> dict[str, Any]:
        """The keys of a sweep, beside the target and what all runs have in common."""
        swept = super().result(done) | {"scenario": self.run_set.name}
        target = "target_accuracy" if self.score == OF_ACCURACY else "target"
        result: dict[str, Any] = {target: self.targets[0] if self.targets else None}
        result |= {key: value for key, value in swept.items() if key != "overrides"}
        result |= common(self.trails(done["runs"]), readings.of_score(self.score)[0].key)
        return result


def common(trails: Trails, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """``at_common_bytes`` and ``at_common_seconds``: the amount, and each row's score, at ``key``, as the mean over its
    seeds.

    The amount is the smallest that a run has spent; runs without bytes are within any.
    """
    runs = [trail for by_seed in trails.values() for trail in by_seed.values() if trail]
    for amount in sweep_tables.COMMON:
        limit = min(filter(None, (getattr(trail[-1], amount.field) for trail in runs)), default=0)
        scores = {
            row: Spread.of([trail.within({amount: limit}).final for trail in by_seed.values()]).mean
            for row, by_seed in trails.items()
        }
        yield f"at_common_{amount.name}", {amount.name: limit, key: scores}


def plan(grid: Grid, seeds: int = 1, first_seed: int | None = None, run_id: str | None = None) -> Comparison:
    """One run per method and seed, each to its limit; by default of `METHODS`.

    ScenarioError for what `Grid.rows` refuses, and for a grid over anything but the method.
    """
    grid = over_methods(grid, METHODS)
    others = [axis.key for axis in grid.axes if axis.key != METHOD]
    if others:
        raise ScenarioError(
            f"{others[0]}: a comparison varies the method alone; fedbr sweep takes several values of any key",
            source=COMMAND_LINE,
        )
    rows, scenarios = grid.rows(first_seed, lambda method, _: method, variant_name)
    start = scenarios[0].scenario.seed
    compared = Comparison(
        grid.scenario_name,
        grid.overrides,
        tuple(rows),
        tuple(range(start, start + seeds)),
        RunSet(KIND, scenarios[0].name, (), run_id, mark=MARK),
        default_targets(scenarios[0]),
        grid.axes,
    )
    return compared.with_runs(lambda row, seed: grid.load(row.settings, seed))
