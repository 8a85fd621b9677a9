"""Pictures of the loss around models, from what ``fedbr measure RUN --metrics loss-surface`` leaves in a run folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge.protocol.messages import SUBVALUE
from scenarios.run.folder_files import MEASURED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRIC = "loss-surface"
CAPTION = (
    "the loss on training examples along the first two eigenvectors of the Hessian at the last global model, each in "
    "its own plane, with equal colours for equal losses. Lines are at equal distances of the logarithm."
)
COLUMNS, PANEL_PIXELS, LEVELS = 3, 360, 14


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
    losses = [value for name, value in values.items() if _is_point(name)]
    side = math.isqrt(len(losses))
    if not side or side * side != len(losses) or None in losses:
        return None
    return Surface(np.array(losses, float).reshape(side, side), float(found["metric_options"][METRIC]["span"]))


def _is_point(name: str) -> bool:
    metric, _, part = name.partition(SUBVALUE)
    return metric == METRIC and part.isdigit()


def draw(folders: Mapping[str, Path], name: str) -> str | None:
    """A panel per row as an inline SVG; ``folders``: name of a row -> run. None if no run was measured."""
    found = {row: surface for row, folder in folders.items() if (surface := read_surface(folder)) is not None}
    if not found:
        return None
    import matplotlib  # takes a third of a second, which lists of figures do not need

    from scenarios.report import plot_style

    with matplotlib.rc_context(plot_style.STYLE):
        return plot_style.svg(_figure(found), name)


def _figure(found: Mapping[str, Surface]) -> Figure:
    from scenarios.report import plot_style
    from scenarios.report.theme import ON_DARK_CELL

    figure, panels = plot_style.panels(len(found), min(len(found), COLUMNS), PANEL_PIXELS)
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
