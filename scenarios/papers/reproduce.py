"""The runs that reproduce cells of a published figure; those with the same scenario and settings share them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from edge.protocol.spelling import nearest
from scenarios.config.errors import COMMAND_LINE, ScenarioError
from scenarios.config.overrides import parse_all, words
from scenarios.experiment.experiment import ExperimentRow
from scenarios.experiment.grid import METHOD, Grid, axis_of, choices_of
from scenarios.experiment.run_set import PlannedRun, RunSet
from scenarios.papers.amounts import TABLE_AMOUNTS
from scenarios.papers.cells import CellSelection, run_name
from scenarios.papers.moving_average import STARTS, Smoothing
from scenarios.papers.registry import named
from scenarios.papers.spec import ACCURACY_AT, BEST_MEASURES, SCALES, PaperFigure
from scenarios.papers.tables import Reproduction
from scenarios.run.progress import TARGET

ROW, PANEL, SETTING = "row", "panel", "setting"


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
    figure = named(name)
    if scale not in SCALES:
        raise ScenarioError(f"--scale {scale!r}: {nearest(scale, SCALES)}")
    grid, chosen = choices_of(grid, (ROW, PANEL, SETTING))
    names = {key: _named(key, chosen[key], known) for key, known in _names(figure).items()}
    panels = [panel for panel in figure.panels if panel.name in names[PANEL] and panel.setting in names[SETTING]]
    if not panels:
        raise ScenarioError(f"{PANEL}: none of these is of a chosen {SETTING}", source=COMMAND_LINE)
    first: dict[tuple[str, tuple[str, ...]], str] = {}
    groups: dict[str, str] = {}
    for panel in panels:
        setting = figure.settings[panel.setting][scale]
        groups[panel.setting] = first.setdefault((setting.scenario, setting.overrides), panel.setting)
    overrides = words(grid.overrides)
    cells = CellSelection(name, figure, scale, panels, names[ROW], groups, overrides, _smoothing(name, figure, ema))
    run_set = RunSet(f"{name} {scale}", f"{name.replace(':', '-')}-{scale}", (), run_id)
    rows, runs = _runs(cells, grid, seeds, first_seed, run_set.name)
    numbers = sorted({run.loaded.scenario.seed for run in runs})
    return Reproduction(name, grid.overrides, rows, tuple(numbers), replace(run_set, runs=runs), (), cells, tell)


def _names(figure: PaperFigure) -> dict[str, list[str]]:
    return {
        ROW: list(figure.rows),
        PANEL: [panel.name for panel in figure.panels],
        SETTING: list(figure.settings),
    }


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
        common = Grid(setting.scenario, (), {**parse_all(setting.overrides), **grid.overrides})
        scenario = common.without_options().load({}).scenario
        needs = _needs(cells, group, scenario.rounds.max)
        start = scenario.seed if first_seed is None else first_seed
        own: list[tuple[ExperimentRow, Grid]] = []
        for variant in variants.values():
            own_words = parse_all(setting.of_method(variant.method))
            overrides = {**own_words, **variant.settings, **grid.overrides}
            own.append((variant, Grid(setting.scenario, (axis_of(METHOD, [variant.method]),), overrides)))
            rows.append(replace(variant, name=f"{group}-{variant.name}", folder=f"{group}-{variant.name}"))
        for seed in range(start, start + seeds):
            for variant, its_grid in own:
                loaded = replace(its_grid.load({METHOD: variant.method}, seed), name=name)
                runs.append(PlannedRun(run_name(group, variant, seed), loaded, needs))
    for variant in variants.values():
        Grid("", (axis_of(METHOD, [variant.method]),), variant.settings).check_options()
    methods = axis_of(METHOD, dict.fromkeys(variant.method for variant in variants.values()))
    replace(grid, axes=(methods,)).check_options()
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
            kind = ACCURACY_AT[panel.measure]
            kinds = [kind, "nominal"] if kind == "bytes" else [kind]
        elif cells.smoothing is not None:  # an accuracy may reach the target long before the average does
            limit, kinds = float(rounds), ["rounds"]
        for kind in kinds:
            needs[kind] = max(needs.get(kind, 0.0), limit)
    return needs
