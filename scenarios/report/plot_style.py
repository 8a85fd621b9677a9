"""The style of all figures, and their layouts: panels as wide as the page, stacks, bars, legends.

The layouts that are narrower than the page are for phones, with panels under each other, and for print.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.ticker import FixedLocator, MaxNLocator
from numpy.typing import NDArray

from scenarios.config.errors import ReportError
from scenarios.report import theme
from scenarios.report.run_reader import RecordedRun, RunGroup
from scenarios.report.theme import AXIS, GRID, INK, MUTED, LineStyle
from scenarios.run.score import RunScore

Doubles = NDArray[np.float64]
PIXELS_PER_INCH = 72
WIDTH_PIXELS = 1160
LETTER_PIXELS, LEGEND_KEY_PIXELS = 7, 60
"""Mean width of a letter, and of a legend's line with its gaps"""
NARROW_PIXELS = 372
TITLE_LETTERS, WIDE_TITLE_LETTERS = 46, 140
"""A title of more is broken into lines, in narrow figures and in all panels of a row together in wide ones"""
LEAST_PANEL_PIXELS, PRINT_RATIO, PRINT_FRAME_PIXELS = 220, 0.62, 60
"""Of a figure for print: width of a panel, height over width inside it, and height around it"""
LEGEND_LETTERS = 20
"""Labels of a legend with at most so many stand in two columns"""
LEGEND_LINE_LETTERS = 46
"""A label of a legend of more is broken into lines"""
LEGEND_ROW_PIXELS, LEGEND_FRAME_PIXELS = 19, 24
TICK_LETTERS, WIDE_TICK_LETTERS = 18, 44
"""A label at a tick of the y axis of more is broken into lines, in narrow and in wide figures"""
TICK_LINE_PIXELS, TICK_FRAME_PIXELS = 16, 70
"""Height of such a line, and of what is above and below the axes of a panel"""
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
    def styles(self) -> dict[str, LineStyle]:
        """Label of a group or run -> style of its line."""
        of_group = theme.line_styles((group.label, group.first.method) for group in self.groups)
        of_run = {run.label: of_group[group.label] for group in self.groups for run in (*group.runs, *group.repeats)}
        return of_run | of_group

    @cached_property
    def accuracy(self) -> str:
        """What axes of accuracy are called, by the split of all runs."""
        evaluated = [run.scenario.get("eval") or {} for group in self.groups for run in group.runs]
        splits = {str(section.get("split", "test")) for section in evaluated} or {"test"}
        return f"{splits.pop()} {self.score.metric}" if len(splits) == 1 else self.score.metric

    @cached_property
    def score(self) -> RunScore:
        """The metric by which the runs are judged; of several metrics, one that has no unit."""
        scores = {run.score for group in self.groups for run in group.runs}
        return scores.pop() if len(scores) == 1 else RunScore("score", is_share=False)

    @property
    def scale(self) -> float:
        """What values of the score are divided by on axes: a hundredth of shares, which are in percent."""
        return 0.01 if self.score.is_share else 1.0

    @property
    def unit(self) -> str:
        """Behind what axes of the score are called."""
        return " (%)" if self.score.is_share else ""

    @property
    def score_label(self) -> str:
        """What axes of the score are called, with its unit."""
        return f"{self.accuracy}{self.unit}"

    def panels(
        self, count: int, columns: int, height_pixels: float, sharex: bool = False, sharey: bool = False
    ) -> tuple[Figure, list[Axes]]:
        """A figure as wide as the page with ``count`` panels, ``columns`` to a row, each row of the given height.

        The caller's axes take the place of some. ReportError if there are fewer panels than axes.
        """
        rows = math.ceil(count / columns)
        figure = Figure(figsize=(WIDTH_PIXELS / PIXELS_PER_INCH, rows * height_pixels / PIXELS_PER_INCH))
        grid = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey).flatten()
        for spare in grid[count:]:
            spare.remove()
        last = self.first_panel + len(self.axes)
        if last > count:
            raise ReportError(f"there is no panel {last}: the figure has {count} panel{'s' if count > 1 else ''}")
        return figure, [*grid[: self.first_panel], *self.axes, *grid[last:count]]


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
        axes.set_title(wide_title(draw(axes, *each), columns))
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
    labels = [textwrap.fill(name, WIDE_TICK_LETTERS) for name in names]
    row = max(row_pixels, TICK_LINE_PIXELS * (1 + max(label.count("\n") for label in labels)))
    height = frame_pixels + row * len(labels)
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


def unit(amounts: Iterable[Doubles], units: Mapping[str, float | Decimal]) -> tuple[float, str]:
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


def legend(figure: Figure, axes: Axes) -> None:
    """One legend for all panels, under them, since they share their colours."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        widest = LEGEND_KEY_PIXELS + LETTER_PIXELS * max(map(len, labels))
        columns = max(1, min(6, len(handles), WIDTH_PIXELS // widest))
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)


# --- narrower layouts -----------------------------------------------------------------------------------------------


def make_narrow(figure: Figure) -> None:
    """Lay a wide figure out anew, one panel to a row of the same height as before; the figure is changed."""
    grids = [axes for axes in figure.axes if axes.get_subplotspec() is not None]
    height = figure.get_size_inches()[1] * PIXELS_PER_INCH
    rows, columns = grids[0].get_gridspec().get_geometry()  # type: ignore[union-attr]
    for axes in grids:
        axes.set_title(textwrap.fill(axes.get_title(loc="left"), TITLE_LETTERS), loc="left")
    if columns > 1:
        _stack(figure, grids, 1)
        height *= len(grids) / rows
    # All panels are as high as the one with the highest labels needs to be.
    height += len(grids) * max(_narrow_ticks(axes, height / (len(grids) if columns > 1 else rows)) for axes in grids)
    height += _narrow_legends(figure)
    figure.set_size_inches(NARROW_PIXELS / PIXELS_PER_INCH, height / PIXELS_PER_INCH)


def make_compact(figure: Figure, pixels: float) -> None:
    """Lay a wide figure out anew for a page of print, ``pixels`` wide; the figure is changed.

    As many panels of `LEAST_PANEL_PIXELS` stand in a row as there is room for, and none is higher than it is wide.
    """
    grids = [axes for axes in figure.axes if axes.get_subplotspec() is not None]
    rows, columns = grids[0].get_gridspec().get_geometry()  # type: ignore[union-attr]
    row_height = figure.get_size_inches()[1] * PIXELS_PER_INCH / rows
    fitting = max(1, min(columns, int(pixels // LEAST_PANEL_PIXELS)))
    if fitting < columns:
        _stack(figure, grids, fitting)
    panel = pixels / fitting
    letters = max(12, int(TITLE_LETTERS * panel / NARROW_PIXELS))
    for axes in grids:
        axes.set_title(textwrap.fill(axes.get_title(loc="left").replace("\n", " "), letters), loc="left")
    if any(isinstance(axes.yaxis.get_major_locator(), FixedLocator) for axes in grids):
        row_height += max(_narrow_ticks(axes, row_height) for axes in grids)  # a row of text per bar
    else:
        row_height = min(row_height, PRINT_RATIO * panel + PRINT_FRAME_PIXELS)
    height = row_height * -(-len(grids) // fitting) + _narrow_legends(figure)
    figure.set_size_inches(pixels / PIXELS_PER_INCH, height / PIXELS_PER_INCH)


def room(axes: Axes) -> float:
    """The end of an axis of bars, with room for their numbers; 1 where all bars are 0."""
    longest = float(axes.dataLim.x1) if axes.patches else 0.0
    return 1.25 * longest or 1.0


def wide_title(title: str, columns: int) -> str:
    """The title of a panel of a wide figure with so many to a row, a long one broken into lines."""
    return textwrap.fill(title, WIDE_TITLE_LETTERS // columns)


def _narrow_ticks(axes: Axes, height: float) -> float:
    """Break long labels of the y axis into lines; the pixels that a panel of ``height`` must be higher for them."""
    texts = [text.get_text() for text in axes.get_yticklabels()]
    if not isinstance(axes.yaxis.get_major_locator(), FixedLocator) or max(map(len, texts), default=0) <= TICK_LETTERS:
        return 0.0
    broken = [textwrap.fill(text, TICK_LETTERS) for text in texts]
    axes.set_yticklabels(broken)
    lines = 1 + max(text.count("\n") for text in broken)
    return max(0.0, (lines + 1) * TICK_LINE_PIXELS * len(broken) + TICK_FRAME_PIXELS - height)


def _stack(figure: Figure, grids: list[Axes], columns: int) -> None:
    """So many panels in a row, the first of which has the label that they share."""
    labels = {axes: shared_label(axes) for axes in grids}
    grid = GridSpec(-(-len(grids) // columns), columns, figure=figure)
    for place, axes in enumerate(grids):
        axes.set_subplotspec(grid[divmod(place, columns)])
        axes.tick_params(labelleft=True, labelbottom=True)
        axes.set_ylabel("" if place % columns else labels[axes])


def shared_label(axes: Axes) -> str:
    """The label of the y axis, which panels to the left may share with this one."""
    siblings = axes.get_shared_y_axes().get_siblings(axes)
    shared = (other.get_ylabel() for other in siblings if isinstance(other, Axes))
    return axes.get_ylabel() or next(filter(None, shared), "")


def _narrow_legends(figure: Figure) -> float:
    """Legends under the panels in one or two columns; the pixels that they are higher than one row."""
    higher = 0.0
    for old in list(figure.legends):
        handles = [handle for handle in old.legend_handles if handle is not None]
        labels = [textwrap.fill(text.get_text(), LEGEND_LINE_LETTERS) for text in old.get_texts()]
        columns = 2 if max(map(len, labels), default=0) <= LEGEND_LETTERS else 1
        rows = -(-len(labels) // columns) if columns > 1 else sum(1 + label.count("\n") for label in labels)
        old.remove()
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)
        higher += LEGEND_FRAME_PIXELS + LEGEND_ROW_PIXELS * rows
    return higher
