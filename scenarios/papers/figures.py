"""The figures of a reproduction: curves, what methods chose, and pictures of the loss around models.

A picture of the loss is drawn from what ``fedbr replay RUN --measure loss-surface`` leaves in a run folder.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coordinator.rounds.amounts import BY_KIND
from edge.protocol.messages import SUBVALUE
from scenarios.papers.cells import CellSelection, RunOfCell
from scenarios.papers.spec import ACCURACY_AT, BEST_MEASURES, scale_text
from scenarios.report import bands as curves
from scenarios.report.run_reader import open_runs
from scenarios.run.folder_files import MEASURED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BYTES, TIME, ROUNDS = "bytes", "time", "rounds"
METRIC = "loss-surface"
CAPTION = (
    "the loss on training examples along the first two eigenvectors of the Hessian at the last global model, each in "
    "its own plane, with equal colours for equal losses. Lines are at equal distances of the logarithm."
)
COLUMNS, PANEL_PIXELS, LEVELS = 3, 360, 14


def figures(plan: CellSelection, runs: Sequence[RunOfCell]) -> Iterator[tuple[str, str, str]]:
    """(name, HTML, caption) of each figure, setting by setting."""
    kinds = (ROUNDS,) if plan.figure.is_table else (BYTES, TIME)
    shown = "test accuracy when last evaluated" if plan.smoothing is None else plan.smoothing.text
    for group in dict.fromkeys(plan.groups.values()):
        trails = {
            row: [points for of_seeds in plan.trails(runs, group, row) for points in of_seeds] for row in plan.rows
        }
        methods = {row: plan.figure.rows[row].method for row in plan.rows}
        bands = [
            curves.band(methods[row], kind, each, label=row) for kind in kinds for row, each in trails.items() if each
        ]
        budgets = {
            kind: sorted(
                {
                    plan.limit(panel)
                    for panel in plan.panels
                    if panel.measure not in BEST_MEASURES and ACCURACY_AT.get(panel.measure) == BY_KIND[kind]
                }
            )
            for kind in kinds
        }
        if bands:
            lines = "rounds that the table reads" if plan.figure.is_table else "budgets that were reached"
            caption = (
                f"{group}, {scale_text(plan.scale)}: {shown}, mean and sample deviation over runs. "
                f"Dashed lines are {lines}."
            )
            yield f"bands-{group}", curves.draw(bands, budgets, f"bands-{group}"), caption
        if plan.figure.draws_methods:
            yield from _chosen(plan, runs, group)
        if METRIC in plan.figure.metrics:
            first = {row: folder for row in plan.rows for folder in _first(plan, runs, group, row)}
            if (drawn := draw_surfaces(first, f"surface-{group}")) is not None:
                yield f"surface-{group}", drawn, f"{group}, {scale_text(plan.scale)}: {CAPTION}"


def _first(plan: CellSelection, runs: Sequence[RunOfCell], group: str, row: str) -> list[Path]:
    """The first run folder of a row in one setting, if there is one."""
    return [folder for of_seeds in plan.folders(runs, group, row) for folder in of_seeds][:1]


def _chosen(plan: CellSelection, runs: Sequence[RunOfCell], group: str) -> Iterator[tuple[str, str, str]]:
    """The figures of what the methods chose: (name, SVG, caption) of each row's first run in one setting."""
    from scenarios.report import figures as report_figures
    from scenarios.report import method_figures

    for number, row in enumerate(plan.rows):
        opened = open_runs(_first(plan, runs, group, row))
        captions = method_figures.figures_of(opened)
        for table, drawn in report_figures.of_methods(opened, f"{group}-{number}-").items():
            yield table, drawn, f"{row}: {captions[table.rpartition('-')[2]].text}"


# --- loss surfaces ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Surface:
    """The loss around one model."""

    losses: NDArray[np.float64]
    """(points, points): rows along the second eigenvector, columns along the first"""
    span: float
    """Distance of the outermost points"""


def read_surface(folder: Path) -> Surface | None:
    """That of a run's global model; None if none was measured."""
    file = folder / MEASURED
    if not file.is_file():
        return None
    found = json.loads(file.read_text(encoding="utf-8"))
    values = found["models"].get("global", {})
    points = {name.partition(SUBVALUE)[::2]: value for name, value in values.items()}
    losses = [value for (metric, part), value in points.items() if metric == METRIC and part.isdigit()]
    side = math.isqrt(len(losses))
    if not side or side * side != len(losses) or None in losses:
        return None
    return Surface(np.array(losses, float).reshape(side, side), float(found["metric_options"][METRIC]["span"]))


def draw_surfaces(folders: Mapping[str, Path], name: str) -> str | None:
    """A panel per row as an inline SVG; ``folders``: name of a row -> run. None if no run was measured."""
    found = {row: surface for row, folder in folders.items() if (surface := read_surface(folder)) is not None}
    if not found:
        return None
    from scenarios.report.html_figures import inline  # matplotlib takes a third of a second

    return inline(name, lambda: _draw(found))


def _draw(found: Mapping[str, Surface]) -> Figure:
    from scenarios.report.plot_style import ShownRuns
    from scenarios.report.theme import ON_DARK_CELL

    figure, panels = ShownRuns([]).panels(len(found), min(len(found), COLUMNS), PANEL_PIXELS)
    logs = {row: np.log10(np.maximum(surface.losses, 1e-12)) for row, surface in found.items()}
    low, high = min(float(each.min()) for each in logs.values()), max(float(each.max()) for each in logs.values())
    levels = np.linspace(low, max(high, low + 1e-6), LEVELS)
    for axes, (row, surface) in zip(panels, found.items(), strict=True):
        steps = np.linspace(-surface.span, surface.span, len(surface.losses))
        shades = axes.contourf(steps, steps, logs[row], levels, cmap="viridis")
        axes.contour(steps, steps, logs[row], levels, colors=ON_DARK_CELL, linewidths=0.6, alpha=0.6)
        axes.plot(0, 0, marker="+", color=ON_DARK_CELL, markersize=9)
        axes.set(title=row, xlabel="along the first", ylabel="along the second", aspect="equal")
        axes.grid(False)
    bar = figure.colorbar(shades, ax=panels, label="loss", fraction=0.03, pad=0.01)
    ticks = np.linspace(low, high, 5)
    bar.set_ticks(ticks.tolist(), labels=[f"{10**tick:.3g}" for tick in ticks])
    return figure
