"""Bands of accuracy over seeds against bytes, time or rounds: points on a grid, their CSV file and their figure.

At each amount a curve has the last accuracy evaluated within it, as budgets are read. A mean ends where the first of
its seeds ends, so that every point is a mean over all seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.units import BYTES, SECONDS, format_bytes, format_seconds
from scenarios.report import csv_files
from scenarios.run.progress import AMOUNTS, Trail

Doubles = NDArray[np.float64]
STEPS = 200
AXES = {"bytes": ("bytes down and up, real", BYTES), "time": ("virtual time", SECONDS), "rounds": ("rounds", None)}
"""Kind of amount -> (label of the axis, units); None is a plain count."""
SHOWN = {"bytes": format_bytes, "time": format_seconds}
PANEL_PIXELS = 400
MARKERS = ("", "o", "s", "^")


@dataclass(frozen=True)
class Band:
    """The accuracy of one method, or of one row of a study, against bytes or virtual time."""

    method: str
    """By which it has its colour"""
    kind: str
    amounts: Doubles
    """(points,), bytes or seconds"""
    mean: Doubles
    """(points,), in [0, 1]; NaN before every seed has been evaluated"""
    deviation: Doubles
    """(points,), sample deviation over seeds; 0 with one seed"""
    label: str = ""
    """Its name in the legend, unless that is the method's"""

    @property
    def name(self) -> str:
        """What the legend says; bands of one method that differ in it have different dashes."""
        return self.label or self.method


def band(method: str, kind: str, trails: Sequence[Trail], limit: float | None = None, label: str = "") -> Band:
    """The band of one method's runs, from 0 to ``limit`` or to where the shortest of them ends."""
    totals = [np.array([getattr(point, AMOUNTS[kind]) for point in points], np.float64) for points in trails]
    end = min(float(amounts[-1]) if amounts.size else 0.0 for amounts in totals)
    grid = np.linspace(0, end if limit is None else min(end, limit), STEPS + 1)
    values = np.stack([_stepped(points, amounts, grid) for points, amounts in zip(trails, totals, strict=True)])
    deviation = values.std(axis=0, ddof=1) if len(trails) > 1 else np.where(np.isnan(values[0]), np.nan, 0.0)
    return Band(method, kind, grid, values.mean(axis=0), deviation, label)


def _stepped(points: Trail, amounts: Doubles, grid: Doubles) -> Doubles:
    known = [index for index, point in enumerate(points) if point.accuracy is not None]
    values = np.array([np.nan, *(points[index].accuracy for index in known)], np.float64)
    return values[np.searchsorted(amounts[known], grid, side="right")]


def write_csv(bands: Sequence[Band], path: Path) -> None:
    """One row per method, kind and amount; a mean that is not known yet is an empty cell."""
    rows = (
        [
            curve.method,
            curve.kind,
            float(amount),
            *((None, None) if np.isnan(mean) else (float(mean), float(deviation))),
        ]
        for curve in bands
        for amount, mean, deviation in zip(curve.amounts, curve.mean, curve.deviation, strict=True)
    )
    csv_files.write_csv(path, ["method", "kind", "amount", "mean", "deviation"], rows)


def styles(bands: Sequence[Band]) -> dict[str, dict[str, Any]]:
    """Name -> style of its line: a method's colour and dashes, other dashes for further bands of the method.

    Where a method has more bands than there are dashes, the further ones also have marks.
    """
    from scenarios.report import method_style

    seen: Counter[str] = Counter()
    found: dict[str, dict[str, Any]] = {}
    for name, method in dict.fromkeys((curve.name, curve.method) for curve in bands):
        which = seen[method] // len(method_style.DASHES)
        marks = {"marker": MARKERS[which % len(MARKERS)], "markevery": STEPS // 8, "markersize": 5} if which else {}
        found[name] = {**method_style.line(method, seen[method]), **marks}
        seen[method] += 1
    return found


def draw(bands: Sequence[Band], budgets: Mapping[str, Sequence[float]], name: str = "bands") -> str:
    """The bands as one inline SVG, a panel per kind, with a dashed line at each budget that a run came to."""
    import matplotlib

    from scenarios.report import plot_style

    looks = styles(bands)
    kinds = [kind for kind in AXES if any(curve.kind == kind for curve in bands)]
    with matplotlib.rc_context(plot_style.STYLE):
        figure, panels = plot_style.panels(len(kinds), len(kinds), PANEL_PIXELS, sharey=True)
        for axes, kind in zip(panels, kinds, strict=True):
            label, units = AXES[kind]
            shown = [curve for curve in bands if curve.kind == kind]
            scale, unit = plot_style.unit((curve.amounts for curve in shown), units) if units else (1.0, "")
            for curve in shown:
                x, mean, deviation = curve.amounts / scale, 100 * curve.mean, 100 * curve.deviation
                style = looks[curve.name]
                low, high = mean - deviation, mean + deviation
                axes.fill_between(x, low, high, step="post", color=style["color"], alpha=0.18, lw=0)
                axes.plot(x, mean, drawstyle="steps-post", label=curve.name, **style)
            furthest = max(float(curve.amounts[-1]) for curve in shown)
            for budget in (amount for amount in budgets.get(kind, ()) if amount <= furthest):
                axes.axvline(budget / scale, color=plot_style.MUTED, linestyle=(0, (4, 3)), linewidth=1)
            axes.set(
                title=f"Against {label.split(',')[0]}", xlabel=f"{label} ({unit})" if unit else label, xlim=(0, None)
            )
            if units is None:
                axes.xaxis.set_major_locator(plot_style.whole())
        panels[0].set_ylabel("test accuracy (%)")
        plot_style.legend(figure, panels[0])
        return plot_style.svg(figure, name)
