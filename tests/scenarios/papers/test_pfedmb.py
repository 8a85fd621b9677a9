"""pFedMB's tables and figures: what is printed, what is lost, and what stands for it at each scale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scenarios.cli import main
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.papers import tables
from scenarios.papers.spec import SCALES
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process

SETTINGS = (
    "cifar10-2-classes-15",
    "cifar10-2-classes-50",
    "cifar10-dir0.4-15",
    "cifar10-dir0.4-50",
    "cifar100-20-classes-15",
    "cifar100-20-classes-50",
)


def test_table_ii_has_the_printed_value_of_each_method_and_setting() -> None:
    rows = tables.catalogue("pfedmb:II")
    values = {(row["row"], row["panel"].partition("@")[0]): row["published"] for row in rows}
    assert len(rows) == len(values) == 54
    assert [values["pFedMB", name] for name in SETTINGS] == [0.9069, 0.8673, 0.7353, 0.7214, 0.4473, 0.3978]
    assert [values["Local", name] for name in SETTINGS] == [0.9001, 0.8379, 0.6754, 0.6127, 0.391, 0.2942]
    assert [row["method"] for row in rows[:9]] == [
        "local", "fedavg", "fedprox", "fedper", "pfedme", "ifca", "fedfomo", "fedamp", "pfedmb",
    ]  # fmt: skip


def test_values_that_the_text_lost_are_not_called_unprinted(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for name in ("I", "fig3"):
        assert main.run_command(["reproduce", f"pfedmb:{name}", "--list"]) == 0
        text = capsys.readouterr().out
        shown[name] = ("value lost" in text, "not printed" in text.partition("\ntiny")[0])
    assert shown == {"I": (True, False), "fig3": (False, True)}


@pytest.mark.parametrize("scale", SCALES)
def test_every_setting_is_a_scenario_that_loads(scale: str) -> None:
    clients = {}
    for setting in SETTINGS:
        found = tables.FIGURES["pfedmb:II"].settings[setting][scale]
        scenario = load(found.scenario, parse_all(found.overrides), "pfedmb").scenario
        clients[setting] = (scenario.data.partition.kind, scenario.data.clients, scenario.rounds.participants)
        assert (scenario.data.validation, scenario.data.validation_by) == (0.2, "class")
        assert (scenario.eval.on, scenario.eval.select) == ("clients", "validation")
    assert clients == {
        "cifar10-2-classes-15": ("classes", 15, 15),
        "cifar10-2-classes-50": ("classes", 50, 10),
        "cifar10-dir0.4-15": ("dirichlet-unbalanced", 15, 15),
        "cifar10-dir0.4-50": ("dirichlet-unbalanced", 50, 10),
        "cifar100-20-classes-15": ("class-shares", 15, 15),
        "cifar100-20-classes-50": ("class-shares", 50, 10),
    }


def test_the_papers_scale_is_the_papers_protocol() -> None:
    found = tables.FIGURES["pfedmb:II"].settings["cifar10-2-classes-50"]["paper"]
    scenario = load(found.scenario, parse_all(found.overrides), "pfedmb").scenario
    assert (scenario.train.batch, scenario.train.local_epochs, scenario.eval.adapt.epochs) == (64, 5, 5)
    assert (scenario.stop.patience, scenario.rounds.max, scenario.model.name) == (50, 500, "cnn")
    assert found.changed == ""


@pytest.mark.long
@pytest.mark.usefixtures("brief_figures", "pool_in_this_process")
def test_a_cell_is_the_test_accuracy_in_the_best_validation_round(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    short = ["rounds.max=2", "train.local_steps=1", "eval.adapt.epochs=1", "rounds.participants=2"]
    words = ["pfedmb:fig3", "--scale", "tiny", "row=pFedMB", *short, "--out", str(tmp_path)]
    assert main.run_command(["reproduce", *words, "--run-id", "r", "--json", "--report"]) == 0
    result = json.loads(capsys.readouterr().out)
    (cell,), (run,) = result["cells"], result["runs"]
    best = run["best_round"]
    assert best["selected_by"] == "validation"
    assert (cell["ours"]["mean"], cell["rounds"]) == (best["accuracy"], best["round"] + 1)
    assert set(cell["marks"]) == {"scaled", "asked", "inferred"}
    assert "rate 0.3 in place of 0.05" in cell["changed"]
    page = (tmp_path / "pfedmb-fig3-tiny" / "r" / "report.html").read_text()
    assert "pFedMB: " in page  # the caption of its map of branch weights
