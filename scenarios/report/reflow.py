"""Layouts of a figure that are narrower than the page: for phones, panels under each other, and for print."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.ticker import FixedLocator

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


def make_narrow(figure: Figure, pixels_per_inch: float) -> None:
    """Lay a wide figure out anew, one panel to a row of the same height as before; the figure is changed."""
    grids = [axes for axes in figure.axes if axes.get_subplotspec() is not None]
    height = figure.get_size_inches()[1] * pixels_per_inch
    rows, columns = _geometry(grids)
    for axes in grids:
        axes.set_title(textwrap.fill(axes.get_title(loc="left"), TITLE_LETTERS), loc="left")
    if columns > 1:
        _stack(figure, grids, 1)
        height *= len(grids) / rows
    # All panels are as high as the one with the highest labels needs to be.
    height += len(grids) * max(_narrow_ticks(axes, height / (len(grids) if columns > 1 else rows)) for axes in grids)
    height += _narrow_legends(figure)
    figure.set_size_inches(NARROW_PIXELS / pixels_per_inch, height / pixels_per_inch)


def make_compact(figure: Figure, pixels: float, pixels_per_inch: float) -> None:
    """Lay a wide figure out anew for a page of print, ``pixels`` wide; the figure is changed.

    As many panels of `LEAST_PANEL_PIXELS` stand in a row as there is room for, and none is higher than it is wide.
    """
    grids = [axes for axes in figure.axes if axes.get_subplotspec() is not None]
    rows, columns = _geometry(grids)
    row_height = figure.get_size_inches()[1] * pixels_per_inch / rows
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
    figure.set_size_inches(pixels / pixels_per_inch, height / pixels_per_inch)


def _geometry(grids: Sequence[Axes]) -> tuple[int, int]:
    rows, columns = grids[0].get_gridspec().get_geometry()  # type: ignore[union-attr]
    return rows, columns


def wide_ticks(labels: Sequence[str]) -> list[str]:
    """Labels for the ticks of the y axis of a wide figure, long ones broken into lines."""
    return [textwrap.fill(label, WIDE_TICK_LETTERS) for label in labels]


def row_pixels(ticks: Sequence[str], least: float) -> float:
    """The height of a row of a figure with such `wide_ticks`, at least ``least``."""
    return max(least, TICK_LINE_PIXELS * (1 + max(text.count("\n") for text in ticks)))


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
