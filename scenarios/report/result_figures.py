"""Figures of an experiment's result: a dot with its interval per row, bars, and a map over two axes of a grid."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from scenarios.report import plot_style
from scenarios.report.columns import MISSING, PERCENT, Column, Quantity
from scenarios.report.plot_style import ShownRuns
from scenarios.report.theme import EMPTY, INK, MUTED, ON_DARK_CELL, ON_PALE_CELL, PALETTE, PAPER, LineStyle
from scenarios.run.progress import Mean
from scenarios.run.score import RunScore

ROW_PIXELS, FRAME_PIXELS = 26, 100
CELL_PIXELS, BAR_PIXELS, COST_PIXELS = 44, 18, 340
DARK_CELL = 0.55
"""Share of the range of a map above which its cells are dark"""


@dataclass(frozen=True)
class DotPanel:
    """A column of dots."""

    title: str
    label: str
    """Of the axis, without its unit"""
    quantity: Quantity
    means: Mapping[str, Mean | None]
    """Row -> its mean over seeds; None for a row without"""
    is_difference: bool = False
    """Whether 0 is marked"""


def dots(
    shown: ShownRuns, rows: Sequence[str], panels: Sequence[DotPanel], colours: Mapping[str, str] = MappingProxyType({})
) -> Figure:
    """A row each: the mean as a dot, its 95 % interval as a line, and its seeds as ticks.

    ``colours``: of rows that are none of the groups of ``shown``.
    """
    figure, grid = plot_style.rows_of_bars(shown, rows, len(panels), ROW_PIXELS, FRAME_PIXELS)
    for axes, panel in zip(grid, panels, strict=True):
        found = [panel.means.get(row) for row in rows]
        column = Column.of(panel.quantity, (each.mean for each in found if each is not None))
        for place, (row, each) in enumerate(zip(rows, found, strict=True)):
            _dot(axes, place, each, column.scale, colours.get(row) or shown.styles.get(row, {}).get("color", INK))
        if panel.is_difference:
            axes.axvline(0, color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
        unit = f" ({column.unit})" if column.unit else ""
        axes.set(title=plot_style.wide_title(panel.title, min(2, len(panels))), xlabel=f"{panel.label}{unit}")
        if panel.quantity is PERCENT:  # an interval of few seeds may go beyond what a share can be
            low, high = axes.get_xlim()
            axes.set_xlim(max(0.0, low), min(100.0, high))
    return figure


def _dot(axes: Axes, place: int, found: Mean | None, scale: float, colour: Any) -> None:
    values = [] if found is None else [value / scale for value in found.values if value is not None]
    axes.plot(values, [place] * len(values), "|", color=colour, alpha=0.5, markersize=8, label="_seeds")
    if found is None or found.mean is None:
        axes.text(0.015, place, MISSING, transform=axes.get_yaxis_transform(), va="center", color=MUTED)
        return
    mean = found.mean / scale
    if found.half_width:
        half = found.half_width / scale
        axes.hlines(place, mean - half, mean + half, color=colour, linewidth=1.9)
    axes.plot([mean], [place], "o", color=colour, markersize=6, label="mean")


@dataclass(frozen=True)
class GridMap:
    """The means of a grid of two axes."""

    title: str
    across: tuple[str, Sequence[str]]
    """(key, its values) along x"""
    down: tuple[str, Sequence[str]]
    quantity: Quantity
    means: Mapping[tuple[str, str], Mean | None]
    """(value across, value down) -> its mean over seeds"""


def grid_maps(shown: ShownRuns, maps: Sequence[GridMap]) -> Figure:
    """A map each, whose cells have the mean and half of its interval in words."""
    most = max(len(each.down[1]) for each in maps)
    columns = min(2, len(maps))
    figure, panels = shown.panels(len(maps), columns, FRAME_PIXELS + CELL_PIXELS * most)
    for axes, each in zip(panels, maps, strict=True):
        (x_key, xs), (y_key, ys) = each.across, each.down
        cells = [[each.means.get((x, y)) for x in xs] for y in ys]
        known = [found for row in cells for found in row if found is not None]
        column = Column.of(each.quantity, (found.mean for found in known), (found.half_width for found in known))
        means = np.array(
            [[np.nan if found is None or found.mean is None else found.mean for found in row] for row in cells]
        )
        shades = matplotlib.colormaps["YlGnBu"].with_extremes(bad=EMPTY)
        low, high = (float(np.nanmin(means)), float(np.nanmax(means))) if np.isfinite(means).any() else (0.0, 1.0)
        top = high if high > low else low + 1
        axes.imshow(means, cmap=shades, aspect="auto", interpolation="none", vmin=low, vmax=top)
        for (y, x), mean in np.ndenumerate(means):
            found, has_mean = cells[y][x], not np.isnan(mean)
            text = column.text(found.mean, found.half_width) if found is not None else MISSING
            is_dark = has_mean and high > low and (mean - low) / (high - low) > DARK_CELL
            colour = ON_DARK_CELL if is_dark else ON_PALE_CELL if has_mean else MUTED
            axes.text(x, y, text.replace(" ± ", "\n± "), ha="center", va="center", color=colour, fontsize=10)
        axes.set(title=plot_style.wide_title(each.title, columns), xlabel=x_key, ylabel=y_key)
        axes.set_xticks(range(len(xs)), xs)
        axes.set_yticks(range(len(ys)), ys)
        axes.tick_params(length=0)
        axes.grid(False)
    return figure


UNKNOWN = "?"


@dataclass(frozen=True)
class ChoiceMap:
    """What is chosen over two factors."""

    title: str
    across: str
    down: str
    chosen: Mapping[tuple[float, float], str | None]
    """(factor across, factor down) -> label of the group that is chosen; None: none is"""
    unknown: Collection[tuple[float, float]] = ()
    """Where nobody knows which, and has a question mark"""


def choice_map(shown: ShownRuns, drawn: ChoiceMap) -> Figure:
    """A map whose cells have the colours of what is chosen there, and its number."""
    xs, ys = (sorted({place[axis] for place in drawn.chosen}) for axis in (0, 1))
    figure, (axes,) = shown.panels(1, 1, FRAME_PIXELS + CELL_PIXELS * len(ys))
    labels = list(dict.fromkeys(label for label in drawn.chosen.values() if label is not None))
    colours = {label: PALETTE[number % len(PALETTE)] for number, label in enumerate(labels)}
    colours |= {label: style["color"] for label, style in shown.styles.items() if label in colours}
    named: set[str] = set()
    for (x, across), (y, down) in product(enumerate(xs), enumerate(ys)):
        label = drawn.chosen[across, down]
        name = "_none" if label is None or label in named else label  # once in the legend
        named.add(name)
        colour = colours.get(label or "", EMPTY)
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor=PAPER, label=name))
        nothing = UNKNOWN if (across, down) in drawn.unknown else MISSING
        text, ink = (nothing, MUTED) if label is None else (label.partition(" ")[0], ON_DARK_CELL)
        axes.text(x, y, text, ha="center", va="center", color=ink, fontsize=10)
    axes.set(xlim=(-0.5, len(xs) - 0.5), ylim=(-0.5, len(ys) - 0.5))
    axes.set(title=plot_style.wide_title(drawn.title, 1), xlabel=drawn.across, ylabel=drawn.down)
    axes.set_xticks(range(len(xs)), [f"{x:g}" for x in xs])
    axes.set_yticks(range(len(ys)), [f"{y:g}" for y in ys])
    axes.tick_params(length=0)
    axes.grid(False)
    plot_style.legend(figure, axes)
    return figure


@dataclass(frozen=True)
class CostMap:
    """The cost and score of every candidate."""

    title: str
    score: RunScore
    cost: str
    """Its heading, without its unit"""
    quantity: Quantity
    points: Mapping[str, tuple[float, float]]
    """Label -> (cost, score)"""
    chosen: str | None = None
    limit: float | None = None
    """The budget of the cost, a dashed line"""
    target: float | None = None
    """The score that is sought, a dashed line"""


def cost_map(shown: ShownRuns, drawn: CostMap) -> Figure:
    """A dot per candidate, in the order of the table, with its number; the chosen one has a ring."""
    figure, (axes,) = shown.panels(1, 1, COST_PIXELS)
    column = Column.of(drawn.quantity, [cost for cost, _ in drawn.points.values()])
    times = 100 if drawn.score.is_share else 1
    for number, (label, (cost, score)) in enumerate(drawn.points.items()):
        colour = shown.styles.get(label, {}).get("color", PALETTE[number % len(PALETTE)])
        at = (cost / column.scale, times * score)
        axes.plot(*at, "o", color=colour, markersize=7, linestyle="none", label=label)
        number_text = label.partition(" ")[0]
        axes.annotate(number_text, at, xytext=(8, 5), textcoords="offset points", color=INK, fontsize=10)
    if drawn.chosen is not None and drawn.chosen in drawn.points:
        cost, score = drawn.points[drawn.chosen]
        at = (cost / column.scale, times * score)
        axes.plot(*at, "o", color=INK, markersize=13, fillstyle="none", linestyle="none", label="chosen")
    dashed: LineStyle = {"color": MUTED, "linestyle": (0, (4, 3)), "linewidth": 1.2}
    if drawn.limit is not None:
        axes.axvline(drawn.limit / column.scale, **dashed | {"linestyle": ":"}, label="budget")
    if drawn.target is not None:
        axes.axhline(times * drawn.target, **dashed, label="target")
    unit = f" ({column.unit})" if column.unit else ""
    label = f"{drawn.score.metric} (%)" if drawn.score.is_share else drawn.score.metric
    axes.set(title=plot_style.wide_title(drawn.title, 1), xlabel=f"{drawn.cost}{unit}", ylabel=label)
    axes.margins(x=0.08, y=0.15)
    plot_style.legend(figure, axes)
    return figure


@dataclass(frozen=True)
class BarPanel:
    """A group of bars per row."""

    title: str
    label: str
    """Of the axis, without its unit"""
    quantity: Quantity
    means: Mapping[str, Mapping[str, Mean]]
    """Row -> bar -> its mean over seeds; rows without are left empty"""
    mark: float | None = None
    """An amount at which a dashed line stands"""


def bars(shown: ShownRuns, rows: Sequence[str], panels: Sequence[BarPanel]) -> Figure:
    """The same bars in each row of each panel, with their intervals; the legend below names them."""
    names = list(dict.fromkeys(name for panel in panels for own in panel.means.values() for name in own))
    figure, grid = plot_style.rows_of_bars(shown, rows, len(panels), BAR_PIXELS * (1 + len(names)), FRAME_PIXELS)
    height = 0.8 / len(names)
    for axes, panel in zip(grid, panels, strict=True):
        known = [each for own in panel.means.values() for each in own.values()]
        column = Column.of(panel.quantity, (each.mean for each in known))
        for index, name in enumerate(names):
            found = [(row, panel.means.get(place, {}).get(name)) for row, place in enumerate(rows)]
            drawn = [(row, each, each.mean / column.scale) for row, each in found if each and each.mean is not None]
            places = np.array([row for row, *_ in drawn], float) + (index - (len(names) - 1) / 2) * height
            amounts = [amount for *_, amount in drawn]
            axes.barh(places, amounts, 0.86 * height, color=PALETTE[index % len(PALETTE)], label=name)
            for place, (_, each, amount) in zip(places, drawn, strict=True):
                half = (each.half_width or 0.0) / column.scale
                if half:
                    axes.hlines(place, max(amount - half, 0.0), amount + half, color=INK, linewidth=1.4)
                text = column.text(each.mean, each.half_width)
                at = (amount + half, place)
                axes.annotate(text, at, xytext=(5, 0), textcoords="offset points", va="center", color=INK, fontsize=10)
        if panel.mark is not None:
            axes.axvline(panel.mark / column.scale, color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
        unit = f" ({column.unit})" if column.unit and panel.mark is None else ""
        axes.set(title=plot_style.wide_title(panel.title, min(2, len(panels))), xlabel=f"{panel.label}{unit}")
        axes.set_xlim(0, plot_style.room(axes))
    plot_style.legend(figure, grid[0])
    return figure
