"""The figures of a trial, each one inline SVG: accuracies with intervals, regret over rounds, and maps of ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scenarios.report import plot_style, theme
from scenarios.report.columns import PERCENT, POINTS
from scenarios.report.html_figures import inline
from scenarios.report.plot_style import ShownRuns
from scenarios.report.result_figures import DotPanel, dots
from scenarios.report.theme import MUTED, ON_DARK_CELL, ON_PALE_CELL, PALETTE

Row = Mapping[str, Any]
LEAST_RANGE = 0.5
"""Of log2 of the ratio to either side, so that small differences do not look large."""


def accuracies(skews: Mapping[str, Sequence[Row]], name: str) -> str:
    """Per skew: final accuracies with intervals, and their differences from FedAvg beside them."""
    panels = []
    for skew, rows in skews.items():
        own, differences = ({row["variant"]: row[key] for row in rows} for key in ("accuracy", "difference"))
        panels.append(DotPanel(f"{skew}: final accuracy", "test accuracy", PERCENT, own))
        panels.append(DotPanel("Difference from FedAvg of the same norm", "difference", POINTS, differences, True))
    methods = {row["variant"]: row["method"].partition("+")[0] for rows in skews.values() for row in rows}
    colours = {variant: theme.method_line(method)["color"] for variant, method in methods.items()}
    return inline(name, lambda: dots(ShownRuns([]), list(methods), panels, colours))


def equal_amounts(found: Mapping[str, Mapping[str, Row]], name: str) -> str:
    """Accuracies with intervals, a panel per kind of amount that all runs have spent."""
    panels = [DotPanel(f"Accuracy at {label}", "test accuracy", PERCENT, means) for label, means in found.items()]
    rows = list(dict.fromkeys(variant for means in found.values() for variant in means))
    return inline(
        name, lambda: dots(ShownRuns([]), rows, panels, dict.fromkeys(rows, theme.method_line("fedbr")["color"]))
    )


def regret(found: Row, name: str) -> str:
    """Two panels over rounds: the regret in reward, and in accuracy."""

    def draw() -> Figure:
        figure, panels = ShownRuns([]).panels(2, 2, 330)
        titles = (("reward", "Regret of Eq. 5's reward, summed", 1), ("accuracy", "Accuracy behind", 100))
        for axes, (key, title, scale) in zip(panels, titles, strict=True):
            own = found[key]
            rounds, mean = [round + 1 for round in own["rounds"]], scale * np.array(own["mean"], float)
            for values in scale * np.array(own["values"], float).reshape(len(rounds), -1).T:
                axes.plot(rounds, values, color=PALETTE[0], linewidth=0.8, alpha=0.4)
            if None not in own["half_width"]:
                half = scale * np.array(own["half_width"], float)
                axes.fill_between(rounds, mean - half, mean + half, color=PALETTE[0], alpha=0.15, linewidth=0)
            axes.plot(rounds, mean, color=PALETTE[0])
            axes.axhline(0, color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
            axes.set(title=title, xlabel="round", ylabel="percentage points" if scale == 100 else "reward")
            axes.xaxis.set_major_locator(plot_style.whole())
        return figure

    return inline(name, draw)


# --- maps: blue where FedBR is faster, with a line at 1 ------------------------------------------------------------


def ratios(maps: Sequence[Mapping[str, Any]], name: str) -> str:
    """Maps beside each other, as one inline SVG, with one scale of colours."""
    logs = [np.log2(np.array(found["ratio"], float)) for found in maps]
    known = np.concatenate([values[np.isfinite(values)] for values in logs])
    most = max(LEAST_RANGE, float(np.abs(known).max(initial=0.0)))

    def draw() -> Figure:
        figure, panels = ShownRuns([]).panels(len(maps), 2, 430)
        for axes, found, values in zip(panels, maps, logs, strict=True):
            rows, columns = (np.arange(count + 1) - 0.5 for count in values.shape)
            mesh = axes.pcolormesh(columns, rows, np.ma.masked_invalid(values), cmap="RdBu_r", vmin=-most, vmax=most)
            finite = values[np.isfinite(values)]
            if finite.min(initial=0.0) < 0 < finite.max(initial=0.0) and min(values.shape) > 1:
                axes.contour(np.ma.masked_invalid(values), levels=[0.0], colors=ON_PALE_CELL, linewidths=2)
            axes.grid(False)
            _labels(axes, found, values, most)
            axes.set(xlabel=found["x"]["name"], ylabel=found["y"]["name"])
            axes.set_title(found["title"])
        bar = figure.colorbar(mesh, ax=panels, pad=0.01, aspect=30)
        bar.outline.set_visible(False)
        ticks = np.linspace(-most, most, 5)
        bar.set_ticks(ticks.tolist(), labels=[f"{2.0**tick:.2f}" for tick in ticks])
        bar.set_label("time over FedAvg's", color=MUTED)
        return figure

    return inline(name, draw)


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
