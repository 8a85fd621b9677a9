"""Figures of rounds, costs and participation: the numbers that they draw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from scenarios.report import curves, result_tables, round_figures
from scenarios.report.plot_style import ShownRuns
from scenarios.report.readings import BYTES
from scenarios.report.round_figures import TimelineRow
from scenarios.report.run_reader import RecordedRun, grouped, open_runs
from scenarios.run import visits
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
        TimelineRow(0, True, 0, 1, 3, 4, waited=6),
        TimelineRow(1, True, 0, 2, 8, 10, waited=0),
        TimelineRow(2, False, 0, 2, 9, 12, waited=0),
    ]


def test_a_visit_that_did_not_count_is_told_from_others_without_colours(run: RecordedRun) -> None:
    figure = round_figures.round_timeline(ShownRuns(grouped([run])))
    assert figure is not None
    first = figure.axes[0]
    drawn = [patch for patch in first.patches if isinstance(patch, Rectangle) and patch.get_hatch()]
    places = [(bar.get_x(), bar.get_width(), bar.get_y() + bar.get_height() / 2) for bar in drawn if bar.get_width()]
    assert places == [(0, 12, 2)]
    assert "did not count" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_first_the_median_and_the_slowest_round_are_shown_once_each(run: RecordedRun) -> None:
    def rounds(*lengths: float) -> dict[int, str]:
        row = run.rounds[0]
        return round_figures.chosen_rounds(
            [row._replace(round=number, start_s=0.0, end_s=length) for number, length in enumerate(lengths)]
        )

    assert rounds(2, 9, 1, 3, 4) == {0: "first", 3: "median length", 1: "slowest"}
    assert rounds(5, 5) == {0: "first, median length, slowest"}
    assert rounds(0, 1) == {1: "first, median length, slowest"}
    assert rounds(0) == {}


def test_visits_are_counted_per_client_and_clients_without_any_are_said(run: RecordedRun) -> None:
    found = visits.participation(run.query, run.scenario)
    assert (found.counted, found.wasted, found.never) == ({0: 2, 1: 1}, {2: 1}, 1)
    assert found.histogram() == {0: 2, 1: 1, 2: 1}
    assert found.per_client() == [0, 0, 1, 2]
    assert result_tables.participants([run]).texts == [[run.label, "4", "1", "0", "0.5", "2", "66.7 %", "1"]]


def test_a_visit_that_only_downloads_is_no_training_visit(tmp_path: Path) -> None:
    kinds = ("train", "listen", "zeroed", "late", "listen", "evaluate")
    rows = [visit_row(place, 0, place % 4, 0, 1, 2, 3, kind=kind) for place, kind in enumerate(kinds)]
    (listened,) = open_runs([made_run(tmp_path / "run", (0.5,), SCENARIO.format(method="fedbr", seed=0), rows)])
    found = visits.participation(listened.query, listened.scenario)
    assert (found.counted, found.wasted, found.never) == ({0: 1, 2: 1}, {3: 1}, 1)


def test_no_point_of_the_front_is_beaten_by_a_cheaper_one() -> None:
    points = [(3.0, 0.5), (1.0, 0.2), (2.0, 0.5), (2.0, 0.1), (4.0, 0.4), (5.0, 0.9)]
    assert curves.front(points) == [(1.0, 0.2), (2.0, 0.5), (5.0, 0.9)]


def test_energy_adds_up_by_round(run: RecordedRun) -> None:
    assert curves.joules_by_round(run) == {1.0: 10.0, 2.0: 20.0}


def test_a_mean_over_seeds_is_where_all_seeds_have_a_value(run: RecordedRun) -> None:
    curve = curves.over_seeds([{1: 0.25, 2: 0.5, 3: 0.9}, {1: 0.75, 3: 0.5}])
    assert (curve.x.tolist(), curve.mean.tolist()) == ([1, 3], [0.5, 0.7])
    assert curve.deviation.tolist() == pytest.approx([0.353553, 0.282843], abs=1e-6)
    # The best so far stays at the first round's; accuracy falls.
    alone = curves.over_amounts([run.trail], BYTES, "best")
    assert (alone.x.tolist(), alone.mean.tolist(), alone.deviation.tolist()) == ([1000, 2000], [0.5, 0.5], [0, 0])
    falls = curves.over_amounts([run.trail, run.trail[:1]], BYTES)
    assert (falls.x.tolist(), falls.mean.tolist()) == ([1000], [0.5])


def test_a_front_is_drawn_of_two_runs_and_not_of_one(run: RecordedRun, tmp_path: Path) -> None:
    stream = SCENARIO.format(method="fedprox", seed=0) + '[rounds]\npolicy = "fedbuff"\n'
    rows = [visit_row(0, 0, 1, 0, 1, 2, 3), visit_row(1, 1, 1, 3, 4, 5, 16, staleness=1)]
    both = grouped(open_runs([run.folder, made_run(tmp_path / "stream", (0.2, 0.6), stream, rows, joules=0)]))
    assert curves.pareto(ShownRuns(both[:1])) is None
    drawn = curves.pareto(ShownRuns(both))
    assert drawn is not None
    titles = [axes.get_title() for axes in drawn.axes]
    assert titles == ["Against bytes moved", "Against virtual time"]  # one of them has no energy
    stale = round_figures.client_staleness(ShownRuns(both))
    assert stale is not None
    assert [axes.get_title() for axes in stale.axes] == ["fedprox, fedbuff"]
    assert np.asarray(stale.axes[0].collections[0].get_offsets()).tolist() == [
        [8.0, 0.5]
    ]  # visits of 3 and 13 s, 0 and 1 steps


def test_seeds_of_which_one_ended_before_another_was_evaluated_have_no_line(tmp_path: Path) -> None:
    late, short = (None, None, 0.5), (0.4,)
    folders = [
        made_run(tmp_path / str(seed), accuracies, SCENARIO.format(method="fedavg", seed=seed))
        for seed, accuracies in enumerate((late, short))
    ]
    drawn = curves.accuracy(ShownRuns(grouped(open_runs(folders))))
    assert drawn is not None
    assert [np.size(line.get_xdata()) for axes in drawn.axes for line in axes.get_lines()] == [0, 0, 0]
