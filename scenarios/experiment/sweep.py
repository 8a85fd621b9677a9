"""A sweep: a scenario over a grid of values and several seeds, as one experiment.

The default run id follows from the scenario, the axes and the overrides of all runs. Thus the same command, also with
more seeds, more values or more methods, finds the runs that are there and makes those that are missing. Runs of an
earlier command that the new one does not plan stay in the folder; its result leaves them out.

    experiment = plan(grid_of("digits", ["train.lr=0.05,0.1"]), seeds=3)
    done = make_runs(experiment.run_set, host, launcher, stopped)
    result = experiment.result(done)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any

from scenarios.config.errors import ScenarioError
from scenarios.config.load import Loaded
from scenarios.experiment import results, sweep_tables
from scenarios.experiment.experiment import Experiment, ExperimentPage, ExperimentRow, Result
from scenarios.experiment.grid import (
    METHOD,
    SEED,
    Axis,
    Grid,
    cell_name,
    folder_name,
    label,
    last_part,
    override_text,
    show,
)
from scenarios.experiment.run_set import RunSet, resolved_keys
from scenarios.report import bands, tables, terminal
from scenarios.report.csv_files import csv_text

KIND = "sweep"
SEEDS = 3
MOST_BANDS = 12
"""Rows of the figure; of more, those with the best mean accuracy are drawn."""
LEAD = (
    "Each cell ran once per seed, to its limit; no target stopped it. Bytes are counted on the messages, down and up, "
    "of all clients; time and energy are the simulated fleet's."
)


@dataclass(frozen=True)
class Sweep(Experiment):
    """Statistics over seeds per row, and tests of all pairs of rows."""

    axes: tuple[Axis, ...] = ()

    def result(self, done: Result) -> dict[str, Any]:
        """``rows``, one each with its statistics over seeds, and ``tests`` of all pairs."""
        curves = self.trails(done["runs"])
        return {
            "scenario": self.scenario,
            "overrides": list(starmap(override_text, self.overrides.items())),
            "axes": {axis.key: [show(value) for value in axis.values] for axis in self.axes},
            "seeds": list(self.seeds),
            "targets": list(self.targets),
            "rows": [self._row(row, curves[row.name]) for row in self.rows if row.name in curves],
            "tests": results.tests(curves, self.targets),
            **done,
        }

    def _row(self, row: ExperimentRow, runs: Mapping[int, Any]) -> dict[str, Any]:
        return {
            "name": row.name,
            "method": row.method,
            "settings": {key: show(value) for key, value in row.settings.items()},
            "runs": [self.run_name(row, seed) for seed in runs],
            **results.statistics(runs, self.targets),
        }

    def page(self, result: Result) -> ExperimentPage:
        """Bands of accuracy over seeds, and all tables."""
        common = {"all runs": " ".join(result["overrides"])} if result.get("overrides") else {}
        return ExperimentPage(
            f"{self.run_set.name}: {', '.join(result['axes']) or 'seeds'}",
            LEAD,
            {"scenario": result["scenario"], **common, "seeds": ", ".join(map(str, result["seeds"]))},
            [self._bands(result)] if result["rows"] else [],
            sweep_tables.tables(result),
        )

    def _bands(self, result: Result) -> tuple[str, str, str]:
        """Accuracy against bytes and time, of the rows with the best means."""
        rows, labels = result["rows"], sweep_tables.labels(result["rows"])
        best = sorted(range(len(rows)), key=lambda index: rows[index]["accuracy"]["mean"] or 0.0, reverse=True)
        trails, shown = self.trails(result["runs"]), sorted(best[:MOST_BANDS])
        drawn = [
            bands.band(rows[index]["method"], kind, list(trails[rows[index]["name"]].values()), label=labels[index])
            for kind in ("bytes", "time")
            for index in shown
        ]
        caption = (
            "Test accuracy when last evaluated, mean over seeds; the band is one sample deviation to either side. A "
            "curve ends where the first of its runs ends."
        )
        if len(rows) > MOST_BANDS:
            caption += f" The {MOST_BANDS} most accurate of {len(rows)} cells."
        return "bands", bands.draw(drawn, {}), caption

    def show(self, result: Result, page: Path) -> None:
        """Print the tables that a terminal has room for."""
        for table in sweep_tables.short(result):
            terminal.print_table(table)
        terminal.print_location(page)

    def files(self, result: Result, folder: Path) -> dict[str, str]:
        """``sweep.md``, ``sweep.tex``, ``sweep.csv`` (a row per cell), ``pairs.csv`` and ``runs.csv``."""
        shown = sweep_tables.tables(result)
        return {
            "sweep.md": tables.markdown(shown),
            "sweep.tex": tables.latex(shown),
            "sweep.csv": tables.numbers(sweep_tables.numbers(result)),
            "pairs.csv": csv_text(*sweep_tables.pair_numbers(result)),
            "runs.csv": csv_text(*sweep_tables.runs(result)),
        }


def plan(
    grid: Grid,
    seeds: int | None = None,
    first_seed: int | None = None,
    targets: Sequence[float] = (),
    run_id: str | None = None,
) -> Sweep:
    """The runs of every point of the grid, seed by seed.

    ``seeds``: how many, counted up from ``first_seed`` or the scenario's own (3 by default), unless an axis names them;
    ``targets``: accuracies in (0, 1], by default the scenario's. ScenarioError for what `load` refuses in any cell, and
    for two cells that would be the same run.
    """
    rows, scenarios = grid.rows(first_seed, lambda method, settings: label(settings) or method, cell_name)
    numbers = grid.seeds(seeds, first_seed, scenarios[0].scenario.seed, SEEDS)
    if not grid.varies and len(numbers) == 1:
        raise ScenarioError("--seeds 1: nothing varies; name values of a key, such as train.lr with 0.05 and 0.1")
    run_set = RunSet(KIND, scenarios[0].name, (), run_id or default_run_id(grid, scenarios))
    goals = check_targets(targets) or default_targets(scenarios[0])
    sweep = Sweep(grid.scenario, grid.overrides, tuple(rows), numbers, run_set, goals, grid.varies)
    return sweep.with_runs(lambda row, seed: grid.load(row.settings, seed))


def default_targets(loaded: Loaded) -> tuple[float, ...]:
    """That of the scenario, if it has one."""
    goal = loaded.scenario.stop.target_accuracy
    return () if goal is None else (goal,)


def check_targets(targets: Sequence[float]) -> tuple[float, ...]:
    """The targets, each once and the smallest first; ScenarioError for one that is no accuracy."""
    for target in targets:
        if not 0 < target <= 1:
            raise ScenarioError(f"--target {target:g}: must be an accuracy above 0 and at most 1, for example 0.9")
    return tuple(sorted(set(targets)))


def default_run_id(grid: Grid, scenarios: Sequence[Loaded]) -> str:
    """``sweep-lr-3fa9c1``: the keys of the axes, and a hash of these keys and of the overrides of all runs.

    Values count as ``scenarios``, those of the cells, have them: "20 Mbit/s" is "20000 kbit/s". Method and seed, whose
    runs have folders of their own names, do not count; without anything else it is ``sweep``.
    """
    resolved: dict[str, Any] = {}
    for loaded in reversed(scenarios):
        resolved |= resolved_keys(loaded.scenario)
    common = {
        key: _resolved(key, value, resolved) for key, value in grid.overrides.items() if key not in (METHOD, SEED)
    }
    keys = sorted(axis.key for axis in grid.varies if axis.key != METHOD)
    text = json.dumps([keys, common], sort_keys=True, default=str)
    end = [hashlib.sha256(text.encode()).hexdigest()[:6]] if keys or common else []
    return folder_name([KIND, *map(last_part, keys), *end])


def _resolved(key: str, value: Any, resolved: Mapping[str, Any]) -> Any:
    """A value as the scenario has it; as it was given where the scenario leaves it out, such as None."""
    if isinstance(value, Mapping):
        return {name: _resolved(f"{key}.{name}", each, resolved) for name, each in value.items()}
    return _plain(resolved.get(key, value))


def _plain(value: Any) -> Any:
    """Without the difference between 20 and 20.0, which no scenario makes."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
