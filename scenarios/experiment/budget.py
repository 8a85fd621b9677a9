"""Accuracy against budgets of bytes and virtual time: one run per row and seed, from which all budgets are read.

A run goes on until the largest budget of each kind is used up, or until rounds.max. Budgets do not cut a round short,
so that all are read in the same way (`run.progress`). One folder holds a study: a run folder per row and seed,
``study.json``, ``table.csv``, ``curves.csv`` and ``report.html``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coordinator.rounds.amounts import BY_KIND
from scenarios.config.errors import Argument, ScenarioError
from scenarios.config.overrides import shown
from scenarios.experiment.experiment import Experiment, ExperimentPage, Result
from scenarios.experiment.grid import METHOD, Grid, over_methods, variant_name
from scenarios.experiment.run_set import RunSet, missing_note
from scenarios.report import bands, terminal
from scenarios.report.columns import PERCENT
from scenarios.report.tables import Cell, Number, Table, TableColumn, csv_text
from scenarios.run.progress import at_budget, with_interval

KIND = "budget"
METHODS = ("fedavg", "fedbr")
SEEDS = 3
ARGUMENTS = {"bytes": "nbytes", "time": "seconds"}
"""Kind -> the argument in Python"""
EXAMPLES = {"bytes": '"1 MB,2 MB"', "time": '"5 min,15 min"'}
READ_AS = "accuracy when last evaluated within the budget, mean ± half of the 95 % interval over seeds"
LEAD = (
    "Each method ran once per seed; all budgets are read off those runs. Bytes are counted on the messages, down and "
    "up, of all clients; time is the simulated fleet's."
)
Budgets = Mapping[str, Sequence[float]]
"""bytes and time -> amounts in bytes and seconds, smallest first"""


@dataclass(frozen=True)
class BudgetStudy(Experiment):
    """Accuracy of each row at each budget."""

    budgets: Budgets = field(default_factory=dict)

    def result(self, done: Result) -> dict[str, Any]:
        """``bytes`` and ``time``: per budget the accuracy of each row."""
        trails = self.trails(done["runs"])
        at: dict[str, list[dict[str, Any]]] = {kind: [] for kind in ARGUMENTS}
        for kind, amounts in self.budgets.items():
            for amount in amounts:
                accuracy = {}
                for row, by_seed in trails.items():
                    readings = [at_budget(points, BY_KIND[kind], amount) for points in by_seed.values()]
                    accuracy[row] = {
                        **with_interval([reading.accuracy for reading in readings]),
                        "rounds": [reading.point.rounds if reading.point else None for reading in readings],
                        "used_up": [reading.used_up for reading in readings],
                    }
                at[kind].append({"budget": amount, "accuracy": accuracy})
        return {"methods": [row.name for row in self.rows], "seeds": list(self.seeds), **at, **done}

    def page(self, result: Result) -> ExperimentPage:
        caption = (
            f"Test accuracy when last evaluated, mean over {_seeds(result)}; the band is one sample deviation to "
            "either side. Dashed lines are budgets that were reached. A curve ends where the first of its runs ends."
        )
        budgets = {kind: [at["budget"] for at in result[kind]] for kind in ARGUMENTS}
        return ExperimentPage(
            f"{self.run_set.name}: accuracy against budgets",
            LEAD,
            {
                "scenario": self.run_set.name,
                "methods": ", ".join(result["methods"]),
                "seeds": ", ".join(map(str, result["seeds"])),
            },
            [("bands", bands.draw(self._bands(result), budgets), caption)],
            self._tables(result),
        )

    def show(self, result: Result, page: Path) -> None:
        """Print the tables: a row per budget and a column per method, at most four to a table."""
        for table in self._tables(result):
            terminal.print_table(table)
        terminal.print_location(page)

    def files(self, result: Result, folder: Path) -> dict[str, str]:
        """``table.csv``, a row per budget, method and seed, and ``curves.csv``, the points of the bands."""
        rows, seeds = list[list[Any]](), self.runs_by_row(result["runs"])
        for kind in ARGUMENTS:
            for at in result[kind]:
                for row, cell in at["accuracy"].items():
                    columns = (seeds[row], cell["values"], cell["rounds"], cell["used_up"])
                    rows += [
                        [row, seed, kind, at["budget"], accuracy, rounds, used_up]
                        for seed, accuracy, rounds, used_up in zip(*columns, strict=True)
                    ]
        head = ["method", "seed", "kind", "budget", "accuracy", "round", "used_up"]
        return {"table.csv": csv_text(head, rows), "curves.csv": bands.csv(self._bands(result))}

    def _bands(self, result: Result) -> list[bands.Band]:
        methods = {row.name: row.method for row in self.rows}
        return [
            bands.band(methods[row], kind, list(trails.values()), max(self.budgets.get(kind, ()), default=None), row)
            for kind in ARGUMENTS
            for row, trails in self.trails(result["runs"]).items()
        ]

    def _tables(self, result: Result) -> list[Table]:
        """A table per kind: a row per budget and a column per row; a star where a run ended before the budget."""
        tables = []
        for kind, name in (("bytes", "bytes"), ("time", "virtual time")):
            if not result[kind]:
                continue
            rows = list(result[kind][0]["accuracy"])
            is_short = any(not all(cell["used_up"]) for at in result[kind] for cell in at["accuracy"].values())
            ends = sorted({str(run["stopped_by"]).replace("_", " ") for run in result["runs"]} - {"budgets"})
            short = f"* not used up: a run ended before, by {' or '.join(ends)}; raise rounds.max or what else ended it"
            columns = [TableColumn("budget"), *(TableColumn(row, PERCENT, missing="-") for row in rows)]
            cells: list[list[Cell]] = []
            for at in result[kind]:
                accuracies = [at["accuracy"][row] for row in rows]
                marks = ["" if all(cell["used_up"]) else " *" for cell in accuracies]
                numbers = (replace(Number.mean(cell), mark=mark) for cell, mark in zip(accuracies, marks, strict=True))
                # Budgets name the rows, so each is written as a user writes it, in its own unit.
                cells.append([BY_KIND[kind].shown(at["budget"]), *numbers])
            notes = [f"{READ_AS} ({_seeds(result)})", *([short] if is_short else []), *missing_note(result)]
            tables.append(Table(f"accuracy at budgets of {name}", columns, cells, notes))
        return tables


def _seeds(result: Result) -> str:
    count = len(result["seeds"])
    return f"{count} seed{'s' if count > 1 else ''}"


def budgets_of(nbytes: str | None, seconds: str | None) -> Budgets:
    """The lists of the options ``--bytes`` and ``--time``; ScenarioError if both are missing or one cannot be read."""
    lists = {kind: text for kind, text in (("bytes", nbytes), ("time", seconds)) if text is not None}
    if not lists:
        examples = [Argument(ARGUMENTS[kind], EXAMPLES[kind], kind) for kind in ("bytes", "time")]
        raise ScenarioError("name budgets with ", examples[0], ", ", examples[1], ", or both")
    return {kind: _amounts(kind, text) for kind, text in lists.items()}


def _amounts(kind: str, text: str) -> list[float]:
    pieces = [piece.strip() for piece in text.split(",")]
    if not all(pieces):
        why = f": write amounts separated by commas, for example {EXAMPLES[kind]}"
        raise ScenarioError(Argument(ARGUMENTS[kind], repr(text), kind), why)
    argument = Argument(ARGUMENTS[kind], option=kind)
    try:
        amounts = [BY_KIND[kind].parse(piece) for piece in pieces]
    except ValueError as error:
        raise ScenarioError(argument, f": {error}") from None
    for piece, amount in zip(pieces, amounts, strict=True):
        if amount <= 0:
            raise ScenarioError(argument, f": {piece!r}: a budget must be above 0")
        if amounts.count(amount) > 1:
            raise ScenarioError(argument, f": {piece!r} is named twice")
    return sorted(amounts)


def plan(
    grid: Grid, budgets: Budgets, seeds: int | None = None, first_seed: int | None = None, run_id: str | None = None
) -> BudgetStudy:
    """The runs of a study, by default of `METHODS`, seed by seed; ScenarioError as `Grid.rows` raises it."""
    grid = over_methods(grid, METHODS)

    def row_name(method: str, settings: Mapping[str, Any]) -> str:
        return " ".join([method, *(f"{key}={shown(value)}" for key, value in settings.items() if key != METHOD)])

    rows, scenarios = grid.rows(first_seed, row_name, variant_name)
    study = BudgetStudy(
        grid.scenario_name,
        grid.overrides,
        tuple(rows),
        grid.seeds(seeds, first_seed, scenarios[0].scenario.seed, SEEDS),
        RunSet(KIND, scenarios[0].name, (), run_id),
        budgets=budgets,
    )
    needs = {kind: amounts[-1] for kind, amounts in budgets.items()}
    return study.with_runs(lambda row, seed: grid.load(row.settings, seed), needs)
