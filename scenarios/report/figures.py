"""The report's figures by name, each as HTML with inline SVG. Nothing here opens a window or writes a file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from edge.protocol.spelling import nearest
from scenarios.config.errors import ReportError
from scenarios.report import (
    bar_figures,
    client_figures,
    curves,
    html_figures,
    method_figures,
    plot_style,
    round_figures,
    tier_figures,
)
from scenarios.report.plot_style import ShownRuns
from scenarios.report.run_reader import RecordedRun, RunGroup

Drawing = Callable[[ShownRuns], Figure | None]
"""None for runs without data for the figure"""
FIGURES: Mapping[str, Drawing] = {
    "curves": curves.accuracy,
    "losses": curves.losses,
    "pareto": curves.pareto,
    "client_values": client_figures.clients,
    "adaptation": client_figures.adaptation,
    "client_devices": client_figures.devices,
    "client_bytes": client_figures.traffic,
    "class_accuracy": client_figures.classes,
    "rates": client_figures.rates,
    "metrics": client_figures.metrics,
    "logged": client_figures.logged,
    "tiers": tier_figures.tiers,
    "aggregator_values": tier_figures.aggregator_values,
    "to_target": bar_figures.to_target,
    "uncertainty": bar_figures.uncertainty,
    "bottlenecks": bar_figures.bottlenecks,
    "timing": round_figures.timing,
    "round_timeline": round_figures.round_timeline,
    "energy": curves.energy,
    "energy_parts": bar_figures.energy_parts,
    "participation": round_figures.participation,
    "staleness": round_figures.staleness,
    "client_staleness": round_figures.client_staleness,
    "recorded_link": round_figures.recorded_link,
    "blocks": bar_figures.blocks,
    "partition": client_figures.partition,
}
LOG_AXES = ("curves", "pareto")
"""Figures whose x axes the page can make logarithmic"""


def drawings(shown: ShownRuns) -> dict[str, Drawing]:
    """Name -> figure: those of all runs, and those of the methods of these, by the names of their tables."""
    of_methods = method_figures.figures_of(shown.runs)
    return {**FIGURES, **{table: partial(method_figures.draw, table, of) for table, of in of_methods.items()}}


def draw(shown: ShownRuns, names: Collection[str] | None = None) -> dict[str, str]:
    """Name -> HTML of `html_figures.svg`, for every figure that these runs have data for, or for those of ``names``."""
    found = {}
    with matplotlib.rc_context(plot_style.STYLE):
        for name, drawing in drawings(shown).items():
            figure = drawing(shown) if names is None or name in names else None
            if figure is not None:
                found[name] = html_figures.svg(figure, name, log_x=name in LOG_AXES)
    return found


def one(shown: ShownRuns, name: str) -> Figure:
    """The figure of this name; ReportError for a name that no figure has, or for runs without data for it."""
    known = drawings(shown)
    figure = known[name](shown) if name in known else None
    if figure is not None:
        return figure
    whole = ShownRuns(shown.groups, shown.target)
    having = ", ".join(each for each, drawing in known.items() if drawing(whole) is not None)
    why = ": these runs have no data for it" if name in known else f", {nearest(name, sorted(known))}"
    raise ReportError(f"figure {name!r}{why}; they have data for: {having or 'none'}")


def draw_panels(axes: Sequence[Axes], groups: Sequence[RunGroup], target: float | None, name: str, panel: int) -> None:
    """Draw panels of a figure, from number ``panel`` on (1 is the first), onto axes of the caller's.

    Each has its own legend, labels and ticks. ReportError as `one` raises it, and for a panel that there is not.
    """
    figure = one(ShownRuns(groups, target, axes, panel - 1), name)
    first = figure.axes[0]
    axes[0].set_ylabel(axes[0].get_ylabel() or first.get_ylabel())
    for each in axes:
        if isinstance(first.yaxis.get_major_locator(), FixedLocator):
            each.set_yticks(first.get_yticks(), [text.get_text() for text in first.get_yticklabels()])
            each.set_ylim(first.get_ylim())
        if len(each.get_legend_handles_labels()[1]) > 1:
            each.legend()


def of_methods(runs: Sequence[RecordedRun], prefix: str = "") -> dict[str, str]:
    """``prefix`` and the name of a method's table -> inline SVG, for the methods that have a figure and data for it."""
    shown = ShownRuns([RunGroup(run.label, [run]) for run in runs])
    with matplotlib.rc_context(plot_style.STYLE):
        figures = {
            prefix + table: method_figures.draw(table, of, shown)
            for table, of in method_figures.figures_of(shown.runs).items()
        }
        return {name: html_figures.svg(figure, name) for name, figure in figures.items() if figure is not None}
