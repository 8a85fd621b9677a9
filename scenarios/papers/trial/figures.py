"""The figures of a trial, each one inline SVG: accuracies with intervals, differences, and what a target took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes

from costmodel.units import BYTES, SECONDS
from scenarios.papers.trial.tables import at_target, by_skew
from scenarios.report import method_style, plot_style
from scenarios.report.method_style import PALETTE
from scenarios.report.plot_style import INK, MUTED

Row = Mapping[str, Any]
ROW_PIXELS = 24
FRAME_PIXELS = 110


def colour(row: Row) -> str:
    """One colour per method, whatever its details."""
    return method_style.colour(row["method"].partition("+")[0])


def accuracies(result: Row, name: str) -> str:
    """Per skew: final accuracies with intervals, and their differences from FedAvg beside them."""
    skews = by_skew(result)
    most = max(map(len, skews.values()))
    with matplotlib.rc_context(plot_style.STYLE):
        figure, panels = plot_style.panels(2 * len(skews), 2, FRAME_PIXELS + ROW_PIXELS * most)
        for index, (skew, rows) in enumerate(skews.items()):
            left, right = panels[2 * index : 2 * index + 2]
            _dots(left, rows, "accuracy")
            _dots(right, rows, "difference")
            left.set(title=f"{skew}: final accuracy", xlabel="test accuracy (%)")
            right.set(title="Difference from FedAvg of the same norm", xlabel="percentage points")
            right.axvline(0, color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
            right.tick_params(labelleft=False)
        return plot_style.svg(figure, name)


def _dots(axes: Axes, rows: Sequence[Row], key: str) -> None:
    for place, row in enumerate(rows):
        found = row[key]
        if found is None or found["mean"] is None:
            continue
        half = None if found["half_width"] is None else 100 * found["half_width"]
        axes.errorbar(100 * found["mean"], place, xerr=half, fmt="o", color=colour(row), capsize=3, markersize=5)
        for value in found["values"]:
            axes.plot(100 * value, place, "|", color=colour(row), alpha=0.5, markersize=8)
    if key == "accuracy":  # an interval of few seeds may go beyond what an accuracy can be
        low, high = axes.get_xlim()
        axes.set_xlim(max(0.0, low), min(100.0, high))
    _names(axes, rows)


def _names(axes: Axes, rows: Sequence[Row]) -> None:
    axes.set_yticks(range(len(rows)), [row["variant"] for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0, labelcolor=INK)


def to_target(result: Row, name: str) -> str | None:
    """Virtual time and real bytes until the target, mean over seeds; None if no variant reached it with all seeds."""
    target = result["target"]
    found = {row["name"]: at_target(row, target) for row in result["variants"]}
    if not any(_is_whole(at) for at in found.values()):
        return None
    skews = by_skew(result)
    most = max(map(len, skews.values()))
    kinds = (("virtual_seconds", "virtual time", SECONDS), ("bytes", "bytes down and up, real", BYTES))
    with matplotlib.rc_context(plot_style.STYLE):
        figure, panels = plot_style.panels(2 * len(skews), 2, FRAME_PIXELS + ROW_PIXELS * most)
        for index, (skew, rows) in enumerate(skews.items()):
            for axes, (key, label, units) in zip(panels[2 * index : 2 * index + 2], kinds, strict=True):
                unit = _bars(axes, rows, found, key, units)
                axes.set(title=f"{skew}: to {100 * target:g} %", xlabel=f"{label} ({unit})")
            panels[2 * index + 1].tick_params(labelleft=False)
        return plot_style.svg(figure, name)


def _is_whole(found: Row) -> bool:
    return found["bytes"] is not None


def _bars(axes: Axes, rows: Sequence[Row], found: Mapping[str, Row], key: str, units: Mapping[str, Any]) -> str:
    """Draws the amounts, and returns their unit."""
    amounts = [found[row["name"]][key] for row in rows]
    scale, unit = plot_style.unit([np.array([each for each in amounts if each is not None], float)], units)
    for place, (row, amount) in enumerate(zip(rows, amounts, strict=True)):
        if amount is None:
            reached, count = found[row["name"]]["reached"], len(row["seeds"])
            text = f"reached by {reached} of {count} seeds" if reached else "not reached"
            axes.text(0.015, place, text, transform=axes.get_yaxis_transform(), va="center", color=MUTED, fontsize=10)
        else:
            axes.barh(place, amount / scale, 0.6, color=colour(row))
            plot_style.note(axes, amount / scale, place, f"{amount / scale:.3g}")
    _names(axes, rows)
    plot_style.bars(axes)
    axes.set_xlim(0, 1.15 * axes.dataLim.x1 if any(amounts) else 1)
    return unit


def equal_amounts(panels: Mapping[str, Mapping[str, Row]], name: str) -> str:
    """Accuracies with intervals, a panel per kind of amount that all runs have spent."""
    with matplotlib.rc_context(plot_style.STYLE):
        most = max(map(len, panels.values()))
        figure, drawn = plot_style.panels(len(panels), 2, FRAME_PIXELS + ROW_PIXELS * most, sharex=True)
        for axes, (label, variants) in zip(drawn, panels.items(), strict=True):
            rows = [{"variant": key, "method": "fedbr", "accuracy": found} for key, found in variants.items()]
            _dots(axes, rows, "accuracy")
            axes.set(title=f"Accuracy at {label}", xlabel="test accuracy (%)")
        drawn[-1].tick_params(labelleft=False)
        return plot_style.svg(figure, name)


def regret(found: Row, name: str) -> str:
    """Two panels over rounds: the regret in reward, and in accuracy."""
    with matplotlib.rc_context(plot_style.STYLE):
        figure, panels = plot_style.panels(2, 2, 330)
        titles = (("reward", "Regret of Eq. 5's reward, summed", 1), ("accuracy", "Accuracy behind", 100))
        for axes, (key, title, scale) in zip(panels, titles, strict=True):
            _band(axes, found[key], scale)
            axes.axhline(0, color=MUTED, linestyle=(0, (4, 3)), linewidth=1)
            axes.set(title=title, xlabel="round", ylabel="percentage points" if scale == 100 else "reward")
            axes.xaxis.set_major_locator(plot_style.whole())
        return plot_style.svg(figure, name)


def _band(axes: Axes, found: Row, scale: float) -> None:
    rounds, mean = [round + 1 for round in found["rounds"]], scale * np.array(found["mean"], float)
    for values in scale * np.array(found["values"], float).reshape(len(rounds), -1).T:
        axes.plot(rounds, values, color=PALETTE[0], linewidth=0.8, alpha=0.4)
    if None not in found["half_width"]:
        half = scale * np.array(found["half_width"], float)
        axes.fill_between(rounds, mean - half, mean + half, color=PALETTE[0], alpha=0.15, linewidth=0)
    axes.plot(rounds, mean, color=PALETTE[0])
