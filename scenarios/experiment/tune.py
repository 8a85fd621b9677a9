"""Tuning on validation examples: the settings of a grid under which each method's best round is the best.

Every run evaluates clients' models on their validation examples and on nothing else, so that no choice can rest on
test examples. A setting whose training diverges is a result, and is never chosen; if every run diverges the study
fails. One folder holds a study: a run folder per setting and seed, ``study.json``, ``table.csv`` and ``report.html``.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edge.protocol.fixed_point import DIVERGED
from scenarios.config.errors import ScenarioError
from scenarios.config.load import Loaded
from scenarios.config.overrides import parse, shown, words
from scenarios.experiment.experiment import Experiment, ExperimentPage, ExperimentRow, Result
from scenarios.experiment.grid import EXAMPLE, METHOD, Axis, Grid, over_methods, variant_name
from scenarios.experiment.run_set import RunSet, missing_note
from scenarios.report import terminal
from scenarios.report.columns import PERCENT
from scenarios.report.tables import Number, Table, TableColumn, csv_text
from scenarios.run.progress import with_interval

KIND = "tune"
METHODS = ("fedavg",)
NOT_CHOSEN = ("eval.split", "eval.on", "eval.select", "eval.subset", "eval.drop_last")
"""Keys of what tuning evaluates"""
READ_AS = "best validation accuracy of any round (mean over clients), mean ± half of the 95 % interval over seeds"
DIVERGED_NOTE = (
    "diverged: training gave numbers that are too large or not finite, and the run ended; it is never chosen"
)
LEAD = (
    "Each setting ran once per seed, and was judged on the clients' validation examples alone; no run evaluated test "
    "examples."
)


@dataclass(frozen=True)
class Tuning(Experiment):
    """The settings of each method, and the best of them."""

    axes: tuple[Axis, ...] = ()

    def result(self, done: Result) -> dict[str, Any]:
        """``settings``, a row each, and ``chosen``, the best setting of each method.

        The earlier of two settings that are equally good is chosen; one that diverged with any seed never is, and a
        method whose settings all did has none. ``diverged``: run -> why, if any did; these have not failed and are not
        missing.
        """
        failed = done.get("failed", {})
        diverged = {name: why for name, why in failed.items() if DIVERGED in why}
        notes = {
            "failed": {name: why for name, why in failed.items() if name not in diverged},
            "missing": [name for name in done.get("missing", []) if name not in diverged],
            "diverged": diverged,
        }
        apart = {key: value for key, value in done.items() if key not in notes}
        apart |= {key: value for key, value in notes.items() if value}
        rows = [setting for row in self.rows if (setting := self._row(row, apart)) is not None]
        usable = [row for row in rows if not row["diverged"]]
        chosen = []
        for method in dict.fromkeys(row["method"] for row in usable):
            of_method = (row for row in usable if row["method"] == method)
            best = max(of_method, key=lambda row: row["validation"]["mean"] or 0.0)
            edges = []  # keys whose chosen value is the lowest or highest: a better one may lie beyond
            for axis in self.axes:
                numbers = [value for value in axis.values if isinstance(value, int | float)]
                ends = (shown(min(numbers)), shown(max(numbers))) if len(numbers) == len(axis.values) > 1 else ()
                if best["settings"].get(axis.key) in ends:
                    edges.append(axis.key)
            chosen.append({**best, "at_edge": edges})
        return {
            "scenario": self.scenario,
            "overrides": words(self.overrides),
            "seeds": list(self.seeds),
            "settings": rows,
            "chosen": chosen,
            **apart,
        }

    def _row(self, row: ExperimentRow, done: Result) -> dict[str, Any] | None:
        """One setting over its seeds; None if none of its runs has ended or diverged.

        ``seeds``: those of ``validation`` and ``rounds``, in which a run that diverged has None.
        """
        ended = self.runs_by_row(done["runs"]).get(row.name, {})
        diverged = [seed for seed in self.seeds if self.run_name(row, seed) in done.get("diverged", {})]
        best = {seed: run["best_round"] or {} for seed, run in ended.items()} | {seed: {} for seed in diverged}
        if not best:
            return None
        return {
            "method": row.method,
            "settings": {key: shown(value) for key, value in row.settings.items() if key != METHOD},
            "seeds": sorted(best),
            "diverged": diverged,
            "validation": with_interval([best[seed].get("accuracy") for seed in sorted(best)]),
            "rounds": [best[seed].get("rounds") for seed in sorted(best)],
        }

    def page(self, result: Result) -> ExperimentPage:
        """A table of all settings, and the chosen ones."""
        facts = {"scenario": self.scenario, "seeds": ", ".join(map(str, result["seeds"]))}
        return ExperimentPage(f"{self.run_set.name}: tuning", LEAD, facts, [], tables(result))

    def files(self, result: Result, folder: Path) -> dict[str, str]:
        """``table.csv``, a row per method, setting and seed."""
        rows = (
            [*_cells(row)[:2], seed, value, rounds]
            for row in result["settings"]
            for seed, value, rounds in zip(row["seeds"], row["validation"]["values"], row["rounds"], strict=True)
        )
        head = ["method", "settings", "seed", "validation_accuracy", "best_round"]
        return {"table.csv": csv_text(head, rows)}

    def show(self, result: Result, page: Path) -> None:
        """Print the tables, and the words that choose each method's best setting."""
        for table in tables(result):
            terminal.print_table(table)
        for row in result["chosen"]:
            print(shlex.join(["fedbr", "run", result["scenario"], *run_words(result["overrides"], row)]))
        terminal.print_location(page)


def plan(grid: Grid, seeds: int | None = None, first_seed: int | None = None, run_id: str | None = None) -> Tuning:
    """The runs, by default of `METHODS`, seed by seed; an option of a method varies for the methods that have it.

    ScenarioError for what `Grid.rows` refuses, for a grid without values to choose from, for a scenario that holds out
    no validation examples, and for keys of what tuning evaluates.
    """
    for key in (*grid.overrides, *(axis.key for axis in grid.axes)):
        if key in NOT_CHOSEN:
            raise ScenarioError(
                f"{key}: tuning evaluates clients' models on their validation examples alone; leave it out"
            )
    given, grid = grid.overrides, over_methods(grid, METHODS)
    if all(axis.key == METHOD for axis in grid.varies):
        raise ScenarioError(f"name values to choose from, such as {EXAMPLE}")
    # An adaptation needs it, whatever the method.
    grid = replace(grid, overrides={**grid.overrides, "eval.on": "clients"})
    rows, scenarios = grid.rows(first_seed, variant_name, variant_name)
    if not scenarios[0].scenario.data.validation:
        raise ScenarioError("data.validation = 0: settings are chosen on validation examples; set data.validation=0.2")
    study = Tuning(
        grid.scenario_name,
        {key: value for key, value in given.items() if key != METHOD},
        tuple(rows),
        grid.seeds(seeds, first_seed, scenarios[0].scenario.seed, 1),
        RunSet(KIND, scenarios[0].name, (), run_id),
        axes=grid.varies,
    )

    return study.with_runs(lambda row, seed: on_validation(grid.load(row.settings, seed)))


def on_validation(loaded: Loaded) -> Loaded:
    """The scenario, which evaluates clients' validation examples alone whatever its file evaluates."""
    asked = loaded.scenario.eval
    adapt = replace(asked.adapt, before=False)
    own = replace(asked, on="clients", split="validation", select=None, subset=None, drop_last=False)
    own = replace(own, aggregators=False, adapt=adapt)
    return replace(loaded, scenario=loaded.scenario.model_copy(update={"eval": own}))


def run_words(overrides: Sequence[str], row: Mapping[str, Any]) -> list[str]:
    """KEY=VALUE that give a run of a setting, each key once."""
    chosen = {"method": row["method"], **row["settings"]}
    common = [override for override in overrides if parse(override)[0] not in chosen]
    return [*common, *(f"{key}={value}" for key, value in chosen.items())]


def tables(result: Result) -> list[Table]:
    """All settings; then the best of each method."""
    columns = [*map(TableColumn, ("method", "settings")), TableColumn("validation accuracy", PERCENT, missing="-")]
    columns.append(TableColumn("best round"))
    every, chosen = ([_cells(row) for row in result[key]] for key in ("settings", "chosen"))
    edges = [
        f"{row['method']}: {', '.join(row['at_edge'])} is chosen at the edge of its grid: a better value may lie beyond"
        for row in result["chosen"]
        if row["at_edge"]
    ]
    settled = {row["method"] for row in result["chosen"]}
    none = [
        f"{method}: no setting is free of runs that diverged"
        for method in dict.fromkeys(row["method"] for row in result["settings"])
        if method not in settled
    ]
    notes = [READ_AS, *missing_note(result), *([DIVERGED_NOTE] if "diverged" in result else [])]
    return [
        Table("all settings", columns, every, notes),
        Table("chosen on validation examples", columns, chosen, [*edges, *none]),
    ]


def _cells(row: Mapping[str, Any]) -> list[str | Number]:
    diverged, seeds = len(row["diverged"]), len(row["seeds"])
    partly = f"diverged with {diverged} of {seeds} seeds" if diverged < seeds else "diverged"
    rounds = ", ".join("-" if count is None else str(count) for count in row["rounds"])
    accuracy = partly if diverged else Number.mean(row["validation"])
    settings = " ".join(f"{key}={value}" for key, value in row["settings"].items())
    return [row["method"], settings, accuracy, rounds]
