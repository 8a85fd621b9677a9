"""``fedbr reproduce``: published values beside ours, and what was changed for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scenarios.cli import main
from scenarios.config.load import ScenarioError
from scenarios.experiment.grid import Grid, grid_of
from scenarios.papers import reproduce, tables
from scenarios.papers.cells import measured
from scenarios.papers.published import TABLE_AMOUNTS
from scenarios.papers.spec import (
    ACCURACY_AT,
    PAPER,
    SCALES,
    TO_ACCURACY,
    PaperFigure,
    PaperPanel,
    PaperRow,
    PaperSetting,
)
from scenarios.run.progress import ProgressPoint, Trail
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process

SLOW = Trail([ProgressPoint(1, 10.0, 100, 80.0, 0.4, 0.4), ProgressPoint(2, 20.0, 200, 160.0, 0.6, 0.6)])
FAST = Trail([ProgressPoint(1, 6.0, 100, 80.0, 0.5, 0.5), ProgressPoint(2, 12.0, 200, 160.0, 0.7, 0.7)])


def refusal(name: str, scale: str = "tiny", *words: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        reproduce.plan(name, scale, grid_of(name, words), 1)
    return str(caught.value)


def printed(name: str) -> dict[tuple[str, str], float | None]:
    return {(row["panel"], row["row"]): row["published"] for row in tables.catalogue(name)}


# --- what was published -----------------------------------------------------------------------------------------------


def test_fedbr_fig_3_holds_what_the_text_prints() -> None:
    cells = printed("fedbr:fig3")

    assert len(cells) == 4 * 4
    assert [cells["a", row] for row in ("FedBR", "FedAvg", "FedProx", "FedMLB")] == [0.774, 0.753, 0.741, 0.74]
    assert [cells["c", row] for row in ("FedBR", "FedAvg", "FedProx", "FedMLB")] == [0.768, 0.708, 0.703, 0.723]
    assert {value for (panel, _), value in cells.items() if panel in "bd"} == {None}


@pytest.mark.parametrize("name", tables.FIGURES)
@pytest.mark.parametrize("scale", SCALES)
def test_every_figure_can_be_planned_at_every_scale(name: str, scale: str) -> None:
    made = reproduce.plan(name, scale, Grid(name), 1)

    assert made.run_set.runs
    assert {panel.measure for panel in made.selection.panels} <= {*ACCURACY_AT, *TO_ACCURACY, *TABLE_AMOUNTS}
    for panel in made.selection.panels:
        assert made.selection.limit(panel) > 0
        assert set(panel.published) <= set(made.selection.figure.rows)
        assert (made.selection.limit(panel) == panel.limit) or scale != PAPER


def test_the_papers_scale_is_the_shipped_scenario_with_the_papers_budgets() -> None:
    made = reproduce.plan("fedbr:fig3", "paper", grid_of("fedbr:fig3", ["row=FedBR", "panel=a,c"]), 1)
    (part,) = made.run_set.runs

    assert part.loaded.model.name == "resnet18"
    assert part.loaded.scenario.data.partition.epsilon == 7
    assert part.needs == {"time": 900.0, "bytes": 50e9, "nominal": 50e9}


# --- the words --------------------------------------------------------------------------------------------------------


def test_unknown_names_get_the_nearest() -> None:
    assert refusal("fedbr:fig5") == "no published figure 'fedbr:fig5': did you mean 'fedbr:fig4'?"
    assert refusal("fedbr:fig3", "smal") == "--scale 'smal': did you mean 'small'?"
    assert refusal("fedbr:fig3", "tiny", "row=FedBRR") == ("command line: row: no row 'FedBRR': did you mean 'FedBR'?")
    assert refusal("fedbr:fig3", "tiny", "train.lr=1,2") == (
        "command line: train.lr: takes one value here; row, panel, setting take several"
    )
    assert refusal("fedbr:fig3", "tiny", "panel=a", "setting=cifar100") == (
        "command line: panel: none of these is of a chosen setting"
    )


def test_panels_with_one_scenario_share_its_runs() -> None:
    made = reproduce.plan("fedbr:fig3", "tiny", grid_of("fedbr:fig3", ["row=FedAvg"]), 2)

    assert [part.name for part in made.run_set.runs] == ["cifar10-fedavg-seed0", "cifar10-fedavg-seed1"]
    assert made.selection.groups == {"cifar10": "cifar10", "cifar100": "cifar10"}


def test_the_list_tells_cells_settings_and_what_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_command(["reproduce", "fedbr:fig4", "--list"]) == 0
    text = capsys.readouterr().out

    assert "published  1,104 s  1,189 s  1,245 s  954 s" in text
    assert "105.4 GB" in text
    assert "not printed" in text
    assert "paper: fedbr-cifar100" in text
    assert main.run_command(["reproduce", "--list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == sum(
        len(figure.panels) * len(figure.rows) for figure in tables.FIGURES.values()
    )
    assert main.run_command(["reproduce"]) == 2


def test_another_papers_table_is_a_row_of_the_registry_whose_rows_win_over_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = PaperRow("fedprox", ("train.lr=0.01", "method_options.mu=0.1"))
    setting = {scale: PaperSetting("digits", ("train.lr=0.5", "rounds.max=2"), {}, "all of it") for scale in SCALES}
    panel = PaperPanel("acc@2", "test accuracy after 2 rounds", "toy", "accuracy at rounds", 2.0, {"Plain": 0.5})
    rows = {"Plain": PaperRow("fedprox"), "Slow": slow}
    table = PaperFigure("A table", "A source", rows, {"toy": setting}, (panel,))
    monkeypatch.setitem(tables.FIGURES, "other:1", table)
    plain, changed = reproduce.plan("other:1", "paper", Grid("other:1"), 1).run_set.runs

    assert (plain.name, changed.name) == ("toy-fedprox-seed0", "toy-fedprox-lr-0.01-mu-0.1-seed0")
    assert (plain.loaded.scenario.train.lr, plain.loaded.scenario.method_options["mu"]) == (0.5, 0.001)
    assert (changed.loaded.scenario.train.lr, changed.loaded.scenario.method_options["mu"]) == (0.01, 0.1)
    assert plain.needs == {"rounds": 2.0}
    assert tables.catalogue("other:1")[0]["published"] == 0.5
    rows["Wrong"] = PaperRow("fedprox", ("method_options.mue=0.1",))
    assert "unknown key method_options.mue" in refusal("other:1")


# --- cells ------------------------------------------------------------------------------------------------------------


def test_accuracies_at_an_amount_and_amounts_to_an_accuracy_are_read_off_each_run() -> None:
    at_bytes = measured([SLOW, FAST], "accuracy at bytes", 199)  # by nominal bytes, too
    assert at_bytes["nominal"] is not None
    assert (at_bytes["ours"]["values"], at_bytes["nominal"]["values"]) == ([0.4, 0.5], [0.6, 0.7])
    assert (at_bytes["bytes"], at_bytes["nominal_bytes"]) == (100, 80)
    assert (at_bytes["virtual_seconds"], at_bytes["rounds"]) == (8, 1)
    assert at_bytes["complete"] == [True, True]
    at_time = measured([SLOW, FAST], "accuracy at time", 15)
    assert (at_time["ours"]["values"], at_time["nominal"], at_time["complete"]) == ([0.4, 0.7], None, [True, False])
    assert measured([SLOW, FAST], "time to accuracy", 0.6)["ours"]["mean"] == 16.0
    to_bytes = measured([SLOW, FAST], "bytes to accuracy", 0.6)["nominal"]
    assert to_bytes is not None and to_bytes["mean"] == 160.0
    missed = measured([SLOW, FAST], "rounds to accuracy", 0.65)
    assert (missed["ours"]["values"], missed["ours"]["mean"], missed["complete"]) == ([None, 2.0], None, [False, True])


# --- a figure ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("brief_figures", "pool_in_this_process")
def test_table_and_page_put_published_values_beside_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fedbr:fig3", "rounds.max=2", "row=FedAvg,FedBR", "panel=c", "--report"]
    assert main.run_command(["reproduce", *words, "--out", str(tmp_path), "--run-id", "a"]) == 0
    lines, folder = capsys.readouterr().out.splitlines(), tmp_path / "fedbr-fig3-tiny" / "a"
    fedavg = next(line for line in lines if line.startswith("FedAvg"))
    page = (folder / "report.html").read_text()

    assert "scale: tiny (scaled)" in lines
    assert any("ours, scaled" in line for line in lines)
    assert fedavg.split()[1:3] == ["70.8", "%"]
    assert len(fedavg) <= 80 and "%*" in fedavg
    assert "* not used up: a run ended before the budget" in lines
    assert "tiny (scaled)" in page and "<svg" in page
