"""The style of all figures: panels as wide as the page, stacks, bars, legends, and the conversion to SVG.

Every figure is drawn twice, as wide as the page's column and as wide as a phone: one unit of the SVG is one CSS pixel.
Nothing here opens a window or writes a file.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, Locator, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from scenarios.config.errors import ReportError
from scenarios.report import chart_data, method_style, reflow, theme
from scenarios.report.groups import RunGroup
from scenarios.report.run_reader import RecordedRun
from scenarios.report.theme import AXIS, GRID

Doubles = NDArray[np.float64]
MUTED, INK = theme.MUTED, theme.INK
PIXELS_PER_INCH = 72
WIDTH_PIXELS = 1160
LEAST_SPAN = 8
NO_TAG = "\\u003c"
"""'<' in JSON within HTML"""
LETTER_PIXELS, LEGEND_KEY_PIXELS = 7, 60
"""Mean width of a letter, and of a legend's line with its gaps"""
# The key type is matplotlib's list of names, which only a literal at the call could satisfy.
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 12,
    # A dollar sign in a name is a dollar sign.
    "text.parse_math": False,
    "axes.titlesize": 12.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": AXIS,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.xmargin": 0.02,
    "grid.color": GRID,
    "text.color": INK,
    "xtick.color": AXIS,
    "ytick.color": AXIS,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "lines.linewidth": 1.9,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.08,
    "figure.constrained_layout.h_pad": 0.06,
    "figure.constrained_layout.wspace": 0.03,
    "figure.constrained_layout.hspace": 0.05,
}


def svg(figure: Figure, name: str, log_x: bool = False) -> str:
    """A figure for HTML: equal bytes for equal numbers, and no external address. The figure is changed.

    An SVG element for wide pages, one for narrow ones, and the numbers for hover values and files. ``log_x``: a further
    one for wide pages has logarithmic x axes, which the page switches to, if amounts span a factor of `LEAST_SPAN`.
    """
    log_x = log_x and any(low and high >= LEAST_SPAN * low for low, high in map(_amounts, figure.axes))
    shown = chart_data.panels(figure)
    places = [panel.pop("place") for panel in shown]
    drawn, frames = [], {}
    for layout in ("wide linear", "wide log", "narrow")[:: 1 if log_x else 2]:
        if layout == "wide log":
            restore = _make_logarithmic(figure)
        elif layout == "narrow":
            reflow.make_narrow(figure, PIXELS_PER_INCH)
        drawn.append(_element(figure, name, layout))
        frames[layout] = chart_data.frames(figure, places)
        if layout == "wide log":
            restore()
    numbers = json.dumps({"name": name, "panels": shown, "frames": frames}, separators=(",", ":"))
    script = f'<script type="application/json">{theme.themed(numbers.replace("<", NO_TAG))}</script>'
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
    return theme.themed(re.sub(r' (?:xmlns(?::\w+)?="[^"]*"|id="[A-Za-z0-9.]+_\d+")', "", text))


def _make_logarithmic(figure: Figure) -> Callable[[], None]:
    """Logarithmic x axes from their least amount above 0, but not over rounds; a function that undoes it."""
    changed: list[Callable[[], None]] = []
    for axes in figure.axes:
        least, _ = _amounts(axes)
        if least > 0:
            changed.append(partial(_restore_x, axes, axes.get_xlim(), axes.xaxis.get_major_locator()))
            axes.set_xlim(0.9 * least, axes.get_xlim()[1])
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=9))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda amount, _: f"{amount:g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())

    def restore() -> None:
        for each in changed:
            each()

    return restore


def _amounts(axes: Axes) -> tuple[float, float]:
    """(least, most) amount above 0 that a panel shows along x; zeros without any, and over rounds."""
    if axes.get_xlabel().startswith("round"):
        return 0.0, 0.0
    shown = [np.asarray(line.get_xdata(), float) for line in axes.get_lines() if chart_data.is_data(line, axes)]
    shown += [np.asarray(marks.get_offsets(), float)[:, 0] for marks in axes.collections]
    known = np.concatenate([np.zeros(0), *(amounts[amounts > 0] for amounts in shown)])
    return (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)


def _restore_x(axes: Axes, limits: tuple[float, float], locator: Locator) -> None:
    axes.set_xscale("linear")
    axes.xaxis.set_major_locator(locator)
    axes.set_xlim(limits)


def standalone(inline: str) -> str:
    """The file of a figure that `svg` made: its first element with the namespaces that a file needs, in pixels."""
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    element = inline[inline.index("<svg") : inline.index("</svg>") + len("</svg>")]
    head, end, rest = theme.plain(element).partition(">")
    head = re.sub(r' class="[^"]*" aria-labelledby="[^"]*"', f" {spaces}", head)
    return re.sub(r'(width|height)="([0-9.]+)pt"', r'\1="\2"', head) + end + rest


def panels(
    count: int, columns: int, height_pixels: float, sharex: bool = False, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure as wide as the page with ``count`` panels, ``columns`` to a row, each row of the given height."""
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(WIDTH_PIXELS / PIXELS_PER_INCH, rows * height_pixels / PIXELS_PER_INCH))
    grid = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey).flatten()
    for spare in grid[count:]:
        spare.remove()
    return figure, list(grid[:count])


@dataclass(frozen=True)
class ShownRuns:
    """The groups of runs that figures are made of, with the styles of their lines, and the axes for them."""

    groups: Sequence[RunGroup]
    target: float | None = None
    axes: Sequence[Axes] = ()
    """Axes of the caller's for the panels from ``first_panel`` on; panels without are drawn on axes of their own"""
    first_panel: int = 0
    drawn: Collection[str] | None = None
    """Labels of the groups that are drawn; by default all. The others have their styles, in tables."""

    @cached_property
    def chosen(self) -> list[RunGroup]:
        """The groups that are drawn."""
        return [group for group in self.groups if self.drawn is None or group.label in self.drawn]

    @cached_property
    def started(self) -> list[RunGroup]:
        """The groups whose runs all have a round."""
        return [group for group in self.chosen if all(run.rounds for run in group.runs)]

    @cached_property
    def runs(self) -> list[RecordedRun]:
        """The first run of each group that has a round; it stands for its group in figures of single runs."""
        return [group.first for group in self.chosen if group.first.rounds]

    @cached_property
    def styles(self) -> dict[str, dict[str, Any]]:
        """Label of a group or run -> style of its line."""
        of_group = method_style.styles((group.label, group.first.method) for group in self.groups)
        of_run = {run.label: of_group[group.label] for group in self.groups for run in (*group.runs, *group.repeats)}
        return of_run | of_group

    def panels(
        self, count: int, columns: int, height_pixels: float, sharex: bool = False, sharey: bool = False
    ) -> tuple[Figure, list[Axes]]:
        """`panels`, with the caller's axes in place of some. ReportError if there are fewer panels than axes."""
        figure, own = panels(count, columns, height_pixels, sharex, sharey)
        last = self.first_panel + len(self.axes)
        if last > count:
            raise ReportError(f"there is no panel {last}: the figure has {count} panel{'s' if count > 1 else ''}")
        return figure, [*own[: self.first_panel], *self.axes, *own[last:]]


def panel_each(
    shown: ShownRuns,
    found: Sequence[tuple[Any, ...]],
    most: int,
    height_pixels: float,
    draw: Callable[..., str],
    ylabel: str,
    with_legend: bool = False,
    is_from_zero: bool = False,
    **shared: bool,
) -> Figure | None:
    """A panel for each of ``found``, at most ``most`` to a row; None without any.

    ``draw`` fills the panel and returns its title; the first of a row has the ``ylabel``.
    """
    if not found:
        return None
    columns = min(most, len(found))
    figure, grid = shown.panels(len(found), columns, height_pixels, **shared)
    for axes, each in zip(grid, found, strict=True):
        axes.set_title(reflow.wide_title(draw(axes, *each), columns))
    for axes in grid[::columns]:
        axes.set_ylabel(ylabel)
        if is_from_zero:
            axes.set_ylim(0, None)
    if with_legend:
        legend(figure, grid[0])
    return figure


def rows_of_bars(
    shown: ShownRuns, names: Sequence[str], count: int, row_pixels: float, frame_pixels: float = 90
) -> tuple[Figure, list[Axes]]:
    """``count`` panels, two beside each other, for horizontal bars: a row per name."""
    labels = reflow.wide_ticks(names)
    height = frame_pixels + reflow.row_pixels(labels, row_pixels) * len(labels)
    figure, grid = shown.panels(count, min(2, count), height, sharey=True)
    grid[0].set_yticks(range(len(labels)), labels)
    grid[0].set_ylim(len(labels) - 0.5, -0.5)
    for axes in grid:
        bars(axes)
    return figure, grid


def over_rounds(axes: Axes, **labels: str) -> None:
    """An x axis of rounds from 0 on, beside other labels of the panel."""
    axes.set(xlabel="rounds", xlim=(0, None), **labels)
    axes.xaxis.set_major_locator(whole())


def unit(amounts: Iterable[Doubles], units: Mapping[str, Any]) -> tuple[float, str]:
    """(scale, name) of the largest unit that is not above the largest amount."""
    known = (amount[np.isfinite(amount)] for amount in amounts)
    largest = max((float(amount.max()) for amount in known if amount.size), default=0.0)
    fitting = [(float(scale), name) for name, scale in units.items() if scale <= largest]
    return max(fitting) if fitting else (1.0, next(name for name, scale in units.items() if scale == 1))


def stack(axes: Axes, rounds: Sequence[int], layers: Sequence[tuple[str, Any, Doubles]]) -> None:
    """Stacked steps, one unit of width per round: (label, colour, heights (rounds,)) from the bottom up."""
    edges = np.append(np.array(rounds) - 0.5, rounds[-1] + 0.5)
    floor = np.zeros(len(rounds))
    for label, colour, heights in layers:
        axes.stairs(floor + heights, edges, baseline=floor, fill=True, color=colour, label=label)
        floor = floor + heights
    axes.set_xlim(edges[0], edges[-1])
    axes.xaxis.set_major_locator(whole())


def whole() -> MaxNLocator:
    """Ticks at whole numbers, for counts."""
    return MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)


def bars(axes: Axes) -> None:
    """Style the axes of horizontal bars: no grid between them."""
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.spines["left"].set_visible(False)


def note(axes: Axes, x: float, y: float, text: str) -> None:
    """Write a number at the end of a horizontal bar."""
    axes.annotate(text, (x, y), xytext=(6, 0), textcoords="offset points", va="center", color=INK)


def legend(figure: Figure, axes: Axes) -> None:
    """One legend for all panels, under them, since they share their colours."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        widest = LEGEND_KEY_PIXELS + LETTER_PIXELS * max(map(len, labels))
        columns = max(1, min(6, len(handles), WIDTH_PIXELS // widest))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)
