"""The cells of published tables: averages, bounds, means over settings, and the marks of what is not the paper's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coordinator.records.store import read
from scenarios.cli import main
from scenarios.config.load import ScenarioError
from scenarios.experiment.grid import Grid, grid_of
from scenarios.papers import reproduce, tables
from scenarios.papers.cells import measured
from scenarios.papers.spec import CORRECTED, FIRST, Smoothing, ema, smoothed
from scenarios.run.progress import ProgressPoint, Trail
from tests.scenarios.in_this_process import training_here


def planned(*words: str, scale: str = "tiny", ema: str | None = None) -> reproduce.Reproduction:
    """Table 4: FedAvg and both orders of pathways."""
    return reproduce.plan("fedmlb:4", scale, grid_of("fedmlb:4", words), 1, ema=ema)


def learning(*accuracies: float) -> Trail:
    points, best = [], 0.0
    for index, accuracy in enumerate(accuracies, start=1):
        best = max(best, accuracy)
        points.append(ProgressPoint(index, 10.0 * index, 100 * index, 80.0 * index, accuracy, best))
    return Trail(points)


# --- how it is read ---------------------------------------------------------------------------------------------------


def test_a_target_that_was_missed_is_a_bound_and_never_left_out() -> None:
    reached, missed = learning(0.2, 0.6, 0.7), learning(*[0.3] * 1000)
    both = measured([reached, missed], "rounds to accuracy", 0.5)

    assert both["ours"] == {"mean": None, "deviation": None, "values": [2.0, None], "half_width": None}
    assert both["at_least"] == (2 + 1000) / 2
    assert both["complete"] == [True, False]
    assert measured([reached, reached], "rounds to accuracy", 0.5)["at_least"] is None


def test_a_missed_target_is_shown_as_the_paper_does() -> None:
    made = planned("panel=cifar100-dir0.3-100@48%", "row=FedAvg", scale="paper")
    (cell,) = made.result({"runs": []})["cells"]
    never = measured([learning(*[0.3] * 1000)], "rounds to accuracy", 0.48)
    table = tables.tables(made.selection, {"cells": [{**cell, **never}]})[0]

    assert (table.header, table.rows) == (["", "paper, 48 %", "ours, 48 %"], [["FedAvg", "1000+", "1000+"]])
    assert any(note.startswith("+ lower bound") for note in table.notes)


def test_targets_are_reached_by_the_average_and_not_by_one_lucky_round() -> None:
    lucky = smoothed(learning(0.2, 0.6, 0.2, 0.2, 0.2, 0.2), Smoothing(0.9, FIRST))

    assert measured([lucky], "rounds to accuracy", 0.5)["at_least"] == 6
    # 0.2, 0.24, then falling towards 0.2
    assert measured([lucky], "accuracy at rounds", 2)["ours"]["mean"] == pytest.approx(0.24)


def test_the_beginning_of_the_average_can_be_chosen_where_there_is_one() -> None:
    assert planned().selection.smoothing == Smoothing(0.9, "corrected")
    assert planned(ema="first").selection.smoothing == Smoothing(0.9, "first")
    with pytest.raises(ScenarioError, match=r"^--ema 'frist': did you mean 'first'\?$"):
        planned(ema="frist")
    with pytest.raises(ScenarioError, match=r"^--ema: the accuracies of fedbr:fig3 are not averaged over rounds$"):
        reproduce.plan("fedbr:fig3", "tiny", Grid("fedbr:fig3"), 1, ema="first")


# --- marks ------------------------------------------------------------------------------------------------------------


LOSSLESS, JPEGS = "Parquet (lossless images) in /data/cifar100", "Parquet (JPEG images) in /data/"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One row of Table 8 on two seeds, cut short after two rounds of one step."""
    out = tmp_path_factory.mktemp("runs")
    words = ["fedmlb:8", "rounds.max=2", "train.local_steps=1", "row=tau=1.5", "setting=cifar100-dir0.3-100"]
    words += ["--seeds", "2"]
    with training_here():
        assert main.run_command(["reproduce", *words, "-q", "--report", "--out", str(out), "--run-id", "a"]) == 0
    return dict(json.loads((out / "fedmlb-8-tiny" / "a" / "study.json").read_text()))


def test_a_cell_that_was_made_is_the_average_over_its_runs_rounds_and_bears_its_marks(result: dict[str, Any]) -> None:
    (cell,) = result["cells"]
    query = "SELECT accuracy FROM rounds ORDER BY round"
    made = [[row["accuracy"] for row in read(Path(run["run_dir"]) / "ledger.sqlite", query)] for run in result["runs"]]
    by_hand = [(0.09 * first + 0.1 * second) / 0.19 for first, second in made]

    assert (cell["panel"], cell["row"], cell["published"]) == ("cifar100-dir0.3-100@1000R", "tau=1.5", 0.5387)
    assert cell["ours"]["values"] == pytest.approx(by_hand)
    assert cell["ours"]["mean"] == pytest.approx(sum(by_hand) / 2)
    assert cell["marks"] == ["scaled", "asked"]
    assert cell["overrides"] == ["method_options.temperature=1.5"]
    assert "digits (8x8, 10 classes) in place of CIFAR-100" in cell["changed"]
    assert "30 rounds in place of 1000" in cell["changed"]
    assert cell["changed"].endswith("override rounds.max=2; override train.local_steps=1")
    assert (cell["rounds"], cell["complete"]) == (2, [False, False])
    assert (result["seeds"], result["accuracy"]) == ([0, 1], "moving average of momentum 0.9, bias-corrected")
    page = (Path(result["folder"]) / "report.html").read_text()
    for part in ("<th>paper, 1000R</th><th>ours, 30R</th>", "<td>53.87</td>", "*†§</td>", "<svg"):
        assert part in page


# --- moving averages --------------------------------------------------------------------------------------------------


def test_an_average_weighs_the_rounds_so_far_or_hardly_leaves_the_first_or_is_none_without_momentum() -> None:
    # 0.05/0.1;  (0.045 + 0.07)/0.19;  (0.1035 + 0.06)/0.271
    assert ema([0.5, 0.7, 0.6], Smoothing(0.9, CORRECTED)) == pytest.approx([0.5, 0.115 / 0.19, 0.1635 / 0.271])
    # 0.9 x 0.5 + 0.07;  0.9 x 0.52 + 0.06
    assert ema([0.5, 0.7, 0.6], Smoothing(0.9, FIRST)) == pytest.approx([0.5, 0.52, 0.528])
    assert ema([0.5, 0.7, 0.6], Smoothing(0.0)) == [0.5, 0.7, 0.6]
