"""The figure of a run's times in draws of its uncertain figures: an interval per run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from costmodel.units import SECONDS
from scenarios.report import drawn_times, plot_style, reflow
from scenarios.report.drawn_times import Interval
from scenarios.report.plot_style import INK
from scenarios.report.run_reader import RecordedRun
from scenarios.run import progress

Bar = tuple[Interval | None, float | None]
"""(interval, time as recorded) of one run"""


def intervals(runs: Sequence[RecordedRun], colours: Mapping[str, str]) -> Figure | None:
    """Virtual time to the target, and of the whole run: a line from the 5 % to the 95 % quantile of the draws.

    ``colours``: by method. None if no run has draws.
    """
    found = drawn_times.of_runs(runs)
    if not found:
        return None
    panels: list[tuple[str, list[Bar]]] = [
        (
            "Virtual time to the target",
            [(times.to_target, _reached(run, times.target_accuracy)) for run, times in found],
        ),
        ("Virtual time of the run", [(times.to_end, run.rounds[-1].end_s) for run, times in found]),
    ]
    shown = [(title, bars) for title, bars in panels if any(around for around, _ in bars)]
    names = reflow.wide_ticks([run.label for run, _ in found])
    height = 90 + reflow.row_pixels(names, 44) * len(found)
    figure, grid = plot_style.panels(len(shown), len(shown), height, sharey=True)
    for axes, (title, bars) in zip(grid, shown, strict=True):
        _draw(axes, bars, [colours[run.method] for run, _ in found])
        axes.set_title(title)
    grid[0].set_yticks(range(len(found)), names)
    grid[0].set_ylim(len(found) - 0.5, -0.5)
    return figure


def _reached(run: RecordedRun, target: float | None) -> float | None:
    point = progress.to_target(run.trail, target)
    return None if point is None else point.virtual_seconds


def _draw(axes: Axes, bars: Sequence[Bar], colours: Sequence[str]) -> None:
    scale, unit = plot_style.unit([np.array([around.high for around, _ in bars if around])], SECONDS)
    for place, ((around, recorded), colour) in enumerate(zip(bars, colours, strict=True)):
        if around is None:
            axes.text(0.015, place, "not reached", transform=axes.get_yaxis_transform(), va="center", color=INK)
            continue
        axes.plot([around.low / scale, around.high / scale], [place, place], color=colour, linewidth=5)
        axes.vlines(around.median / scale, place - 0.2, place + 0.2, color=INK, linewidth=1.6)
        if recorded is not None:
            axes.plot(recorded / scale, place, "o", color=INK, ms=5)
    axes.set(xlabel=f"virtual time ({unit})", xlim=(0, None))
    plot_style.bars(axes)
