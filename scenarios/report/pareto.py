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
    found = {group.label: over_amounts([run.trail for run in group.runs], amount, "best") for group in groups}
    found = {label: curve for label, curve in found.items() if curve.x.size}
    scale, unit = plot_style.unit((curve.x for curve in found.values()), units)
    for index, (label, curve) in enumerate(found.items()):
        _group(axes, curve, scale, label, {**styles[label], "marker": MARKERS[index % len(MARKERS)]})
    _front(axes, found.values(), scale)
    axes.set(title=title, xlabel=f"{name} ({unit})", xlim=(0, None))


def _group(axes: Axes, curve: Curve, scale: float, label: str, style: Mapping[str, Any]) -> None:
    """The curve, thin, and a mark at its end, with the deviation over seeds."""
    thin: dict[str, Any] = {"drawstyle": "steps-post", "linewidth": 1.0, "markersize": 8, "markevery": [-1]}
    axes.plot(curve.x / scale, 100 * curve.mean, label=label, **style, **thin)
    if curve.deviation[-1]:
        at, (low, high) = curve.x[-1] / scale, 100 * (curve.mean[-1] + curve.deviation[-1] * np.array([-1, 1]))
        axes.vlines(at, low, high, color=style["color"], linewidth=1.2)


def _front(axes: Axes, curves: Iterable[Curve], scale: float) -> None:
    """The front of all curves, up to the largest amount."""
    every = list(curves)
    points = front((float(x), float(y)) for curve in every for x, y in zip(curve.x, curve.mean, strict=True))
    if points:
        x, y = np.array([*points, (max(curve.x[-1] for curve in every), points[-1][1])]).T
        style: dict[str, Any] = {"color": plot_style.INK, "linewidth": 1.3, "linestyle": (0, (4, 2))}
        axes.plot(x / scale, 100 * y, drawstyle="steps-post", label="front", zorder=3, **style)
