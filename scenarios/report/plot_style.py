"""The style of all figures: panels as wide as the page, stacks, bars, legends, and the conversion to SVG.

Every figure is as wide as the page's column: one unit of the SVG is one CSS pixel. Nothing here opens a window or
writes a file.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
MUTED, INK = "#6b7280", "#1f2430"
PIXELS_PER_INCH = 72
WIDTH_PIXELS = 1160
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
    "axes.edgecolor": "#c3c8d0",
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.xmargin": 0.02,
    "grid.color": "#eceef2",
    "text.color": INK,
    "xtick.color": "#c3c8d0",
    "ytick.color": "#c3c8d0",
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


def svg(figure: Figure, name: str) -> str:
    """A figure as an SVG element for HTML: equal bytes for equal numbers, and no external address."""
    file = io.BytesIO()
    # The salt keeps the ids of clip paths and markers apart from those of other figures on the page.
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = file.getvalue().decode()
    text = text[text.index("<svg") :].replace("<svg", f'<svg role="img" aria-labelledby="{name}-caption"', 1)
    # HTML needs no namespaces, and ids such as "axes_1" would occur on the page once per figure.
    return re.sub(r' (?:xmlns(?::\w+)?="[^"]*"|id="[A-Za-z0-9.]+_\d+")', "", text)


def standalone(inline: str) -> str:
    """The file of a figure that `svg` made: the same element with the namespaces that a file needs, in pixels."""
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    head, end, rest = inline.partition(">")
    head = re.sub(r' aria-labelledby="[^"]*"', f" {spaces}", head)
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
    return MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10])


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
    figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(handles)))
