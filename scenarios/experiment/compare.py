"""Several methods on the same data, fleet and seed: which reaches the target first, and at what cost?

Each method runs to its limit; the target does not stop it. Accuracies are also read at the smallest total of bytes and
at the smallest virtual time that all runs reached. One folder holds a comparison: a run folder per method and seed,
``compare.json`` and ``report.html``. With several seeds it is a sweep over ``method``, with its statistics and tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.rounds.amounts import BYTES, VIRTUAL_SECONDS
from edge.protocol.plugins import display_name
from scenarios.config.errors import COMMAND_LINE, ScenarioError
from scenarios.experiment.experiment import Experiment, ExperimentRow, Result
from scenarios.experiment.grid import METHOD, Grid, over_methods, variant_name
from scenarios.experiment.measured import beside
from scenarios.experiment.measured import table as measured_table
from scenarios.experiment.run_set import RunSet
from scenarios.experiment.sweep import Sweep, default_targets
from scenarios.report import html, terminal
from scenarios.run.progress import at_budget
from scenarios.run.run_folder import RunFolder

KIND, MARK = "compare", "compare.json"
METHODS = ("fedavg", "fedprox", "fedmlb", "fedbr")


@dataclass(frozen=True)
class Comparison(Sweep):
    """Methods over one seed, read at what all have in common, or over several, as a sweep."""

    measured: Mapping[int, float] | None = None
    """Round, from 1 -> seconds on real devices"""

    def run_name(self, row: ExperimentRow, seed: int) -> str:
        """Runs of the first seed have the names of their methods, so that seeds can be added to a comparison."""
        return row.folder if seed == self.seeds[0] else Experiment.run_name(self, row, seed)

    def result(self, done: Result) -> dict[str, Any]:
        """Over one seed the runs, beside what they have in common; over several the keys of a sweep."""
        target: dict[str, Any] = {"target_accuracy": self.targets[0] if self.targets else None}
        if self.measured is not None:
            folders = {run["name"]: RunFolder(Path(run["run_dir"])) for run in done["runs"]}
            target["measured"] = {name: beside(self.measured, run.rounds) for name, run in folders.items()}
        if len(self.seeds) > 1:
            swept = super().result(done) | {"scenario": self.run_set.name}
            return {**target, **{key: value for key, value in swept.items() if key != "overrides"}}
        # Accuracies at the smallest amounts that all runs reached; those without bytes are within any budget of them.
        sent = [run["bytes_down"] + run["bytes_up"] for run in done["runs"]]
        limits = {
            "bytes": min((nbytes for nbytes in sent if nbytes), default=0),
            "seconds": min(run["virtual_seconds"] for run in done["runs"]),
        }
        trails = {row: of_seeds[self.seeds[0]] for row, of_seeds in self.trails(done["runs"]).items()}
        common = {}
        for name, amount in (("bytes", BYTES), ("seconds", VIRTUAL_SECONDS)):
            accuracies = {row: at_budget(points, amount, limits[name]).accuracy for row, points in trails.items()}
            common[f"at_common_{name}"] = {name: limits[name], "accuracy": accuracies}
        return {
            **target,
            "runs": [{key: value for key, value in run.items() if key != "name"} for run in done["runs"]],
            **common,
            **({"failed": done["failed"]} if "failed" in done else {}),
        }

    def write_page(self, result: Result, folder: Path) -> Path:
        """The report of the runs that were compared; of several seeds that of a sweep."""
        if len(self.seeds) > 1:
            return super().write_page(result, folder)
        methods = ", ".join(display_name(run["method"]) for run in result["runs"])
        runs = [Path(run["run_dir"]) for run in result["runs"]]
        return html.build(runs, folder / self.page_file, f"{self.run_set.name}: {methods}", result)

    def show(self, result: Result, page: Path) -> None:
        """Print a column per run; of several seeds the tables of a sweep; and the rounds of real devices beside."""
        if "measured" in result:
            terminal.print_table(measured_table(result["measured"]), columns=6)
        if len(self.seeds) > 1:
            super().show(result, page)
        else:
            terminal.print_comparison(result, page)

    def files(self, result: Result, folder: Path) -> dict[str, str]:
        return super().files(result, folder) if len(self.seeds) > 1 else {}


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
