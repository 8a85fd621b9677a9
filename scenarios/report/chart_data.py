"""The numbers that a figure shows, panel by panel, for hover values and CSV files in the page.

Lines, marks, steps and bars with a label are read from the finished figure; bands, maps and decorations are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle, StepPatch

from scenarios.report import reflow

Series = dict[str, Any]
"""``label``, ``colour``, ``x`` and ``y``; bars also have ``at``: "x" or "y", the axis along which they stand"""
DIGITS = 6
"""Significant digits of numbers"""


def panels(figure: Figure) -> list[dict[str, Any]]:
    """Per panel with data: its ``place`` among the figure's axes, title, labels of the axes and series."""
    found = ((place, axes, _series(axes)) for place, axes in enumerate(figure.axes))
    return [
        {
            "place": place,
            "title": axes.get_title(loc="left").replace("\n", " "),
            "x": axes.get_xlabel(),
            "y": reflow.shared_label(axes),
            "series": series,
        }
        for place, axes, series in found
        if series
    ]


def frames(figure: Figure, places: Iterable[int]) -> list[dict[str, Any]]:
    """Where these axes are in the SVG, after it was drawn: ``box`` (x, y, width, height), limits, is x logarithmic."""
    width, height = 72 * figure.get_size_inches()
    return [_frame(figure.axes[place], width, height) for place in places]


def _frame(axes: Axes, width: float, height: float) -> dict[str, Any]:
    box = axes.get_position()
    corner = (box.x0 * width, (1 - box.y1) * height, box.width * width, box.height * height)
    return {
        "box": [round(float(number), 1) for number in corner],
        "xlim": _numbers(axes.get_xlim()),
        "ylim": _numbers(axes.get_ylim()),
        "log": axes.get_xscale() == "log",
    }


def _series(axes: Axes) -> list[Series]:
    named = {text: index for index, text in enumerate(axes.get_legend_handles_labels()[1])}
    lines = [
        _entry(_label(line), line.get_color(), line.get_xdata(), line.get_ydata())
        for line in axes.get_lines()
        if is_data(line, axes)
    ]
    marks = [_marks(marks) for marks in axes.collections if isinstance(marks, PathCollection)]
    steps = [_steps(patch) for patch in axes.patches if isinstance(patch, StepPatch)]
    found = [each for each in (*lines, *marks, *steps, *_bars(axes)) if each["x"]]
    return sorted(found, key=lambda each: named.get(each["label"], len(named)))


def is_data(line: Line2D, axes: Axes) -> bool:
    """Whether a line is in the axes' own coordinates and not a reference line across them, or a mark without a name."""
    label, points = str(line.get_label()), np.size(np.asarray(line.get_xdata(), float))
    is_named = not label.startswith("_") or (label.startswith("_child") and points > 1)
    return line.get_transform() == axes.transData and points > 0 and is_named


def _label(artist: Any) -> str:
    label = str(artist.get_label())
    return "" if label.startswith("_") else label


def _marks(marks: PathCollection) -> Series:
    points: Any = np.ma.filled(np.ma.asarray(marks.get_offsets(), float), np.nan).reshape(-1, 2)
    return _entry(_label(marks), marks.get_facecolor()[0], points[:, 0], points[:, 1]) | {"marks": True}


def _steps(patch: StepPatch) -> Series:
    values, edges, baseline = patch.get_data()
    heights = np.asarray(values, float) - (0.0 if baseline is None else np.asarray(baseline, float))
    tops, middles = np.asarray(values, float), (np.asarray(edges, float)[1:] + np.asarray(edges, float)[:-1]) / 2
    colour = patch.get_facecolor() if patch.get_fill() else patch.get_edgecolor()
    return _entry(_label(patch), colour, middles, heights) | {"tops": _numbers(tops)}


def _bars(axes: Axes) -> list[Series]:
    """Bars of one label and colour, together; those along y have the ``names`` of its ticks."""
    found: dict[tuple[str, str], Series] = {}
    for container in axes.containers:
        for bar in container.patches if isinstance(container, BarContainer) else ():
            assert isinstance(container, BarContainer)
            assert isinstance(bar, Rectangle)
            label = str(container.get_label()).lstrip("_")  # an underscore only keeps it out of the legend
            label = "" if label.startswith("container") else label
            colour = to_hex(bar.get_facecolor())
            at = "y" if container.orientation == "horizontal" else "x"
            new = {"label": label, "colour": colour, "x": [], "y": [], "at": at}
            series = found.setdefault((label, colour), new)
            x, y = bar.get_x(), bar.get_y()
            series["x"].append(_number(bar.get_width() if at == "y" else x + bar.get_width() / 2))
            series["y"].append(_number(y + bar.get_height() / 2 if at == "y" else bar.get_height()))
    labels = (text.get_text().replace("\n", " ") for text in axes.get_yticklabels())
    names = dict(zip(axes.get_yticks().tolist(), labels, strict=False))
    for series in found.values():
        if series["at"] == "y":
            nearest = (min(names, key=lambda tick: abs(tick - centre), default=None) for centre in series["y"])
            series["names"] = ["" if tick is None else names[tick] for tick in nearest]
    return list(found.values())


def _entry(label: str, colour: Any, x: Any, y: Any) -> Series:
    return {"label": label, "colour": to_hex(colour), "x": _numbers(x), "y": _numbers(y)}


def _numbers(values: Sequence[float] | Any) -> list[float | None]:
    return [_number(value) for value in np.asarray(values, float).ravel()]


def _number(value: float) -> float | None:
    """A short number for JSON, which has no NaN."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
