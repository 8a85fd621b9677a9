"""Published figures and tables made again: each cell beside what the paper prints, and with what was changed for it.

A figure is a row of `FIGURES`; cells that share a scenario share its runs. A number that was made at another scale
than the paper's is marked as scaled wherever it stands. One folder holds it all, as in `budget`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coordinator.nursery import Nursery
from costmodel.units import nearest
from scenarios.host import Host
from scenarios.load import ScenarioError, load
from scenarios.studies import reproduce_fedbr
from scenarios.studies.compare import check_options, check_settings
from scenarios.studies.papers import ACCURACY_AT, PAPER, SCALES, TO_ACCURACY, Figure, Panel, Row, Setting, Variant
from scenarios.studies.series import Part, Study, run_all
from scenarios.studies.trail import AMOUNTS, TARGET, Trail, at_budget, spread, to_target, trail

FIGURES: dict[str, Figure] = {**reproduce_fedbr.FIGURES}


@dataclass(frozen=True)
class Plan:
    """What is to be made of one figure."""

    name: str
    figure: Figure
    scale: str
    panels: Sequence[Panel]
    rows: Sequence[str]
    study: Study
    groups: Mapping[str, str]
    """Setting -> the one that lends it its runs: itself, or an earlier one with the same scenario."""
    overrides: Sequence[str]
    """Of the command line."""

    def setting(self, panel: Panel) -> Setting:
        """What stands for a panel's setting at this scale."""
        return self.figure.settings[panel.setting][self.scale]

    def limit(self, panel: Panel) -> float:
        """The panel's budget or target at this scale."""
        return self.setting(panel).limit(panel)


def named(name: str) -> Figure:
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
) -> Plan:
    """Which runs the cells need; ``cells`` names rows and panels, separated by commas, and None means all."""
    figure = named(name)
    if scale not in SCALES:
        raise ScenarioError(f"--scale {scale!r}: {nearest(scale, SCALES)}")
    panels, rows = _chosen(figure, cells)
    lent: dict[tuple[str, tuple[str, ...]], str] = {}
    groups: dict[str, str] = {}
    for panel in panels:
        setting = figure.settings[panel.setting][scale]
        groups[panel.setting] = lent.setdefault((setting.scenario, setting.overrides), panel.setting)
    study = Study(f"{name} {scale}", f"{name.replace(':', '-')}-{scale}", (), run_id)
    made = Plan(name, figure, scale, panels, rows, study, groups, overrides)
    return replace(made, study=replace(study, parts=_parts(made, seeds, first_seed)))


def _chosen(figure: Figure, cells: str | None) -> tuple[list[Panel], list[str]]:
    panels, rows = list(figure.panels), list(figure.rows)
    if cells is None:
        return panels, rows
    known = {name.lower(): name for name in [*rows, *(panel.name for panel in panels)]}
    wanted = []
    for cell in (piece.strip() for piece in cells.split(",")):
        if cell.lower() not in known:
            raise ScenarioError(f"--cells: no cell {cell!r}: {nearest(cell, known.values())}")
        wanted.append(known[cell.lower()])
    return (
        [panel for panel in panels if panel.name in wanted] or panels,
        [row for row in rows if row in wanted] or rows,
    )


def _parts(made: Plan, seeds: int, first_seed: int | None) -> list[Part]:
    chosen = list(dict.fromkeys(variant for row in made.rows for variant in made.figure.rows[row].variants()))
    parts = []
    for group in dict.fromkeys(made.groups.values()):
        setting, needs = made.figure.settings[group][made.scale], _needs(made, group)
        asked = check_settings(setting.scenario, [*setting.overrides, *made.overrides])
        start = asked.scenario.seed if first_seed is None else first_seed
        for seed in range(start, start + seeds):
            for variant in chosen:
                given = [*setting.overrides, *variant.overrides, *made.overrides, f"seed={seed}"]
                loaded = load(setting.scenario, given, variant.method)
                parts.append(Part(run_name(group, variant, seed), replace(loaded, name=made.study.name), needs))
    for variant in chosen:
        check_options(variant.overrides, [variant.method])
    check_options(made.overrides, [variant.method for variant in chosen])
    return parts


def run_name(group: str, variant: Variant, seed: int) -> str:
    """Of the folder of one run."""
    return f"{group}-{variant.name}-seed{seed}"


def _needs(made: Plan, group: str) -> dict[str, float]:
    """How far the runs of a group must go for all panels that read them."""
    needs: dict[str, float] = {}
    for panel in made.panels:
        if made.groups[panel.setting] != group:
            continue
        kinds = [TARGET]
        if panel.measure in ACCURACY_AT:
            kind = ACCURACY_AT[panel.measure]
            kinds = [kind, "nominal"] if kind == "bytes" else [kind]
        for kind in kinds:
            needs[kind] = max(needs.get(kind, 0.0), made.limit(panel))
    return needs


def run(made: Plan, host: Host, nursery: Nursery, stopped: Callable[[], bool]) -> dict[str, Any]:
    """Make the runs and read the cells; the result is what ``reproduce --json`` prints. Errors as of `series`."""
    return read_off(made, run_all(made.study, host, nursery, stopped))


def read_off(made: Plan, done: Mapping[str, Any]) -> dict[str, Any]:
    """The cells, from runs that have been made."""
    return {
        "name": made.name,
        "title": made.figure.title,
        "source": made.figure.source,
        "scale": made.scale,
        "seeds": sorted({part.loaded.scenario.seed for part in made.study.parts}),
        "cells": [_cell(made, panel, row, done["runs"]) for panel in made.panels for row in made.rows],
        "notes": list(made.figure.notes),
        **done,
    }


def trails_of(runs: Sequence[Mapping[str, Any]], group: str, row: Row) -> list[Trail]:
    """What the runs of one row in one scenario spent and reached, in the order of the seeds."""
    mine = [one for variant in row.variants() for one in runs if one["name"] == run_name(group, variant, one["seed"])]
    return [trail(Path(one["run_dir"])) for one in mine]


def _cell(made: Plan, panel: Panel, name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    row, limit = made.figure.rows[name], made.limit(panel)
    words = [changed(made.setting(panel), panel), *(f"{override} was asked for" for override in made.overrides)]
    if made.groups[panel.setting] != panel.setting:
        words.append(f"the same runs as for {made.groups[panel.setting]}")
    return {
        "panel": panel.name,
        "row": name,
        "method": row.method,
        "overrides": list(row.overrides),
        "measure": panel.measure,
        "published_limit": panel.limit,
        "published": panel.published.get(name),
        "limit": limit,
        "scaled": made.scale != PAPER,
        "changed": "; ".join(words),
        **measured(trails_of(runs, made.groups[panel.setting], row), panel.measure, limit),
    }


def changed(setting: Setting, panel: Panel) -> str:
    """What a panel's numbers have in common that is not the paper's, in words."""
    return "; ".join(text for text in (setting.changed, setting.why(panel)) if text)


def measured(trails: Sequence[Trail], measure: str, limit: float) -> dict[str, Any]:
    """One cell from the runs of its seeds.

    ``ours`` is the accuracy at the budget, or the amount until the target; ``nominal`` the same by nominal bytes, for
    measures of bytes; ``complete`` whether each run used the budget up or reached the target. The other keys are
    means of what had been spent by then.
    """
    if measure in ACCURACY_AT:
        kind = ACCURACY_AT[measure]
        readings = [at_budget(points, kind, limit) for points in trails]
        reached = [reading.point for reading in readings]
        complete = [reading.used_up for reading in readings]
        values = [reading.accuracy for reading in readings]
        nominal = [at_budget(points, "nominal", limit).accuracy for points in trails]
    else:
        kind = TO_ACCURACY[measure]
        reached = [to_target(points, limit) for points in trails]
        complete = [point is not None for point in reached]
        values = [float(getattr(point, AMOUNTS[kind])) if point else None for point in reached]
        nominal = [point.nominal_nbytes if point else None for point in reached]
    spent = {
        key: spread([float(getattr(point, name)) if point else None for point in reached])["mean"]
        for key, name in {**AMOUNTS, "nominal": "nominal_nbytes"}.items()
    }
    return {
        "ours": spread(values),
        "nominal": spread(nominal) if kind == "bytes" else None,
        "complete": complete,
        "bytes": spent["bytes"],
        "nominal_bytes": spent["nominal"],
        "virtual_seconds": spent["time"],
        "rounds": spent["rounds"],
    }


def catalogue(name: str | None = None) -> list[dict[str, Any]]:
    """Every cell of one figure, or of all: its setting at each scale and what the paper prints."""
    wanted = FIGURES if name is None else {name: named(name)}
    return [
        {
            "name": key,
            "panel": panel.name,
            "title": panel.title,
            "measure": panel.measure,
            "row": name,
            "method": row.method,
            "overrides": list(row.overrides),
            "published": panel.published.get(name),
            "scales": {
                scale: {
                    "scenario": setting.scenario,
                    "overrides": list(setting.overrides),
                    "limit": setting.limit(panel),
                    "changed": changed(setting, panel),
                }
                for scale, setting in figure.settings[panel.setting].items()
            },
        }
        for key, figure in wanted.items()
        for panel in figure.panels
        for name, row in figure.rows.items()
    ]
