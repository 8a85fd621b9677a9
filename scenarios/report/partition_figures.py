"""The figure of a partition: examples of each client, and of each of its classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from edge.protocol.config import EvalSplit
from scenarios.report import plot_style
from scenarios.report.plot_style import MUTED
from scenarios.report.run_reader import RecordedRun
from scenarios.report.theme import EMPTY, PAPER

MAX_CLIENTS = 100
MOST_SEPARATED = 40
"""Clients, and classes, whose cells have a gap between them"""
SIZES_PIXELS, CLASS_PIXELS = 150, 20
MOST_PIXELS = 460
"""Height of the cells of many classes"""
BAR_WIDTH = 0.8
COLOURS: dict[EvalSplit, tuple[str, str]] = {
    "train": ("#6f9fd0", "training"),
    "validation": ("#e6b85c", "validation"),
    "test": ("#5f8f8b", "test"),
}
"""Split -> its colour and name"""


def partition(runs: Sequence[RecordedRun]) -> Figure | None:
    """Above: examples of each client by split. Below: its training examples of each class. The first `MAX_CLIENTS`."""
    run = next((run for run in runs if run.histogram), None)
    if run is None:
        return None
    counts = np.array(run.histogram[:MAX_CLIENTS], float).T  # (classes, clients)
    cells = min(MOST_PIXELS, 130 + CLASS_PIXELS * len(counts))
    figure, (sizes, classes) = plot_style.panels(2, 1, (SIZES_PIXELS + cells) / 2, sharex=True)
    grid = sizes.get_gridspec()
    assert grid is not None
    grid.set_height_ratios([SIZES_PIXELS, cells])
    _draw_sizes(sizes, run, counts.shape[1])
    _draw_classes(figure, classes, counts)
    plot_style.legend(figure, sizes)
    return figure


def _draw_sizes(axes: Axes, run: RecordedRun, clients: int) -> None:
    """Stacked bars, without splits in which nobody has examples."""
    floor = np.zeros(clients)
    for split, (colour, name) in COLOURS.items():
        heights = np.array(run.examples(split)[:clients], float)
        if heights.any():
            axes.bar(np.arange(clients), heights, BAR_WIDTH, floor, color=colour, label=name)
            floor = floor + heights
    axes.set(ylabel="examples")
    axes.grid(False, axis="x")
    axes.yaxis.set_major_locator(plot_style.whole())


def _draw_classes(figure: Figure, axes: Axes, counts: NDArray[np.float64]) -> None:
    """A cell per class and client, blank where the client has no training example of the class."""
    held = np.ma.masked_equal(counts, 0)
    image = axes.imshow(held, cmap="YlGnBu", aspect="auto", interpolation="none", vmin=0)
    axes.set_facecolor(EMPTY)
    axes.grid(False)
    for axis, number in ((axes.yaxis, counts.shape[0]), (axes.xaxis, counts.shape[1])):
        axis.set_major_locator(plot_style.whole())
        if max(counts.shape) <= MOST_SEPARATED:
            axis.set_ticks(np.arange(number + 1) - 0.5, minor=True)
    axes.grid(which="minor", color=PAPER, linewidth=1.5)
    axes.tick_params(which="minor", length=0)
    axes.set(xlabel="client", ylabel="class")
    bar = figure.colorbar(image, ax=axes, pad=0.01, aspect=18)
    bar.outline.set_visible(False)
    bar.set_label("training examples", color=MUTED)
