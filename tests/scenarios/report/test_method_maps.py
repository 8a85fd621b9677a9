"""Maps of clients: which cells a method's table fills, period by period."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from coordinator.methods.spec import MethodMap
from scenarios.report.method_figures import draw_maps
from scenarios.report.plot_style import ShownRuns
from scenarios.report.run_reader import RecordedRun

PEERS = MethodMap("peers", "", ("peer",), "peer", "weight", "mean weight", periods=2)
CLUSTERS = MethodMap("clusters", "", ("round",), "round", "cluster", "cluster", periods=1, is_kind=True)


@dataclass
class Run:
    """A ledger that has one table alone."""

    rows: list[tuple[Any, ...]]
    label: str = "run"
    db: sqlite3.Connection = field(default_factory=lambda: sqlite3.connect(":memory:"))

    def __post_init__(self) -> None:
        self.db.execute("CREATE TABLE own (round, client, peer, weight, cluster)")
        self.db.executemany("INSERT INTO own VALUES (?, ?, ?, ?, ?)", self.rows)

    def query(self, text: str) -> list[tuple[Any, ...]]:
        return self.db.execute(text).fetchall()


def panels(figure: MethodMap, *rows: tuple[Any, ...]) -> dict[str, list[list[float | None]]]:
    """Title of a panel -> (clients, columns), None where it is empty."""
    drawn = draw_maps("own", figure, [cast(RecordedRun, Run(list(rows)))], ShownRuns([]))
    assert drawn is not None
    grids = {axes.get_title(): axes.get_images() for axes in drawn.axes if axes.get_title()}
    return {
        title: [
            [None if np.isnan(v) else round(v, 6) for v in line]
            for line in np.ma.filled(cast(Any, image.get_array()), np.nan)
        ]
        for title, (image,) in grids.items()
    }


def test_a_cell_is_the_mean_of_a_period_and_empty_without_rows() -> None:
    assert panels(
        PEERS,
        (0, 4, 7, 0.2, 0),
        (1, 4, 7, 0.4, 0),
        (1, 4, 9, 1.0, 0),
        (3, 5, 9, 0.5, 0),
    ) == {
        "run: rounds 1 to 2": [[0.3, 1.0], [None, None]],
        "run: rounds 3 to 4": [[None, None], [None, 0.5]],
    }


def test_a_kind_is_not_averaged_and_a_short_run_has_fewer_periods() -> None:
    assert panels(CLUSTERS, (0, 1, 0, 0.0, 2), (1, 1, 0, 0.0, 0), (1, 1, 0, 0.0, 1)) == {"run": [[2, 1]]}
    assert panels(PEERS, (0, 4, 7, 0.2, 0)) == {"run: round 1": [[0.2]]}


def test_without_rows_there_is_no_figure() -> None:
    assert draw_maps("own", PEERS, [cast(RecordedRun, Run([]))], ShownRuns([])) is None
