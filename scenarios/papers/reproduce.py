"""The runs that reproduce cells of a published figure; those with the same scenario and settings share them.

Of the figures that print Hessians these are measured once the runs have finished: each run folder gets the file that
``fedbr replay RUN --measure hessian`` writes. One that has it is not measured again, so that an interrupted
reproduction goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from coordinator.rounds.amounts import BYTES, NOMINAL_BYTES
from coordinator.rounds.run import RunFailed
from coordinator.workers import task
from coordinator.workers.launcher import WorkerLauncher
from edge.protocol.spelling import nearest
from scenarios.config.errors import COMMAND_LINE, ScenarioError
from scenarios.config.overrides import words
from scenarios.experiment.experiment import Experiment, ExperimentPage, ExperimentRow, Result, Stopped
from scenarios.experiment.grid import METHOD, Grid, axis_of, choices_of
from scenarios.experiment.run_set import PlannedRun, RunSet, is_interrupted
from scenarios.papers import figures, tables
from scenarios.papers.cells import CellSelection, reading, run_name
from scenarios.papers.published import HESSIAN_DIRECTION, HESSIAN_NORM, HESSIANS, TABLE_AMOUNTS
from scenarios.papers.spec import ACCURACY_AT, BEST_MEASURES, SCALES, STARTS, PaperFigure, Smoothing, scale_text
from scenarios.report import terminal
from scenarios.report.tables import csv_text
from scenarios.run.folder_files import MEASURED
from scenarios.run.host import Host
from scenarios.run.progress import TARGET
from scenarios.run.run_folder import RunFolder

if TYPE_CHECKING:
    from scenarios.studies.measure import MeasurePlan

ROW, PANEL, SETTING = "row", "panel", "setting"


@dataclass(frozen=True)
class Reproduction(Experiment):
    """Published values beside ours."""

    cells: CellSelection | None = None
    tell: Callable[[str], None] = lambda text: None
    """Shows lines of progress beside that of the runs"""

    @property
    def selection(self) -> CellSelection:
        """The cells to reproduce."""
        assert self.cells is not None
        return self.cells

    def complete(self, done: Result, host: Host, launcher: WorkerLauncher, stopped: Stopped) -> None:
        """Measure what the figure shows of finished runs."""
        measure_runs(self.selection, done, host, launcher, stopped, self.tell)

    def result(self, done: Result) -> dict[str, Any]:
        """``cells``: published and ours, with what both spent."""
        plan, is_counted = self.selection, not is_interrupted(done, self.run_set)
        smoothing = {} if plan.smoothing is None else {"accuracy": plan.smoothing.text}
        return {
            "name": plan.name,
            "title": plan.figure.title,
            "source": plan.figure.source,
            "scale": plan.scale,
            "seeds": list(self.seeds),
            **smoothing,
            "cells": [
                reading(plan, panel, row, done["runs"], is_counted) for panel in plan.panels for row in plan.rows
            ],
            "notes": list(plan.figure.notes),
            **done,
        }

    def page(self, result: Result) -> ExperimentPage:
        """The curves of each setting, and the paper's tables beside ours."""
        plan = self.selection
        facts = {"figure": plan.name, "scale": scale_text(plan.scale), "seeds": ", ".join(map(str, result["seeds"]))}
        return ExperimentPage(
            plan.figure.title,
            " ".join([f"{plan.figure.source}.", *plan.figure.notes]),
            facts | ({"accuracy": result["accuracy"]} if "accuracy" in result else {}),
            list(figures.figures(plan, result["runs"])),
            tables.tables(plan, result),
        )

    def show(self, result: Result, page: Path) -> None:
        """Print the tables: published values beside ours."""
        plan = self.selection
        print(f"{plan.figure.title}\n{plan.figure.source}\nscale: {scale_text(plan.scale)}")
        if plan.smoothing is not None:
            print(f"accuracy: {plan.smoothing.text}")
        for table in tables.tables(plan, result):
            terminal.print_table(table, columns=5 if plan.figure.is_table else 8)
        for note in plan.figure.notes:
            print(f"note: {note}")
        terminal.print_location(page)

    def files(self, result: Result, folder: Path) -> dict[str, str]:
        """``table.csv``, a row per cell."""
        keys = [key for key in result["cells"][0] if key not in ("ours", "nominal", "complete")]
        rows = (
            [
                *(" ".join(cell[key]) if isinstance(cell[key], list) else cell[key] for key in keys),
                *(cell["ours"]["mean"], cell["ours"]["deviation"], cell["ours"].get("half_width")),
                (cell["nominal"] or {}).get("mean"),
            ]
            for cell in result["cells"]
        )
        return {"table.csv": csv_text([*keys, "mean", "deviation", "half_width", "nominal_mean"], rows)}


# --- the plan ---------------------------------------------------------------------------------------------------------


def plan(
    name: str,
    scale: str,
    grid: Grid,
    seeds: int,
    first_seed: int | None = None,
    run_id: str | None = None,
    ema: str | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> Reproduction:
    """The runs that the cells need; ``row``, ``panel`` and ``setting`` of the grid choose cells by name.

    ``ema``: one of `STARTS`, for a figure whose paper averages accuracies; None for the figure's default.
    ScenarioError for unknown names.
    """
    figure = tables.named(name)
    if scale not in SCALES:
        raise ScenarioError(f"--scale {scale!r}: {nearest(scale, SCALES)}")
    grid, chosen = choices_of(grid, (ROW, PANEL, SETTING))
    known = {
        ROW: list(figure.rows),
        PANEL: [panel.name for panel in figure.panels],
        SETTING: list(figure.settings),
    }
    names = {key: _named(key, chosen[key], known[key]) for key in known}
    panels = [panel for panel in figure.panels if panel.name in names[PANEL] and panel.setting in names[SETTING]]
    if not panels:
        raise ScenarioError(f"{PANEL}: none of these is of a chosen {SETTING}", source=COMMAND_LINE)
    groups: dict[str, str] = {}
    for panel in panels:
        setting = figure.settings[panel.setting][scale]
        alike = (group for group in groups.values() if figure.settings[group][scale].is_as(setting))
        groups[panel.setting] = next(alike, panel.setting)
    overrides = words(grid.overrides)
    cells = CellSelection(name, figure, scale, panels, names[ROW], groups, overrides, _smoothing(name, figure, ema))
    run_set = RunSet(f"{name} {scale}", f"{name.replace(':', '-')}-{scale}", (), run_id)
    rows, runs = _runs(cells, grid, seeds, first_seed, run_set.name)
    numbers = sorted({run.loaded.scenario.seed for run in runs})
    return Reproduction(name, grid.overrides, rows, tuple(numbers), replace(run_set, runs=runs), (), cells, tell)


def _named(key: str, wanted: Sequence[str], known: Sequence[str]) -> list[str]:
    """The known names that are wanted, whatever their case; all if none is named."""
    by_case = {name.lower(): name for name in known}
    for name in wanted:
        if name.lower() not in by_case:
            raise ScenarioError(f"{key}: no {key} {name!r}: {nearest(name, known)}", source=COMMAND_LINE)
    chosen = [by_case[name.lower()] for name in wanted]
    return [name for name in known if name in chosen or not chosen]


def _smoothing(name: str, figure: PaperFigure, ema: str | None) -> Smoothing | None:
    if ema is None:
        return figure.smoothing
    if figure.smoothing is None:
        raise ScenarioError(f"--ema: the accuracies of {name} are not averaged over rounds")
    if ema not in STARTS:
        raise ScenarioError(f"--ema {ema!r}: {nearest(ema, STARTS)}")
    return replace(figure.smoothing, start=ema)


def _runs(
    cells: CellSelection, grid: Grid, seeds: int, first_seed: int | None, name: str
) -> tuple[tuple[ExperimentRow, ...], list[PlannedRun]]:
    """The rows, each a variant in a setting, and their runs, setting by setting and seed by seed."""
    paper_rows = [cells.figure.rows[row] for row in cells.rows]
    variants = {variant.name: variant for row in paper_rows for variant in row.variants(cells.scale)}
    if not variants:
        raise ScenarioError(f"{ROW}: {cells.rows[0]}: {paper_rows[0].note}", source=COMMAND_LINE)
    rows: list[ExperimentRow] = []
    runs: list[PlannedRun] = []
    for group in dict.fromkeys(cells.groups.values()):
        setting = cells.figure.settings[group][cells.scale]
        common = Grid(setting.scenario, (), {**setting.overrides, **grid.overrides})
        scenario = common.without_options().load({}).scenario
        needs = _needs(cells, group, scenario.rounds.max)
        start = scenario.seed if first_seed is None else first_seed
        own: list[tuple[ExperimentRow, Grid]] = []
        for variant in variants.values():
            overrides = {**setting.of_method(variant.method), **variant.settings, **grid.overrides}
            own.append((variant, Grid(setting.scenario, (axis_of(METHOD, [variant.method]),), overrides)))
            rows.append(replace(variant, name=f"{group}-{variant.name}", folder=f"{group}-{variant.name}"))
        for seed in range(start, start + seeds):
            for variant, its_grid in own:
                loaded = replace(its_grid.load({METHOD: variant.method}, seed), name=name)
                runs.append(PlannedRun(run_name(group, variant, seed), loaded, needs))
    for variant in variants.values():
        Grid({}, (axis_of(METHOD, [variant.method]),), variant.settings).check_options()
    methods = axis_of(METHOD, dict.fromkeys(variant.method for variant in variants.values()))
    replace(grid, scenario={}, axes=(methods,)).check_options()  # it names a table, not a scenario
    return tuple(rows), runs


def _needs(cells: CellSelection, group: str, rounds: int) -> dict[str, float]:
    """The needs of the runs of a setting, from all panels that read them."""
    needs: dict[str, float] = {}
    for panel in cells.panels:
        if cells.groups[panel.setting] != group or panel.measure in BEST_MEASURES:  # these need whole runs
            continue
        limit, kinds = cells.limit(panel), [TARGET]
        if panel.measure in TABLE_AMOUNTS:  # counted ones need none, but a study has runs
            limit, kinds = limit if panel.counts is None else 1.0, ["rounds"]
        elif panel.measure in ACCURACY_AT:
            amount = ACCURACY_AT[panel.measure]
            kinds = [amount.kind, NOMINAL_BYTES.kind] if amount is BYTES else [amount.kind]
        elif cells.smoothing is not None:  # an accuracy may reach the target long before the average does
            limit, kinds = float(rounds), ["rounds"]
        for kind in kinds:
            needs[kind] = max(needs.get(kind, 0.0), limit)
    return needs


# --- measurements of finished runs ------------------------------------------------------------------------------------


def measure_runs(
    plan: CellSelection,
    done: Result,
    host: Host,
    launcher: WorkerLauncher,
    stopped: Callable[[], bool],
    tell: Callable[[str], None],
) -> None:
    """Measure the runs of a figure that has values of Hessians; ``done`` is what `make_runs` returns.

    A run that cannot be measured is told, and its cells say that they are not measured.
    """
    from scenarios.studies import measure  # it imports workers, which lists of figures do not need

    options = plan.figure.hessians.get(plan.scale)
    if options is None or not any(panel.measure in HESSIANS for panel in plan.panels):
        return
    needs_clients = any(panel.measure in (HESSIAN_NORM, HESSIAN_DIRECTION) for panel in plan.panels)
    for run in done["runs"]:
        if stopped():
            return
        folder = Path(run["run_dir"])
        try:
            # Its plug-ins are those of this reproduction, which has imported them from where this process searches.
            with RunFolder(folder).open_scenario(host.device, allow_code=True) as (loaded, _):
                asked = measure.plan(
                    loaded,
                    folder,
                    ",".join(plan.figure.metrics),
                    options.overrides,
                    None,
                    None if needs_clients else "none",
                )
                if not is_measured(asked, folder / MEASURED):
                    tell(f"{folder.name}: Hessians of its models")
                    lines = measure.progress_lines(tell)
                    measure.write(measure.measure(asked, folder, host, launcher, stopped, lines), folder / MEASURED)
        except task.Stopped:
            return
        except (RunFailed, task.PoolError) as error:
            tell(f"{run['name']} is not measured: {error}")


def is_measured(asked: MeasurePlan, file: Path) -> bool:
    """Whether a file has this measurement of this checkpoint, of the same models of clients."""
    if not file.is_file():
        return False
    found = json.loads(file.read_text(encoding="utf-8"))
    wanted = to_builtins(asked.evaluation.metric_options)
    same = (asked.round + 1, wanted, asked.clients)
    return bool((found["round"], found["metric_options"], found["clients"]) == same)
