"""Curves over seeds: the mean of each group of runs, in a band of one sample deviation on both sides.

A mean is drawn only where every seed has a value, so a group's curve ends with the shortest of its runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from costmodel.units import BYTES, JOULES, SECONDS
from scenarios.report import plot_style
from scenarios.report.groups import RunGroup
from scenarios.report.run_reader import RecordedRun
from scenarios.run.progress import Trail

Doubles = NDArray[np.float64]
Styles = Mapping[str, Mapping[str, Any]]
"""Label of a group -> style of its line"""
FEW_POINTS = 3
"""Fewer are marked, since they make no line"""
ALPHA = 0.18
"""Opacity of a band"""
MOST_POINTS = 400
"""Of a line of means over amounts"""
TITLES = {
    "virtual_seconds": ("Against virtual time", "virtual time", SECONDS),
    "nbytes": ("Against bytes moved", "bytes down and up, real", BYTES),
    "joules": ("Against energy", "energy of clients", JOULES),
}
CURVES = ("virtual_seconds", "nbytes")
"""Field of `ProgressPoint` -> (title, label of the axis, units)"""


@dataclass(frozen=True)
class Curve:
    """Mean and sample deviation over seeds at each x; a deviation of 0 for one seed."""

    x: Doubles
    mean: Doubles
    deviation: Doubles


def over_seeds(series: Sequence[Mapping[float, float]]) -> Curve:
    """The curve of one mapping x -> value per seed, at each x that all of them have."""
    common = sorted(set.intersection(*(set(own) for own in series)))
    values = np.array([[own[x] for x in common] for own in series], np.float64).reshape(len(series), len(common))
    return _curve(np.array(common, np.float64), values)


def over_amounts(trails: Sequence[Trail], amount: str, value: str = "accuracy") -> Curve:
    """The curve of a field of `ProgressPoint` over the amounts at which any seed's changes.

    At each amount a seed has the last value that it evaluated within it, as budgets are read. The curve begins where
    every seed has one, and ends where the first of them ends.
    """
    known = [[point for point in trail if point.accuracy is not None] for trail in trails]
    if not all(known):
        return Curve(np.empty(0), np.empty(0), np.empty(0))
    spent = [np.array([getattr(point, amount) for point in points], np.float64) for points in known]
    values = [np.array([getattr(point, value) for point in points], np.float64) for points in known]
    begin, end = max(own[0] for own in spent), min(float(getattr(trail[-1], amount)) for trail in trails)
    grid = np.unique(np.concatenate([*spent, [end]]))
    grid = grid[(grid >= begin) & (grid <= end)]
    if grid.size > MOST_POINTS:
        grid = np.linspace(begin, end, MOST_POINTS)
    stepped = [own[np.searchsorted(x, grid, side="right") - 1] for x, own in zip(spent, values, strict=True)]
    return _curve(grid, np.stack(stepped))


def _curve(x: Doubles, values: Doubles) -> Curve:
    """The curve of values (seeds, points)."""
    deviation = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(x.size)
    return Curve(x, values.mean(axis=0), deviation)


def by_round(run: RecordedRun, column: str) -> dict[float, float]:
    """Rounds so far -> a column of ``rounds``, where it is known; a score after the last round belongs to that one."""
    values = ((min(row.round + 1, run.completed), getattr(row, column)) for row in run.rounds)
    return {float(rounds): float(value) for rounds, value in values if value is not None}


def plot(axes: Axes, curve: Curve, label: str, style: Mapping[str, Any], **more: Any) -> None:
    """One line, and its band where there is one."""
    if curve.deviation.any():
        low, high = curve.mean - curve.deviation, curve.mean + curve.deviation
        axes.fill_between(curve.x, low, high, color=style["color"], alpha=ALPHA, lw=0, step=more.get("step"))
    marker = {"marker": "o"} if len(curve.x) < FEW_POINTS else {}
    drawing = {"drawstyle": "steps-post"} if more.get("step") else {}
    axes.plot(curve.x, curve.mean, label=label, **{**style, **marker, **drawing})


def curves(groups: Sequence[RunGroup], styles: Styles, target: float | None) -> Figure | None:
    """Accuracy against rounds, virtual time and bytes, one line per group."""
    scored = [group for group in groups if all(run.final() is not None for run in group.runs)]
    if not scored:
        return None
    figure, panels = plot_style.panels(3, 3, 380, sharey=True)
    against_rounds(panels[0], scored, styles, lambda run: _percent(by_round(run, "accuracy")))
    panels[0].set(title="Against rounds", ylabel="test accuracy (%)")
    for axes, amount in zip(panels[1:], CURVES, strict=True):
        against(axes, scored, styles, amount)
    if target is not None:
        for axes in panels:
            axes.axhline(100 * target, color=plot_style.MUTED, linestyle=(0, (4, 3)), linewidth=1.2, label="target")
    plot_style.legend(figure, panels[0])
    return figure


def against(axes: Axes, groups: Sequence[RunGroup], styles: Styles, amount: str) -> None:
    """Accuracy in percent against one of `TITLES`, one line per group."""
    title, name, units = TITLES[amount]
    found = {group.label: over_amounts([run.trail for run in group.runs], amount) for group in groups}
    scale, unit = plot_style.unit((curve.x for curve in found.values()), units)
    for label, curve in found.items():
        plot(axes, Curve(curve.x / scale, 100 * curve.mean, 100 * curve.deviation), label, styles[label], step="post")
    axes.set(title=title, xlabel=f"{name} ({unit})", xlim=(0, None))


def _percent(shares: Mapping[float, float]) -> dict[float, float]:
    return {rounds: 100 * share for rounds, share in shares.items()}


def against_rounds(
    axes: Axes, groups: Sequence[RunGroup], styles: Styles, series: Callable[[RecordedRun], Mapping[float, float]]
) -> None:
    """One line per group of a value of rounds, where its runs have any."""
    for group in groups:
        curve = over_seeds([series(run) for run in group.runs])
        if curve.x.size:
            plot(axes, curve, group.label, styles[group.label])
    axes.set(xlabel="rounds", xlim=(0, None))
    axes.xaxis.set_major_locator(plot_style.whole())
