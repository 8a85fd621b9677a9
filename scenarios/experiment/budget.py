"""Accuracy against budgets of bytes and virtual time: one run per method and seed, from which all budgets are read.

A run goes on until the largest budget of each kind is used up, or until rounds.max. Budgets do not cut a round short,
so that all are read in the same way (`report.progress`). One folder holds a study: a run folder per method and seed,
``study.json``, ``table.csv``, ``curves.csv`` and ``report.html``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from costmodel import units
from scenarios.config.load import ScenarioError
from scenarios.experiment.compare import variants
from scenarios.experiment.run_set import PlannedRun, RunSet, Study, missing_note
from scenarios.report import bands as curves
from scenarios.report import terminal
from scenarios.report.columns import PERCENT, cells
from scenarios.report.csv_files import write_csv
from scenarios.report.pages import PageTable, write_study
from scenarios.report.progress import Trail, at_budget, spread, trail

PARSE: dict[str, Callable[[str], float]] = {"bytes": units.nbytes, "time": units.seconds}
EXAMPLES = {"bytes": '"1 MB,2 MB"', "time": '"5 min,15 min"'}
READ_AS = "accuracy when last evaluated within the budget, mean ± deviation over seeds"
Budgets = Mapping[str, Sequence[float]]
"""bytes and time -> amounts in bytes and seconds, smallest first"""


def budgets(nbytes: str | None, seconds: str | None) -> Budgets:
    """The lists of the options ``--bytes`` and ``--time``; ScenarioError if both are missing or one cannot be read."""
    lists = {kind: text for kind, text in (("bytes", nbytes), ("time", seconds)) if text is not None}
    if not lists:
        raise ScenarioError(f"name budgets with --bytes {EXAMPLES['bytes']}, --time {EXAMPLES['time']}, or both")
    return {kind: _amounts(kind, text) for kind, text in lists.items()}


def _amounts(kind: str, text: str) -> list[float]:
    pieces = [piece.strip() for piece in text.split(",")]
    if not all(pieces):
        raise ScenarioError(f"--{kind} {text!r}: write amounts separated by commas, for example {EXAMPLES[kind]}")
    try:
        amounts = [PARSE[kind](piece) for piece in pieces]
    except ValueError as error:
        raise ScenarioError(f"--{kind}: {error}") from None
    for piece, amount in zip(pieces, amounts, strict=True):
        if amount <= 0:
            raise ScenarioError(f"--{kind}: {piece!r}: a budget must be above 0")
        if amounts.count(amount) > 1:
            raise ScenarioError(f"--{kind}: {piece!r} is named twice")
    return sorted(amounts)


def plan(
    name: str,
    overrides: Sequence[str],
    methods: str,
    wanted: Budgets,
    seeds: int,
    first_seed: int | None = None,
    run_id: str | None = None,
) -> RunSet:
    """The runs of a study, seed by seed from the scenario's own on; ScenarioError as `compare.variants` raises it."""
    needs = {kind: amounts[-1] for kind, amounts in wanted.items()}
    first = variants(name, overrides, methods, first_seed)
    start = first[0].scenario.seed
    runs = []
    for seed in range(start, start + seeds):
        for loaded in first if seed == start else variants(name, overrides, methods, seed):
            runs.append(PlannedRun(f"{loaded.scenario.method}-seed{seed}", loaded, needs))
    return RunSet("budget", first[0].name, runs, run_id)


def study(planned: RunSet, wanted: Budgets) -> Study:
    """The study of these budgets on the runs of a `plan`."""
    return Study(planned, partial(read_off, planned, wanted), partial(draw, planned), show, write_tables)


def read_off(planned: RunSet, wanted: Budgets, done: Mapping[str, Any]) -> dict[str, Any]:
    """What ``study budget --json`` prints, from what `make_runs` returns: accuracy per budget and method."""
    methods = list(dict.fromkeys(run.loaded.scenario.method for run in planned.runs))
    seeds = list(dict.fromkeys(run.loaded.scenario.seed for run in planned.runs))
    trails = by_method(done["runs"])
    return {
        "methods": methods,
        "seeds": seeds,
        **{kind: [_at(trails, kind, amount) for amount in wanted.get(kind, ())] for kind in PARSE},
        **done,
    }


def by_method(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[Trail]]:
    """Method -> the progress curves of its runs, in their order."""
    trails: dict[str, list[Trail]] = {}
    for run in runs:
        trails.setdefault(run["method"], []).append(trail(Path(run["run_dir"])))
    return trails


def _at(trails: Mapping[str, Sequence[Trail]], kind: str, amount: float) -> dict[str, Any]:
    cells = {}
    for method, curves_of_seeds in trails.items():
        readings = [at_budget(points, kind, amount) for points in curves_of_seeds]
        cells[method] = {
            **spread([reading.accuracy for reading in readings]),
            "rounds": [reading.point.rounds if reading.point else None for reading in readings],
            "used_up": [reading.used_up for reading in readings],
        }
    return {"budget": amount, "accuracy": cells}


# --- files and output -------------------------------------------------------------------------------------------


def write_tables(result: Mapping[str, Any], folder: Path) -> None:
    """Write ``table.csv``, a row per budget, method and seed, and ``curves.csv``, the points of the bands."""
    head = ["method", "seed", "kind", "budget", "accuracy", "round", "used_up"]
    write_csv(folder / "table.csv", head, _table_rows(result))
    curves.write_csv(_bands(result), folder / "curves.csv")


def _amounts_of(result: Mapping[str, Any]) -> dict[str, list[float]]:
    return {kind: [row["budget"] for row in result[kind]] for kind in PARSE}


def _bands(result: Mapping[str, Any]) -> list[curves.Band]:
    trails = by_method(result["runs"]).items()
    limits = {kind: max(amounts, default=None) for kind, amounts in _amounts_of(result).items()}
    return [curves.band(method, kind, runs, limit) for kind, limit in limits.items() for method, runs in trails]


def draw(planned: RunSet, result: Mapping[str, Any], folder: Path) -> Path:
    """Write the report: a figure of the bands and a table per kind of budget."""
    caption = (
        f"Test accuracy when last evaluated, mean over {_seeds(result)}; the band is one sample deviation to either "
        "side. Dashed lines are budgets that were reached. A curve ends where the first of its runs ends."
    )
    return write_study(
        folder / "report.html",
        f"{planned.name}: accuracy against budgets",
        "Each method ran once per seed; all budgets are read off those runs. Bytes are counted on the messages, down "
        "and up, of all clients; time is the simulated fleet's.",
        {
            "scenario": planned.name,
            "methods": ", ".join(result["methods"]),
            "seeds": ", ".join(map(str, result["seeds"])),
        },
        [("bands", curves.draw(_bands(result), _amounts_of(result)), caption)],
        [_table(result, kind) for kind in PARSE if result[kind]],
    )


def _table_rows(result: Mapping[str, Any]) -> Iterator[list[Any]]:
    for kind in PARSE:
        for row in result[kind]:
            for method, cell in row["accuracy"].items():
                seeds = [run["seed"] for run in result["runs"] if run["method"] == method]
                columns = (seeds, cell["values"], cell["rounds"], cell["used_up"])
                for seed, accuracy, count, used_up in zip(*columns, strict=True):
                    yield [method, seed, kind, row["budget"], accuracy, count, used_up]


def show(result: Mapping[str, Any], page: Path) -> None:
    """Print the tables: a row per budget and a column per method, at most four to a table."""
    for kind in PARSE:
        if result[kind]:
            terminal.print_table(_table(result, kind))
    terminal.print_location(page)


def _table(result: Mapping[str, Any], kind: str) -> PageTable:
    methods = [method for method in result["methods"] if method in result[kind][0]["accuracy"]]
    # They name the rows, so each is written as a user writes it, in its own unit.
    budgets = [curves.SHOWN[kind](row["budget"]) for row in result[kind]]
    columns = [accuracy_cells([row["accuracy"][method] for row in result[kind]]) for method in methods]
    rows = [list(row) for row in zip(budgets, *columns, strict=True)]
    short = any(not all(row["accuracy"][method]["used_up"]) for row in result[kind] for method in methods)
    ends = sorted({str(run["stopped_by"]).replace("_", " ") for run in result["runs"]} - {"budgets"})
    note = f"* not used up: a run ended before, by {' or '.join(ends)}; raise rounds.max or what else ended it"
    title = f"accuracy at budgets of {'bytes' if kind == 'bytes' else 'virtual time'}"
    return PageTable(
        title, ["budget", *methods], rows, [_how(result), *([note] if short else []), *missing_note(result)]
    )


def _how(result: Mapping[str, Any]) -> str:
    return f"{READ_AS} ({_seeds(result)})"


def _seeds(result: Mapping[str, Any]) -> str:
    count = len(result["seeds"])
    return f"{count} seed{'s' if count > 1 else ''}"


def accuracy_cells(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """``93.1 ± 0.4 %``, with a star where a run ended before the budget; a dash before the first evaluation."""
    means, deviations = ([each[key] for each in found] for key in ("mean", "deviation"))
    return [
        text + ("" if each["mean"] is None or all(each["used_up"]) else " *")
        for text, each in zip(cells(PERCENT, means, deviations, "-"), found, strict=True)
    ]
