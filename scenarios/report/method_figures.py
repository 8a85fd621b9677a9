"""The figures of methods, over rounds or as maps of clients, from a method's own ledger table as its spec says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from coordinator.methods.registry import resolve
from coordinator.methods.spec import MethodFigure, MethodMap
from scenarios.report import plot_style
from scenarios.report.plot_style import ShownRuns
from scenarios.report.run_reader import RecordedRun
from scenarios.report.theme import EMPTY, INK

AVERAGED_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")


def figures_of(runs: Sequence[RecordedRun]) -> dict[str, MethodFigure | MethodMap]:
    """Table -> the figure that is drawn from it, for all methods of these runs that have one.

    That of a method of the user's own is the one that the run has recorded; a method of another version is left out.
    """
    figures: dict[str, MethodFigure | MethodMap] = {}
    for run in runs:
        if (own := run.own_method) is not None:
            table, figure = own.table, own.figure or own.map
        else:
            try:
                records = resolve(run.method).objective.records
            except ValueError:
                continue
            table, figure = None if records.table is None else records.table.name, records.figure
        if table is not None and figure is not None:
            figures.setdefault(table, figure)
    return figures


def draw(table: str, figure: MethodFigure | MethodMap, shown: ShownRuns) -> Figure | None:
    """The figure of the runs whose method has this table; None if it has no rows yet."""
    runs = [run for run in shown.runs if table in figures_of([run])]
    if isinstance(figure, MethodMap):
        return draw_maps(table, figure, runs, shown)
    return _draw_rounds(table, figure, runs, shown)


def _draw_rounds(table: str, figure: MethodFigure, runs: Sequence[RecordedRun], shown: ShownRuns) -> Figure | None:
    """Two panels for each run: by round, clients per chosen value, and means."""
    chosen = [(run, counts) for run in runs if (counts := _counts(table, figure, run))]
    if not chosen:
        return None
    drawn, panels = shown.panels(2 * len(chosen), 2, 330)
    values = sorted({value for _, counts in chosen for by_value in counts.values() for value in by_value})
    shades = dict(zip(values, matplotlib.colormaps["YlGnBu"](np.linspace(0.25, 0.95, len(values))), strict=True))
    for (run, counts), left, right in zip(chosen, panels[::2], panels[1::2], strict=True):
        clients = {value: np.array([of.get(value, 0.0) for of in counts.values()]) for value in values}
        layers = [(f"{figure.symbol} = {value}", shades[value], clients[value]) for value in values]
        plot_style.stack(left, [round + 1 for round in counts], layers)
        if figure.marked is not None:  # a triangle above the rounds in which it is not 0 for some client
            column, label = figure.marked
            marked = run.query(f'SELECT DISTINCT round FROM {table} WHERE "{column}" ORDER BY 1')
            at = [row[0] + 1 for row in marked], [0.976] * len(marked)
            left.plot(*at, "v", color=INK, ms=5, label=label, transform=left.get_xaxis_transform())
        title = plot_style.wide_title(f"{run.label}: {figure.counted_title}", 2)
        left.set(title=title, xlabel="round", ylabel="clients")
        left.yaxis.set_major_locator(plot_style.whole())
        left.legend(loc="upper left", bbox_to_anchor=(1, 1), handlelength=1, borderaxespad=0)
        averages = ", ".join(f'AVG("{column}")' for column in figure.averaged)
        means = run.query(f"SELECT round, {averages} FROM {table} GROUP BY round ORDER BY round")
        for index, label in enumerate(figure.averaged.values()):
            colour = AVERAGED_COLOURS[index % len(AVERAGED_COLOURS)]
            right.plot([row[0] + 1 for row in means], [row[index + 1] for row in means], color=colour, label=label)
        title = plot_style.wide_title(f"{run.label}: {figure.averaged_title}", 2)
        right.set(title=title, xlabel="round", ylabel="mean over clients (no unit)")
        right.xaxis.set_major_locator(plot_style.whole())
        right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2)
    return drawn


def _counts(table: str, figure: MethodFigure, run: RecordedRun) -> Mapping[int, Mapping[int, float]]:
    """Round -> value of the counted column -> clients."""
    counts: defaultdict[int, dict[int, float]] = defaultdict(dict)
    query = f'SELECT round, "{figure.counted}", COUNT(*) FROM {table} GROUP BY 1, 2 ORDER BY 1, 2'
    for round, value, clients in run.query(query):
        counts[round][value] = float(clients)
    return counts


# --- maps -----------------------------------------------------------------------------------------------------------

Doubles = NDArray[np.float64]
Column = tuple[Any, ...]
MOST_CLIENTS = 100
MOST_NAMED = 24
"""Columns of a map that are all named"""
PANEL_PIXELS, CLIENT_PIXELS = 150, 14


def draw_maps(table: str, figure: MethodMap, runs: Sequence[RecordedRun], shown: ShownRuns) -> Figure | None:
    """For each run a map of the clients, a panel per period; None if no run has rows.

    Of many clients, those with the lowest numbers.
    """
    found = [(run, cells) for run in runs if (cells := _cells(table, figure, run))]
    if not found:
        return None
    clients = sorted({client for _, cells in found for of in cells.values() for client, _ in of})
    values = np.array([value for _, cells in found for of in cells.values() for value in of.values()])
    kinds = list(range(int(values.max()) + 1)) if figure.is_kind else []
    if figure.is_kind:
        shades = ListedColormap(matplotlib.colormaps["tab20"].colors[: len(kinds)])  # type: ignore[attr-defined]
        edges = [*(kind - 0.5 for kind in kinds), kinds[-1] + 0.5]
        style: dict[str, Any] = {"cmap": shades.with_extremes(bad=EMPTY), "norm": BoundaryNorm(edges, len(kinds))}
    else:
        style = {"vmin": min(0.0, float(values.min())), "vmax": float(values.max()) or 1.0}
        style["cmap"] = matplotlib.colormaps["YlGnBu"].with_extremes(bad=EMPTY)
    height = PANEL_PIXELS + CLIENT_PIXELS * len(clients)
    drawn, panels = shown.panels(figure.periods * len(found), figure.periods, height, sharey=True)
    for number, (run, cells) in enumerate(found):
        columns = sorted({column for of in cells.values() for _, column in of})
        own = panels[number * figure.periods : (number + 1) * figure.periods]
        own[0].set_ylabel("client")
        for axes, (period, of) in zip(own, cells.items(), strict=False):
            axes.imshow(_grid(of, clients, columns), aspect="auto", interpolation="none", **style)
            first, last = period[0] + 1, period[1] + 1
            rounds = f"round {first}" if first == last else f"rounds {first} to {last}"
            title = run.label if figure.periods == 1 else f"{run.label}: {rounds}"
            axes.set(title=plot_style.wide_title(title, figure.periods), xlabel=figure.across_title)
            axes.grid(False)
            if len(columns) <= MOST_NAMED:
                names = [" ".join(map(str, column)) for column in columns]
                axes.set_xticks(range(len(columns)), names, rotation=90 if max(map(len, names)) > 3 else 0)
            else:
                axes.xaxis.set_major_locator(plot_style.whole())
        for spare in own[len(cells) :]:  # of a run with fewer rounds than periods
            spare.remove()
    if len(clients) <= MOST_NAMED:
        panels[0].set_yticks(range(len(clients)), [found[0][0].client_name(client) for client in clients])
    else:
        panels[0].yaxis.set_major_locator(plot_style.whole())
    maps = [axes for axes in panels if axes.get_images()]
    bar = maps[0].figure.colorbar(maps[0].get_images()[0], ax=maps, label=figure.value_title, fraction=0.03, pad=0.01)
    if figure.is_kind:
        bar.set_ticks(kinds, labels=list(map(str, kinds)))
    return drawn


def _cells(table: str, figure: MethodMap, run: RecordedRun) -> dict[tuple[int, int], dict[tuple[int, Column], float]]:
    """(first, last round) of each period -> (client, column) -> mean of the value; the last one of a kind."""
    names = ", ".join(f'"{name}"' for name in (*figure.across, figure.value))
    rows = run.query(f"SELECT round, client, {names} FROM {table} WHERE client < {MOST_CLIENTS} ORDER BY round")
    if not rows:
        return {}
    last = max(row[0] for row in rows)
    edges = np.linspace(0, last + 1, figure.periods + 1).round().astype(int).tolist()
    sums: dict[tuple[int, int], defaultdict[tuple[int, Column], list[float]]] = {
        (start, end - 1): defaultdict(list) for start, end in pairwise(edges) if end > start
    }
    for round, client, *across, value in map(tuple, rows):
        period = next(each for each in sums if each[0] <= round <= each[1])
        sums[period][client, tuple(across)].append(value)
    value_of = (lambda own: own[-1]) if figure.is_kind else np.mean
    return {period: {key: float(value_of(own)) for key, own in of.items()} for period, of in sums.items() if of}


def _grid(cells: dict[tuple[int, Column], float], clients: Sequence[int], columns: Sequence[Column]) -> Doubles:
    """(clients, columns); NaN where there is nothing."""
    grid = np.full((len(clients), len(columns)), np.nan)
    places = {column: index for index, column in enumerate(columns)}
    rows = {client: index for index, client in enumerate(clients)}
    for (client, column), value in cells.items():
        if client in rows:
            grid[rows[client], places[column]] = value
    return grid
