"""The figures of methods, drawn from a method's own ledger table as its spec says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coordinator.methods.registry import resolve
from coordinator.methods.spec import MethodFigure, MethodMap
from scenarios.report import method_maps, plot_style, reflow
from scenarios.report.plot_style import INK
from scenarios.report.run_reader import RecordedRun

AVERAGED_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")


def figures_of(runs: Sequence[RecordedRun]) -> dict[str, MethodFigure | MethodMap]:
    """Table -> the figure that is drawn from it, for all methods of these runs that have one.

    That of a method of the user's own is the one that the run has recorded; a method of another version is left out.
    """
    figures: dict[str, MethodFigure | MethodMap] = {}
    for run in runs:
        table, figure = _figure_of(run)
        if table is not None and figure is not None:
            figures.setdefault(table, figure)
    return figures


def _figure_of(run: RecordedRun) -> tuple[str | None, MethodFigure | MethodMap | None]:
    """(table, the figure of it) of a run's method."""
    if (own := run.own_method) is not None:
        return own.table, own.figure or own.map
    try:
        spec = resolve(run.method).objective
    except ValueError:
        return None, None
    return None if spec.table is None else spec.table.name, spec.figure


def draw(table: str, figure: MethodFigure | MethodMap, runs: Sequence[RecordedRun]) -> Figure | None:
    """The figure of the runs whose method has this table; None if it has no rows yet."""
    runs = [run for run in runs if table in figures_of([run])]
    return method_maps.draw(table, figure, runs) if isinstance(figure, MethodMap) else _draw(table, figure, runs)


def _draw(table: str, figure: MethodFigure, runs: Sequence[RecordedRun]) -> Figure | None:
    """Two panels for each run: by round, clients per chosen value, and means."""
    chosen = [(run, counts) for run in runs if (counts := _counts(table, figure, run))]
    if not chosen:
        return None
    drawn, panels = plot_style.panels(2 * len(chosen), 2, 330)
    values = sorted({value for _, counts in chosen for by_value in counts.values() for value in by_value})
    shades = dict(zip(values, matplotlib.colormaps["YlGnBu"](np.linspace(0.25, 0.95, len(values))), strict=True))
    for (run, counts), left, right in zip(chosen, panels[::2], panels[1::2], strict=True):
        clients = {value: np.array([of.get(value, 0.0) for of in counts.values()]) for value in values}
        layers = [(f"{figure.symbol} = {value}", shades[value], clients[value]) for value in values]
        plot_style.stack(left, [round + 1 for round in counts], layers)
        _mark(left, table, figure, run)
        left.set(title=reflow.wide_title(f"{run.label}: {figure.counted_title}", 2), xlabel="round", ylabel="clients")
        left.yaxis.set_major_locator(plot_style.whole())
        left.legend(loc="upper left", bbox_to_anchor=(1, 1), handlelength=1, borderaxespad=0)
        _average(right, table, figure, run)
    return drawn


def _counts(table: str, figure: MethodFigure, run: RecordedRun) -> Mapping[int, Mapping[int, float]]:
    """Round -> value of the counted column -> clients."""
    counts: defaultdict[int, dict[int, float]] = defaultdict(dict)
    query = f'SELECT round, "{figure.counted}", COUNT(*) FROM {table} GROUP BY 1, 2 ORDER BY 1, 2'
    for round, value, clients in run.query(query):
        counts[round][value] = float(clients)
    return counts


def _mark(axes: Axes, table: str, figure: MethodFigure, run: RecordedRun) -> None:
    """A triangle above the rounds in which the marked column is not 0 for some client."""
    if figure.marked is not None:
        column, label = figure.marked
        marked = [row[0] for row in run.query(f'SELECT DISTINCT round FROM {table} WHERE "{column}" ORDER BY 1')]
        rounds, above = [round + 1 for round in marked], [0.976] * len(marked)
        axes.plot(rounds, above, "v", color=INK, ms=5, label=label, transform=axes.get_xaxis_transform())


def _average(axes: Axes, table: str, figure: MethodFigure, run: RecordedRun) -> None:
    columns = ", ".join(f'AVG("{column}")' for column in figure.averaged)
    means = run.query(f"SELECT round, {columns} FROM {table} GROUP BY round ORDER BY round")
    for index, label in enumerate(figure.averaged.values()):
        colour = AVERAGED_COLOURS[index % len(AVERAGED_COLOURS)]
        axes.plot([row[0] + 1 for row in means], [row[index + 1] for row in means], color=colour, label=label)
    axes.set(
        title=reflow.wide_title(f"{run.label}: {figure.averaged_title}", 2),
        xlabel="round",
        ylabel="mean over clients (no unit)",
    )
    axes.xaxis.set_major_locator(plot_style.whole())
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
