"""Figures as HTML with inline SVG: as wide as the page's column, as wide as a phone, and the numbers that they show.

One unit of an SVG is one CSS pixel. The numbers are for hover values and CSV files in the page: lines, marks, steps and
bars with a label are read from the finished figure; bands, maps and decorations are not. Nothing here opens a window or
writes a file.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, Literal, NotRequired, TypedDict

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle, StepPatch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from scenarios.report.plot_style import STYLE, make_narrow, shared_label
from scenarios.report.theme import themed

DIGITS = 6
"""Significant digits of numbers"""
LEAST_SPAN = 8
NO_TAG = "\\u003c"
"""'<' in JSON within HTML"""


class DrawnSeries(TypedDict):
    """The points of a line, marks, steps or bars."""

    label: str
    colour: str
    x: list[float | None]
    y: list[float | None]
    marks: NotRequired[bool]
    tops: NotRequired[list[float | None]]
    """Of steps"""
    at: NotRequired[Literal["x", "y"]]
    """The axis along which bars stand"""
    names: NotRequired[list[str]]
    """Of bars along y, by the ticks"""


class AxesFrame(TypedDict):
    """Where axes are in the SVG, after it was drawn."""

    box: list[float]
    """x, y, width, height"""
    xlim: list[float | None]
    ylim: list[float | None]
    log: bool
    """Whether x is logarithmic"""


def inline(name: str, drawing: Callable[[], Figure]) -> str:
    """A figure that is drawn in the style of the report's, as `svg` makes it."""
    with matplotlib.rc_context(STYLE):
        return svg(drawing(), name)


def svg(figure: Figure, name: str, log_x: bool = False) -> str:
    """A figure for HTML: equal bytes for equal numbers, and no external address. The figure is changed.

    An SVG element for wide pages, one for narrow ones, and the numbers for hover values and files. ``log_x``: a further
    one for wide pages has logarithmic x axes, which the page switches to, if amounts span a factor of `LEAST_SPAN`.
    """
    ranges = {axes: _amounts(axes) for axes in figure.axes if log_x}
    log_x = any(low and high >= LEAST_SPAN * low for low, high in ranges.values())
    linear = {axes: (axes.get_xlim(), axes.xaxis.get_major_locator()) for axes, (low, _) in ranges.items() if low > 0}
    shown = [(axes, found) for axes in figure.axes if (found := series(axes))]
    panels = [
        {
            "title": axes.get_title(loc="left").replace("\n", " "),
            "x": axes.get_xlabel(),
            "y": shared_label(axes),
            "series": found,
        }
        for axes, found in shown
    ]
    drawn, frames = [], {}
    for layout in ("wide linear", "wide log", "narrow")[:: 1 if log_x else 2]:
        if layout == "wide log":
            for axes in linear:
                _make_logarithmic(axes, ranges[axes][0])
        elif layout == "narrow":
            for axes, (limits, locator) in linear.items() if log_x else ():
                axes.set_xscale("linear")
                axes.xaxis.set_major_locator(locator)
                axes.set_xlim(limits)
            make_narrow(figure)
        drawn.append(_element(figure, name, layout))
        frames[layout] = [_frame(axes, figure) for axes, _ in shown]
    numbers = json.dumps({"name": name, "panels": panels, "frames": frames}, separators=(",", ":"))
    script = f'<script type="application/json">{themed(numbers.replace("<", NO_TAG))}</script>'
    return f'<div class="chart">{"".join(drawn)}{script}</div>'


def _element(figure: Figure, name: str, layout: str) -> str:
    """The figure as it is laid out now; ``layout`` is the element's class."""
    file = io.BytesIO()
    # The salt keeps the ids of clip paths and markers apart from those of other figures on the page.
    with matplotlib.rc_context({"svg.hashsalt": f"{name} {layout}"}):
        # Not savefig, which lays out and draws twice.
        canvas: Any = FigureCanvasSVG(figure)
        canvas.print_svg(file, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = file.getvalue().decode()
    head = f'<svg role="img" class="{layout}" aria-labelledby="{name}-caption"'
    text = text[text.index("<svg") :].replace("<svg", head, 1)
    # HTML needs no namespaces, and ids such as "axes_1" would occur on the page once per figure.
    return themed(re.sub(r' (?:xmlns(?::\w+)?="[^"]*"|id="[A-Za-z0-9.]+_\d+")', "", text))


def _amounts(axes: Axes) -> tuple[float, float]:
    """(least, most) amount above 0 that a panel shows along x; zeros without any, and over rounds."""
    if axes.get_xlabel().startswith("round"):
        return 0.0, 0.0
    shown = [np.asarray(line.get_xdata(), float) for line in axes.get_lines() if _is_data(line, axes)]
    shown += [np.asarray(marks.get_offsets(), float)[:, 0] for marks in axes.collections]
    known = np.concatenate([np.zeros(0), *(amounts[amounts > 0] for amounts in shown)])
    return (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)


def _make_logarithmic(axes: Axes, least: float) -> None:
    """A logarithmic x axis from its least amount above 0."""
    axes.set_xlim(0.9 * least, axes.get_xlim()[1])
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=9))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda amount, _: f"{amount:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


# --- numbers ----------------------------------------------------------------------------------------------------------


def _frame(axes: Axes, figure: Figure) -> AxesFrame:
    box, (width, height) = axes.get_position(), 72 * figure.get_size_inches()
    corner = (box.x0 * width, (1 - box.y1) * height, box.width * width, box.height * height)
    return {
        "box": [round(float(number), 1) for number in corner],
        "xlim": _numbers(axes.get_xlim()),
        "ylim": _numbers(axes.get_ylim()),
        "log": axes.get_xscale() == "log",
    }


def series(axes: Axes) -> list[DrawnSeries]:
    """What a panel shows, in the order of its legend."""

    def entry(artist: Any, colour: Any, x: Any, y: Any) -> DrawnSeries:
        label = str(artist.get_label())
        own = "" if label.startswith("_") else label
        return {"label": own, "colour": to_hex(colour), "x": _numbers(x), "y": _numbers(y)}

    found = [
        entry(line, line.get_color(), line.get_xdata(), line.get_ydata())
        for line in axes.get_lines()
        if _is_data(line, axes)
    ]
    for marks in axes.collections:
        if isinstance(marks, PathCollection):
            points: Any = np.ma.filled(np.ma.asarray(marks.get_offsets(), float), np.nan).reshape(-1, 2)
            found.append(entry(marks, marks.get_facecolor()[0], points[:, 0], points[:, 1]) | {"marks": True})
    for patch in axes.patches:
        if isinstance(patch, StepPatch):
            values, edges, baseline = (None if each is None else np.asarray(each, float) for each in patch.get_data())
            assert values is not None
            assert edges is not None
            colour = patch.get_facecolor() if patch.get_fill() else patch.get_edgecolor()
            heights = values - (0.0 if baseline is None else baseline)
            found.append(entry(patch, colour, (edges[1:] + edges[:-1]) / 2, heights) | {"tops": _numbers(values)})
    found += _bars(axes)
    named = {text: index for index, text in enumerate(axes.get_legend_handles_labels()[1])}
    return sorted((each for each in found if each["x"]), key=lambda each: named.get(each["label"], len(named)))


def _is_data(line: Line2D, axes: Axes) -> bool:
    """Whether a line is in the axes' own coordinates and not a reference line across them, or a mark without a name."""
    label, points = str(line.get_label()), np.size(np.asarray(line.get_xdata(), float))
    is_named = not label.startswith("_") or (label.startswith("_child") and points > 1)
    return line.get_transform() == axes.transData and points > 0 and is_named


def _bars(axes: Axes) -> list[DrawnSeries]:
    """Bars of one label and colour, together; those along y have the ``names`` of its ticks."""
    found: dict[tuple[str, str], DrawnSeries] = {}
    for container in axes.containers:
        for bar in container.patches if isinstance(container, BarContainer) else ():
            assert isinstance(container, BarContainer)
            assert isinstance(bar, Rectangle)
            label = str(container.get_label()).lstrip("_")  # an underscore only keeps it out of the legend
            label = "" if label.startswith("container") else label
            colour = to_hex(bar.get_facecolor())
            at: Literal["x", "y"] = "y" if container.orientation == "horizontal" else "x"
            new: DrawnSeries = {"label": label, "colour": colour, "x": [], "y": [], "at": at}
            bars = found.setdefault((label, colour), new)
            x, y = bar.get_x(), bar.get_y()
            bars["x"] += _numbers([bar.get_width() if at == "y" else x + bar.get_width() / 2])
            bars["y"] += _numbers([y + bar.get_height() / 2 if at == "y" else bar.get_height()])
    labels = (text.get_text().replace("\n", " ") for text in axes.get_yticklabels())
    names = dict(zip(axes.get_yticks().tolist(), labels, strict=False))
    for bars in found.values():
        if bars["at"] == "y":
            nearest = (min(names, key=lambda tick: abs(tick - centre), default=None) for centre in bars["y"])
            bars["names"] = ["" if tick is None else names[tick] for tick in nearest]
    return list(found.values())


def _numbers(values: Iterable[float] | Any) -> list[float | None]:
    """Short numbers for JSON, which has no NaN."""
    numbers = np.asarray(values, float).ravel()
    return [float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None for value in numbers]
