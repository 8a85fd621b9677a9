"""The registry of published figures and tables, and the runs that reproduce their cells.

Cells with the same scenario, method and overrides share their runs. `cells` reads the runs, `tables` shows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from edge.protocol.spelling import nearest
from scenarios.config.load import ScenarioError, load
from scenarios.experiment.compare import check_options, check_settings
from scenarios.experiment.run_set import PlannedRun, RunSet
from scenarios.papers import fedalign, fedbr, fedmlb, pfedmb
from scenarios.papers.amounts import TABLE_AMOUNTS
from scenarios.papers.cells import ReproductionPlan, changed, described, run_name
from scenarios.papers.moving_average import STARTS, Smoothing
from scenarios.papers.spec import ACCURACY_AT, BEST_MEASURES, SCALES, PaperFigure, PaperPanel, TablePart
from scenarios.run.progress import TARGET

FIGURES: dict[str, PaperFigure] = {
    **fedbr.FIGURES,
    **fedmlb.FIGURES,
    **pfedmb.FIGURES,
    **fedalign.FIGURES,
}


def named(name: str) -> PaperFigure:
    """A figure of the registry; ScenarioError with the nearest for an unknown one."""
    if name not in FIGURES:
        raise ScenarioError(f"no published figure {name!r}: {nearest(name, FIGURES)}")
    return FIGURES[name]


def plan(
    name: str,
    scale: str,
    cells: str | None,
    overrides: Sequence[str],
    seeds: int,
    first_seed: int | None = None,
    run_id: str | None = None,
    ema: str | None = None,
) -> ReproductionPlan:
    """The runs that the cells need; ``cells`` names rows, panels and settings, separated by commas; None means all.

    ``ema``: one of `STARTS`, for a figure whose paper averages accuracies; None for the figure's default.
    ScenarioError for unknown names.
    """
    figure = named(name)
    if scale not in SCALES:
        raise ScenarioError(f"--scale {scale!r}: {nearest(scale, SCALES)}")
    panels, rows = _chosen(figure, cells)
    first: dict[tuple[str, tuple[str, ...]], str] = {}
    groups: dict[str, str] = {}
    for panel in panels:
        setting = figure.settings[panel.setting][scale]
        groups[panel.setting] = first.setdefault((setting.scenario, setting.overrides), panel.setting)
    run_set = RunSet(f"{name} {scale}", f"{name.replace(':', '-')}-{scale}", (), run_id)
    draft = ReproductionPlan(
        name, figure, scale, panels, rows, run_set, groups, overrides, _smoothing(name, figure, ema)
    )
    return replace(draft, run_set=replace(run_set, runs=_runs(draft, seeds, first_seed)))


def _smoothing(name: str, figure: PaperFigure, ema: str | None) -> Smoothing | None:
    if ema is None:
        return figure.smoothing
    if figure.smoothing is None:
        raise ScenarioError(f"--ema: the accuracies of {name} are not averaged over rounds")
    if ema not in STARTS:
        raise ScenarioError(f"--ema {ema!r}: {nearest(ema, STARTS)}")
    return replace(figure.smoothing, start=ema)


def _chosen(figure: PaperFigure, cells: str | None) -> tuple[list[PaperPanel], list[str]]:
    panels, rows = list(figure.panels), list(figure.rows)
    if cells is None:
        return panels, rows
    known = {name.lower(): name for name in [*figure.settings, *rows, *(panel.name for panel in panels)]}
    wanted = []
    for cell in (piece.strip() for piece in cells.split(",")):
        if cell.lower() not in known:
            raise ScenarioError(f"--cells: no cell {cell!r}: {nearest(cell, known.values())}")
        wanted.append(known[cell.lower()])
    return (
        [panel for panel in panels if panel.name in wanted or panel.setting in wanted] or panels,
        [row for row in rows if row in wanted] or rows,
    )


def _runs(draft: ReproductionPlan, seeds: int, first_seed: int | None) -> list[PlannedRun]:
    rows = [draft.figure.rows[row] for row in draft.rows]
    chosen = list(dict.fromkeys(variant for row in rows for variant in row.variants(draft.scale)))
    if not chosen:
        raise ScenarioError(f"--cells: {draft.rows[0]}: {rows[0].note}")
    runs = []
    for group in dict.fromkeys(draft.groups.values()):
        setting = draft.figure.settings[group][draft.scale]
        scenario = check_settings(setting.scenario, [*setting.overrides, *draft.overrides]).scenario
        needs = _needs(draft, group, scenario.rounds.max)
        start = scenario.seed if first_seed is None else first_seed
        for seed in range(start, start + seeds):
            for variant in chosen:
                own = setting.of_method(variant.method)
                overrides = [*own, *variant.overrides, *draft.overrides, f"seed={seed}"]
                loaded = load(setting.scenario, overrides, variant.method)
                runs.append(PlannedRun(run_name(group, variant, seed), replace(loaded, name=draft.run_set.name), needs))
    for variant in chosen:
        check_options(variant.overrides, [variant.method])
    check_options(draft.overrides, [variant.method for variant in chosen])
    return runs


def _needs(draft: ReproductionPlan, group: str, rounds: int) -> dict[str, float]:
    """The needs of the runs of a setting, from all panels that read them."""
    needs: dict[str, float] = {}
    for panel in draft.panels:
        if draft.groups[panel.setting] != group or panel.measure in BEST_MEASURES:  # these need whole runs
            continue
        limit, kinds = draft.limit(panel), [TARGET]
        if panel.measure in TABLE_AMOUNTS:  # counted ones need none, but a study has runs
            limit, kinds = limit if panel.counts is None else 1.0, ["rounds"]
        elif panel.measure in ACCURACY_AT:
            kind = ACCURACY_AT[panel.measure]
            kinds = [kind, "nominal"] if kind == "bytes" else [kind]
        elif draft.smoothing is not None:  # an accuracy may reach the target long before the average does
            limit, kinds = float(rounds), ["rounds"]
        for kind in kinds:
            needs[kind] = max(needs.get(kind, 0.0), limit)
    return needs


def catalogue(name: str | None = None) -> list[dict[str, Any]]:
    """Every cell of one figure, or of all: its setting at each scale and its printed value."""
    wanted = FIGURES if name is None else {name: named(name)}
    return [
        {
            "name": key,
            "panel": panel.name,
            "title": panel.title,
            **described(panel, label, row),
            "scales": {
                scale: {
                    "scenario": setting.scenario,
                    "overrides": [*setting.of_method(row.method), *part.overrides],
                    "limit": setting.limit(panel),
                    "changed": "; ".join([*changed(setting, panel), *([part.changed] if part.changed else [])]),
                }
                for scale, setting in figure.settings[panel.setting].items()
                for part in [row.scaled.get(scale, TablePart())]
            },
        }
        for key, figure in wanted.items()
        for panel in figure.panels
        for label, row in figure.rows.items()
    ]
