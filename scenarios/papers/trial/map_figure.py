"""Heat maps of ratios of times on a grid of factors, blue where FedBR is faster, with a line at 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh

from scenarios.report import plot_style
from scenarios.report.plot_style import MUTED
from scenarios.report.theme import ON_DARK_CELL, ON_PALE_CELL

LEAST_RANGE = 0.5
"""Of log2 of the ratio to either side, so that small differences do not look large."""


def ratios(maps: Sequence[Mapping[str, Any]], name: str) -> str:
    """Maps beside each other, as one inline SVG, with one scale of colours."""
    logs = [np.log2(np.array(found["ratio"], float)) for found in maps]
    known = np.concatenate([values[np.isfinite(values)] for values in logs])
    most = max(LEAST_RANGE, float(np.abs(known).max(initial=0.0)))
    with matplotlib.rc_context(plot_style.STYLE):
        figure, panels = plot_style.panels(len(maps), 2, 430)
        for axes, found, values in zip(panels, maps, logs, strict=True):
            mesh = _heat(axes, values, most)
            _labels(axes, found, values, most)
            axes.set(xlabel=found["x"]["name"], ylabel=found["y"]["name"])
            axes.set_title(found["title"])
        bar = figure.colorbar(mesh, ax=panels, pad=0.01, aspect=30)
        bar.outline.set_visible(False)
        ticks = np.linspace(-most, most, 5)
        bar.set_ticks(ticks.tolist(), labels=[f"{2.0**tick:.2f}" for tick in ticks])
        bar.set_label("time over FedAvg's", color=MUTED)
        return plot_style.svg(figure, name)


def _heat(axes: Axes, values: np.ndarray[Any, np.dtype[np.float64]], most: float) -> QuadMesh:
    rows, columns = (np.arange(count + 1) - 0.5 for count in values.shape)
    mesh = axes.pcolormesh(columns, rows, np.ma.masked_invalid(values), cmap="RdBu_r", vmin=-most, vmax=most)
    known = values[np.isfinite(values)]
    if known.min(initial=0.0) < 0 < known.max(initial=0.0) and min(values.shape) > 1:
        axes.contour(np.ma.masked_invalid(values), levels=[0.0], colors=ON_PALE_CELL, linewidths=2)
    axes.grid(False)
    return mesh


def _labels(axes: Axes, found: Mapping[str, Any], values: np.ndarray[Any, np.dtype[np.float64]], most: float) -> None:
    for (row, column), value in np.ndenumerate(values):
        if not np.isfinite(value):
            axes.text(column, row, "×", ha="center", va="center", color=MUTED)
            continue
        low, high = found["low"][row][column], found["high"][row][column]
        is_clear = low is not None and not low <= 1 <= high
        colour = ON_DARK_CELL if abs(value) > 0.65 * most else ON_PALE_CELL
        weight = "bold" if is_clear else "normal"
        axes.text(column, row, f"{2.0**value:.2f}", ha="center", va="center", color=colour, weight=weight, fontsize=10)
    for axis, factors in ((axes.xaxis, found["x"]["factors"]), (axes.yaxis, found["y"]["factors"])):
        axis.set_ticks(range(len(factors)), [f"× {Fraction(factor)}" for factor in factors])
