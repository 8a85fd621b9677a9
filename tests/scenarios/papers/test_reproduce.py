"""``fedbr reproduce``: published values beside ours, and what was changed for them."""

from __future__ import annotations

import pytest

from scenarios.config.load import ScenarioError
from scenarios.experiment.grid import Grid, grid_of
from scenarios.papers import reproduce, tables
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
from tests.crossed import crossed
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process


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


@pytest.mark.parametrize(("name", "scale"), crossed(tuple(tables.FIGURES), tuple(SCALES)))
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


def test_another_papers_table_is_a_row_of_the_registry_whose_rows_win_over_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = PaperRow("fedprox", {"train.lr": 0.01, "method_options.mu": 0.1})
    setting = {scale: PaperSetting("digits", {"train.lr": 0.5, "rounds.max": 2}, {}, "all of it") for scale in SCALES}
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
    rows["Wrong"] = PaperRow("fedprox", {"method_options.mue": 0.1})
    assert "unknown key method_options.mue" in refusal("other:1")
