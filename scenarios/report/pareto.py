"""Accuracy against cost over several runs: where each ended, and the front that no other point beats.

A point of the front has more accuracy than every cheaper one. Of a single run the front is its own curve, so it is
drawn for two or more groups only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scenarios.report import plot_style
from scenarios.report.group_figures import TITLES, Curve, Styles, over_amounts
from scenarios.report.groups import RunGroup

AMOUNTS = ("nbytes", "virtual_seconds", "joules")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
Point = tuple[float, float]
"""(amount spent, accuracy in [0, 1])"""


def front(points: Iterable[Point]) -> list[Point]:
    """The points that no other beats, by amount: each has more accuracy than every cheaper one."""
    best, kept = -1.0, []
    for amount, accuracy in sorted(points, key=lambda point: (point[0], -point[1])):
        if accuracy > best:
            best = accuracy
            kept.append((amount, accuracy))
    return kept


def pareto(groups: Sequence[RunGroup], styles: Styles) -> Figure | None:
    """Accuracy against bytes, virtual time and joules: each group's curve and its end, and the front of all."""
    scored = [group for group in groups if all(run.final() is not None for run in group.runs)]
    amounts = [amount for amount in AMOUNTS if all(run.trail[-1].joules for run in _runs(scored)) or amount != "joules"]
    if len(scored) < 2:
        return None
    figure, panels = plot_style.panels(len(amounts), len(amounts), 360, sharey=True)
    for axes, amount in zip(panels, amounts, strict=True):
        _panel(axes, scored, styles, amount)
    panels[0].set_ylabel("best test accuracy so far (%)")
    plot_style.legend(figure, panels[0])
    return figure


def _runs(groups: Sequence[RunGroup]) -> list[Any]:
    return [run for group in groups for run in group.runs]


def _panel(axes: Axes, groups: Sequence[RunGroup], styles: Styles, amount: str) -> None:
    title, name, units = TITLES[amount]
    found = [(group, over_amounts([run.trail for run in group.runs], amount, "best")) for group in groups]
    found = [(group, curve) for group, curve in found if curve.x.size]
    ends = [_end(group, amount) for group, _ in found]
    scale, unit = plot_style.unit([np.array([spent for spent, _ in ends])], units)
    for index, ((group, curve), end) in enumerate(zip(found, ends, strict=True)):
        _group(axes, curve, end, scale, group.label, {**styles[group.label], "marker": MARKERS[index % len(MARKERS)]})
    _front(axes, [curve for _, curve in found], ends, scale)
    axes.set(title=title, xlabel=f"{name} ({unit})", xlim=(0, None))


def _end(group: RunGroup, amount: str) -> Point:
    """What the runs spent and their best accuracy, as means over seeds."""
    spent = [float(getattr(run.trail[-1], amount)) for run in group.runs]
    best = [run.best() for run in group.runs]
    return float(np.mean(spent)), float(np.mean([each for each in best if each is not None]))


def _group(axes: Axes, curve: Curve, end: Point, scale: float, label: str, style: Mapping[str, Any]) -> None:
    """The curve, thin, on to the group's end with a mark, and there the deviation over seeds."""
    thin: dict[str, Any] = {"drawstyle": "steps-post", "linewidth": 1.0, "markersize": 8, "markevery": [-1]}
    x, y = np.array([*zip(curve.x, curve.mean, strict=True), end]).T
    axes.plot(x / scale, 100 * y, label=label, **style, **thin)
    if curve.deviation[-1]:
        at, (low, high) = end[0] / scale, 100 * (end[1] + curve.deviation[-1] * np.array([-1, 1]))
        axes.vlines(at, low, high, color=style["color"], linewidth=1.2)


def _front(axes: Axes, curves: Sequence[Curve], ends: Sequence[Point], scale: float) -> None:
    """The front of all curves and ends, up to the largest amount."""
    passed = [(float(x), float(y)) for curve in curves for x, y in zip(curve.x, curve.mean, strict=True)]
    points = front([*passed, *ends])
    if points:
        x, y = np.array([*points, (max(spent for spent, _ in ends), points[-1][1])]).T
        style: dict[str, Any] = {"color": plot_style.INK, "linewidth": 1.3, "linestyle": (0, (4, 2))}
        axes.plot(x / scale, 100 * y, drawstyle="steps-post", label="front", zorder=3, **style)
