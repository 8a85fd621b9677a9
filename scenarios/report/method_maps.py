"""Maps of what clients chose or were given over a run, drawn from a method's own ledger table as its spec says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from coordinator.methods.spec import MethodMap
from scenarios.report import plot_style, reflow
from scenarios.report.run_reader import RecordedRun
from scenarios.report.theme import EMPTY

Doubles = NDArray[np.float64]
Column = tuple[Any, ...]
MOST_CLIENTS = 100
MOST_NAMED = 24
"""Columns of a map that are all named"""
PANEL_PIXELS, CLIENT_PIXELS = 150, 14


def draw(table: str, figure: MethodMap, runs: Sequence[RecordedRun]) -> Figure | None:
    """For each run a map of the clients, a panel per period; None if no run has rows.

    Of many clients, those with the lowest numbers.
    """
    found = [(run, cells) for run in runs if (cells := _cells(table, figure, run))]
    if not found:
        return None
    clients = sorted({client for _, cells in found for of in cells.values() for client, _ in of})
    values = np.array([value for _, cells in found for of in cells.values() for value in of.values()])
    height = PANEL_PIXELS + CLIENT_PIXELS * len(clients)
    drawn, panels = plot_style.panels(figure.periods * len(found), figure.periods, height, sharey=True)
    for number, (run, cells) in enumerate(found):
        columns = sorted({column for of in cells.values() for _, column in of})
        own = panels[number * figure.periods : (number + 1) * figure.periods]
        own[0].set_ylabel("client")
        for axes, (period, of) in zip(own, cells.items(), strict=False):
            axes.imshow(_grid(of, clients, columns), aspect="auto", interpolation="none", **_colours(figure, values))
            _label(axes, figure, run, period, columns)
        for spare in own[len(cells) :]:  # of a run with fewer rounds than periods
            spare.remove()
    if len(clients) <= MOST_NAMED:
        panels[0].set_yticks(range(len(clients)), list(map(str, clients)))
    else:
        panels[0].yaxis.set_major_locator(plot_style.whole())
    shown = [axes for axes in panels if axes.get_images()]
    bar = drawn.colorbar(shown[0].get_images()[0], ax=shown, label=figure.value_title, fraction=0.03, pad=0.01)
    if figure.is_kind:
        bar.set_ticks(_kinds(values), labels=list(map(str, _kinds(values))))
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
    shown = (lambda own: own[-1]) if figure.is_kind else np.mean
    return {period: {key: float(shown(own)) for key, own in of.items()} for period, of in sums.items() if of}


def _grid(cells: dict[tuple[int, Column], float], clients: Sequence[int], columns: Sequence[Column]) -> Doubles:
    """(clients, columns); NaN where there is nothing."""
    grid = np.full((len(clients), len(columns)), np.nan)
    places = {column: index for index, column in enumerate(columns)}
    rows = {client: index for index, client in enumerate(clients)}
    for (client, column), value in cells.items():
        if client in rows:
            grid[rows[client], places[column]] = value
    return grid


def _colours(figure: MethodMap, values: Doubles) -> dict[str, Any]:
    if not figure.is_kind:
        shades = matplotlib.colormaps["YlGnBu"].with_extremes(bad=EMPTY)
        return {"cmap": shades, "vmin": min(0.0, float(values.min())), "vmax": float(values.max()) or 1.0}
    kinds = _kinds(values)
    named = ListedColormap(matplotlib.colormaps["tab20"].colors[: len(kinds)])  # type: ignore[attr-defined]
    return {
        "cmap": named.with_extremes(bad=EMPTY),
        "norm": BoundaryNorm([*(kind - 0.5 for kind in kinds), kinds[-1] + 0.5], len(kinds)),
    }


def _kinds(values: Doubles) -> list[int]:
    return list(range(int(values.max()) + 1))


def _label(axes: Axes, figure: MethodMap, run: RecordedRun, period: tuple[int, int], columns: Sequence[Column]) -> None:
    first, last = period[0] + 1, period[1] + 1
    rounds = f"round {first}" if first == last else f"rounds {first} to {last}"
    title = run.label if figure.periods == 1 else f"{run.label}: {rounds}"
    axes.set(title=reflow.wide_title(title, figure.periods), xlabel=figure.across_title)
    axes.grid(False)
    if len(columns) <= MOST_NAMED:
        names = [" ".join(map(str, column)) for column in columns]
        axes.set_xticks(range(len(columns)), names, rotation=90 if max(map(len, names)) > 3 else 0)
    else:
        axes.xaxis.set_major_locator(plot_style.whole())
