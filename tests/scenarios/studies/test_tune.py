"""``fedbr study tune``: the best setting of a grid, by validation examples alone."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from coordinator.records.store import read
from scenarios.cli import main
from scenarios.config.load import ScenarioError
from scenarios.studies import tune
from tests.scenarios.in_this_process import SMALL
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process
from tests.scenarios.runs import refused

HELD_OUT = "data.validation=0.2"


def test_a_grid_is_a_key_and_its_values_and_each_is_named_once() -> None:
    assert tune.grid(["train.lr = 0.1, 1", "method_options.mu=0"]) == {
        "train.lr": ["0.1", "1"],
        "method_options.mu": ["0"],
    }
    for texts, reason in (
        ([], "name values to choose from with --grid train.lr=0.01,0.03,0.1"),
        (["train.lr"], "--grid 'train.lr': write a key and values separated by commas"),
        (["train.lr=1,,2"], "--grid 'train.lr=1,,2': write a key and values separated by commas"),
        (["train.lr=1", "train.lr=2"], "--grid: train.lr is named twice"),
        (["train.lr=1,1"], "--grid 'train.lr=1,1': '1' is named twice"),
    ):
        with pytest.raises(ScenarioError) as caught:
            tune.grid(texts)
        assert str(caught.value).startswith(reason)


def test_an_option_of_a_method_varies_for_the_methods_that_have_it() -> None:
    values = {"train.lr": ["0.1", "1"], "method_options.mu": ["0.1", "2"]}
    planned = tune.plan("digits", [HELD_OUT], "fedavg,fedprox", values, seeds=2)
    assert [run.name for run in planned.run_set.runs[:6]] == [
        "fedavg-lr-0.1-seed0",
        "fedavg-lr-1-seed0",
        "fedprox-lr-0.1-mu-0.1-seed0",
        "fedprox-lr-0.1-mu-2-seed0",
        "fedprox-lr-1-mu-0.1-seed0",
        "fedprox-lr-1-mu-2-seed0",
    ]
    assert len(planned.run_set.runs) == 12
    assert {run.loaded.scenario.eval.split for run in planned.run_set.runs} == {"validation"}
    adapted = tune.plan("digits", [HELD_OUT, "eval.adapt.epochs=2"], "fedavg", {"train.lr": ["0.1"]}, seeds=1)
    assert adapted.run_set.runs[0].loaded.scenario.eval.adapt.epochs == 2
    assert adapted.overrides == [HELD_OUT, "eval.adapt.epochs=2"]


def test_what_a_scenario_evaluates_otherwise_is_left_out() -> None:
    planned = tune.plan("pfedmb-cifar10", [], "pfedmb", {"method_options.branches": ["2", "5"]}, seeds=1)
    found = {
        (of.on, of.split, of.select, of.adapt.before)
        for of in (run.loaded.scenario.eval for run in planned.run_set.runs)
    }
    assert found == {("clients", "validation", None, False)}
    assert {run.loaded.scenario.eval.adapt.epochs for run in planned.run_set.runs} == {5}


def test_mistakes_are_refused_before_any_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def refusal(*words: str) -> str:
        return refused(capsys, "study", "tune", "digits", "--out", str(tmp_path), *words)

    lr = ("--grid", "train.lr=0.1,1")
    assert refusal(*lr) == "data.validation = 0: settings are chosen on validation examples; set data.validation=0.2"
    assert refusal(HELD_OUT, "eval.split=test", *lr).startswith("eval.split: tuning evaluates")
    assert "unknown key method_options.mu: none of fedavg has it" in refusal(
        HELD_OUT, "--grid", "method_options.mu=0,1"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("pool_in_this_process")
def test_the_best_validation_accuracy_chooses_and_no_test_example_is_evaluated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("digits", HELD_OUT, *SMALL, "--grid", "train.lr=0.0001,0.1", "--out", str(tmp_path), "--run-id", "t")
    assert main.run_command(["study", "tune", *words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    slow, fast = (row["validation"]["mean"] for row in result["settings"])
    assert fast > slow
    (chosen,) = result["chosen"]
    assert (chosen["settings"], chosen["validation"]["mean"]) == ({"train.lr": "0.1"}, fast)
    assert chosen["at_edge"] == ["train.lr"]
    for run in result["runs"]:
        folder = Path(run["run_dir"])
        assert tomllib.loads((folder / "scenario.toml").read_text())["eval"]["split"] == "validation"
        best = read(folder / "ledger.sqlite", "SELECT max(accuracy) FROM rounds")[0][0]
        assert best in (slow, fast)
    assert (tmp_path / "digits" / "t" / "table.csv").read_text().count("\n") == 3
    assert main.run_command(["study", "tune", *words]) == 0  # all runs are there: nothing is trained again
    assert f"fedbr run digits {HELD_OUT}" in capsys.readouterr().out
