"""Figures of rounds, costs, participation, a recorded link, and methods' maps: the numbers that they draw."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

from coordinator.methods.spec import MethodMap
from coordinator.rounds.amounts import BYTES
from scenarios.report import curves, result_tables, round_figures
from scenarios.report.method_figures import draw_maps
from scenarios.report.plot_style import ShownRuns
from scenarios.report.round_figures import TimelineRow
from scenarios.report.run_reader import RecordedRun, open_runs
from scenarios.run import visits
from scenarios.run.progress import Trail
from tests.ledgers import made_run, visit_row

SCENARIO = 'method = "{method}"\nseed = {seed}\n[data]\nclients = 4\n'


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    """Client 0 is done after 4 of the 10 s, client 1 after 10, client 2 came too late; client 3 had no visit."""
    visits = [
        visit_row(0, 0, 0, 0, 1, 3, 4),
        visit_row(1, 0, 1, 0, 2, 8, 10),
        visit_row(2, 0, 2, 0, 2, 9, 12, kind="late"),
        visit_row(3, 1, 0, 10, 11, 13, 14),
    ]
    folder = tmp_path_factory.mktemp("one") / "run"
    return open_runs([made_run(folder, (0.5, 0.4), SCENARIO.format(method="fedavg", seed=0), visits)])[0]


def test_a_timeline_has_each_client_s_phases_and_its_wait_for_the_end_of_the_round(run: RecordedRun) -> None:
    timeline = round_figures.timeline(run, 0)
    assert (timeline.round, timeline.seconds, timeline.visits) == (1, 10.0, 3)
    assert list(timeline.rows) == [
        TimelineRow("0", True, 0, 1, 3, 3, 4, waited=6),
        TimelineRow("1", True, 0, 2, 8, 8, 10, waited=0),
        TimelineRow("2", False, 0, 2, 9, 9, 12, waited=0),
    ]


def test_visits_are_counted_per_client_and_clients_without_any_are_said(run: RecordedRun) -> None:
    found = visits.participation(run.query, run.scenario)
    assert (found.counted, found.wasted, found.never) == ({0: 2, 1: 1}, {2: 1}, 1)
    assert found.histogram() == {0: 2, 1: 1, 2: 1}
    assert found.per_client() == [0, 0, 1, 2]
    assert result_tables.participants([run]).texts == [[run.label, "4", "1", "0", "0.5", "2", "66.7 %", "1"]]


def test_no_point_of_the_front_is_beaten_by_a_cheaper_one() -> None:
    points = [(3.0, 0.5), (1.0, 0.2), (2.0, 0.5), (2.0, 0.1), (4.0, 0.4), (5.0, 0.9)]
    assert curves.front(points) == [(1.0, 0.2), (2.0, 0.5), (5.0, 0.9)]


def test_a_mean_over_seeds_is_where_all_seeds_have_a_value(run: RecordedRun) -> None:
    curve = curves.over_seeds([{1: 0.25, 2: 0.5, 3: 0.9}, {1: 0.75, 3: 0.5}])
    assert (curve.x.tolist(), curve.mean.tolist()) == ([1, 3], [0.5, 0.7])
    assert curve.deviation.tolist() == pytest.approx([0.353553, 0.282843], abs=1e-6)
    # The best so far stays at the first round's; accuracy falls.
    alone = curves.over_amounts([run.trail], BYTES, "best")
    assert (alone.x.tolist(), alone.mean.tolist(), alone.deviation.tolist()) == ([1000, 2000], [0.5, 0.5], [0, 0])
    falls = curves.over_amounts([run.trail, Trail(run.trail[:1])], BYTES)
    assert (falls.x.tolist(), falls.mean.tolist()) == ([1000], [0.5])


# --- a recorded link --------------------------------------------------------------------------------------------------


# --- maps of clients --------------------------------------------------------------------------------------------------


PEERS = MethodMap("peers", "", ("peer",), "peer", "weight", "mean weight", periods=2)


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

    def client_name(self, client: int) -> str:
        return str(client)


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


def test_the_mean_of_runs_that_their_target_ended_ends_at_the_target_or_above() -> None:
    # The first seed has 50 % after its second round and ends; the other one has 60 % in its third.
    first, other = {1.0: 0.2, 2.0: 0.5}, {1.0: 0.1, 2.0: 0.3, 3.0: 0.6}
    held = curves.over_seeds([first, other], [True, True])
    assert held.x.tolist() == [1.0, 2.0, 3.0]
    assert held.mean.tolist() == pytest.approx([0.15, 0.4, 0.55])
    # One that ended for another reason has no value beyond its end.
    assert curves.over_seeds([first, other], [False, True]).x.tolist() == [1.0, 2.0]
