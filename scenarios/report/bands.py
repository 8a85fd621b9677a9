"""Accuracies of a study over seeds against bytes, time or rounds: points on a grid, their CSV file and their figure.

At each amount a curve has the last accuracy evaluated within it, as budgets are read. A mean ends where the first of
its seeds ends, so that every point is a mean over all seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coordinator.rounds.amounts import BY_KIND
from scenarios.report import theme
from scenarios.report.run_reader import RunGroup
from scenarios.report.tables import csv_text
from scenarios.run.progress import Trail

Doubles = NDArray[np.float64]
STEPS = 200


@dataclass(frozen=True)
class Band:
    """The accuracy of one method, or of one row of a study, against bytes or virtual time."""

    name: str
    """In the legend; bands of one method that differ in it have different dashes"""
    method: str
    """By which it has its colour"""
    kind: str
    amounts: Doubles
    """(points,), bytes or seconds"""
    mean: Doubles
    """(points,), in [0, 1]; NaN before every seed has been evaluated"""
    deviation: Doubles
    """(points,), sample deviation over seeds; 0 with one seed"""


def band(method: str, kind: str, trails: Sequence[Trail], limit: float | None = None, label: str = "") -> Band:
    """The band of one method's runs, from 0 to ``limit`` or to where the shortest of them ends."""
    totals = [np.array([BY_KIND[kind].at(point) for point in points], np.float64) for points in trails]
    end = min(float(amounts[-1]) if amounts.size else 0.0 for amounts in totals)
    grid = np.linspace(0, end if limit is None else min(end, limit), STEPS + 1)
    steps = []
    for points, amounts in zip(trails, totals, strict=True):
        known = [index for index, point in enumerate(points) if point.score is not None]
        accuracies = np.array([np.nan, *(points[index].score for index in known)], np.float64)
        steps.append(accuracies[np.searchsorted(amounts[known], grid, side="right")])
    values = np.stack(steps)
    deviation = values.std(axis=0, ddof=1) if len(trails) > 1 else np.where(np.isnan(values[0]), np.nan, 0.0)
    return Band(label or method, method, kind, grid, values.mean(axis=0), deviation)


def csv(bands: Sequence[Band]) -> str:
    """One row per method, kind and amount; a mean that is not known yet is an empty cell."""
    rows = (
        [
            curve.name,
            curve.kind,
            float(amount),
            *((None, None) if np.isnan(mean) else (float(mean), float(deviation))),
        ]
        for curve in bands
        for amount, mean, deviation in zip(curve.amounts, curve.mean, curve.deviation, strict=True)
    )
    return csv_text(["method", "kind", "amount", "mean", "deviation"], rows)


def draw(
    bands: Sequence[Band], budgets: Mapping[str, Sequence[float]], name: str = "bands", runs: Sequence[RunGroup] = ()
) -> str:
    """The bands as one inline SVG, a panel per kind, with a dashed line at each budget that a run came to.

    ``runs``: those that the bands are of, which say on which examples accuracies are.
    """
    from scenarios.report.curves import AccuracyLine, Curve, accuracy_panels
    from scenarios.report.html_figures import inline
    from scenarios.report.plot_style import ShownRuns

    styles = theme.line_styles(dict.fromkeys((each.name, each.method) for each in bands))
    curves: dict[str, dict[str, Curve]] = {}
    for each in bands:
        curves.setdefault(each.name, {})[BY_KIND[each.kind].key] = Curve(each.amounts, each.mean, each.deviation)
    amounts = [BY_KIND[kind] for kind in dict.fromkeys(each.kind for each in bands)]
    stepped = [amount.key for amount in amounts]
    lines = [AccuracyLine(label, styles[label], own, stepped) for label, own in curves.items()]
    limits = {BY_KIND[kind].key: found for kind, found in budgets.items()}
    return inline(name, lambda: accuracy_panels(ShownRuns(runs), lines, amounts, budgets=limits))
