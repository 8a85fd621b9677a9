"""What a sweep writes and shows: tables as Markdown, CSV and LaTeX, a report with bands over seeds, the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from edge.protocol.files import write_text
from scenarios.experiment import sweep_tables as tables
from scenarios.experiment.results import SPENT, trails
from scenarios.experiment.run_set import Study, warning_lines
from scenarios.experiment.sweep import SweepPlan, read_off
from scenarios.report import bands, terminal
from scenarios.report.csv_files import write_csv
from scenarios.report.pages import write_study
from scenarios.report.progress import Trail

MOST_BANDS = 12
"""Cells of the figure; of more, those with the best mean accuracy are drawn."""
LEAD = (
    "Each cell ran once per seed, to its limit; no target stopped it. Bytes are counted on the messages, down and up, "
    "of all clients; time and energy are the simulated fleet's."
)
OF_RUN = ("accuracy", "best_accuracy", "rounds", "virtual_seconds", "bytes_down", "bytes_up", "joules", "model_sha256")


def study(planned: SweepPlan) -> Study:
    """The study of the runs of a `plan`."""
    return Study(planned.run_set, partial(read_off, planned), partial(draw, planned.run_set.name), show, write_tables)


def write_tables(result: Mapping[str, Any], folder: Path) -> None:
    """Write ``sweep.md``, ``sweep.tex``, ``sweep.csv`` (a row per cell), ``pairs.csv`` and ``runs.csv``."""
    found = tables.tables(result)
    write_text(folder / "sweep.md", tables.markdown(found))
    write_text(folder / "sweep.tex", tables.latex(found))
    write_csv(folder / "sweep.csv", *tables.numbers(result))
    write_csv(folder / "pairs.csv", *tables.pair_numbers(result))
    write_csv(folder / "runs.csv", *run_numbers(result))


def run_numbers(result: Mapping[str, Any]) -> tuple[list[str], list[list[Any]]]:
    """Header and rows of ``runs.csv``: a row per run, with what it spent until each target."""
    keys = list(dict.fromkeys(key for row in result["rows"] for key in row["settings"]))
    runs = {run["name"]: run for run in result["runs"]}
    spent = [f"{key}_to_{target:g}" for target in result["targets"] for key in SPENT]
    table = []
    for row in result["rows"]:
        for index, (seed, name) in enumerate(zip(row["seeds"], row["runs"], strict=True)):
            own = [runs[name].get(key) for key in OF_RUN]
            until = [found[key]["values"][index] for found in row["to_target"] for key in SPENT]
            table.append([name, *(row["settings"].get(key) for key in keys), seed, *own, *until])
    return ["run", *keys, "seed", *OF_RUN, *spent], table


def draw(name: str, result: Mapping[str, Any], folder: Path) -> Path:
    """Write the report: bands of accuracy over seeds, and all tables."""
    return write_study(
        folder / "report.html",
        f"{name}: {', '.join(result['axes']) or 'seeds'}",
        LEAD,
        _facts(result),
        [("bands", _bands(result), _caption(result))] if result["rows"] else [],
        tables.tables(result),
        warning_lines(result),
    )


def _facts(result: Mapping[str, Any]) -> dict[str, str]:
    common = {"all runs": " ".join(result["overrides"])} if result.get("overrides") else {}
    return {"scenario": result["scenario"], **common, "seeds": ", ".join(map(str, result["seeds"]))}


def _bands(result: Mapping[str, Any]) -> str:
    return bands.draw(
        [
            bands.band(method, kind, runs, label=label)
            for kind in ("bytes", "time")
            for label, (method, runs) in _drawn(result).items()
        ],
        {},
    )


def _drawn(result: Mapping[str, Any]) -> dict[str, tuple[str, Sequence[Trail]]]:
    """Label of a cell -> its method and the progress curves of its runs."""
    names = {row["name"]: dict(enumerate(row["runs"])) for row in result["rows"]}
    found = trails(names, result["runs"])
    labels = zip(tables.labels(result["rows"]), result["rows"], strict=True)
    best = sorted(labels, key=lambda pair: pair[1]["accuracy"]["mean"] or 0.0, reverse=True)[:MOST_BANDS]
    kept = {label for label, _ in best}
    shown = zip(tables.labels(result["rows"]), result["rows"], strict=True)
    return {label: (row["method"], list(found[row["name"]].values())) for label, row in shown if label in kept}


def _caption(result: Mapping[str, Any]) -> str:
    caption = (
        "Test accuracy when last evaluated, mean over seeds; the band is one sample deviation to either side. A curve "
        "ends where the first of its runs ends."
    )
    count = len(result["rows"])
    return f"{caption} The {MOST_BANDS} most accurate of {count} cells." if count > MOST_BANDS else caption


def show(result: Mapping[str, Any], page: Path) -> None:
    """Print the tables that a terminal has room for, and where the report with all of them is."""
    for table in tables.short(result, terminal.console_on(None).width):
        terminal.print_table(table, columns=len(table.header))
    terminal.print_location(page)
