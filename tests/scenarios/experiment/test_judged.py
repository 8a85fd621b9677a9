"""``fedbr sweep --judge validation``: the best setting of a grid, by validation examples alone."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert, to_builtins

from coordinator.records.store import read
from scenarios.cli import main
from scenarios.experiment import judged
from scenarios.experiment.grid import grid_of
from scenarios.experiment.run_set import is_interrupted
from scenarios.experiment.sweep import Sweep, plan
from scenarios.report.tables import Table
from scenarios.run.score import OF_ACCURACY
from tests.scenarios.in_this_process import SMALL
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process
from tests.scenarios.runs import changed

HELD_OUT = "data.validation=0.2"
JUDGED = ("--judge", "validation", "--seeds", "1")


def tuned(*words: str, seeds: int = 1) -> Sweep:
    return plan(grid_of("digits", [HELD_OUT, *words]), seeds, judge="validation")


def test_what_a_scenario_evaluates_otherwise_is_left_out() -> None:
    planned = plan(grid_of("pfedmb-cifar10", ["method=pfedmb", "method_options.branches=2,5"]), 1, judge="validation")
    found = {
        (of.on, of.split, of.select, of.adapt.before)
        for of in (run.loaded.scenario.eval for run in planned.run_set.runs)
    }
    assert found == {("clients", "validation", None, False)}
    assert {run.loaded.scenario.eval.adapt.epochs for run in planned.run_set.runs} == {5}


@pytest.mark.usefixtures("pool_in_this_process")
def test_the_best_validation_accuracy_chooses_and_no_test_example_is_evaluated(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["digits", "method=fedavg", HELD_OUT, *SMALL, "train.lr=0.0001,0.1", *JUDGED]
    words += ["--out", str(tmp_path), "--run-id", "t"]
    assert main.run_command(["sweep", *words, "--json"]) == 0
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
    assert main.run_command(["sweep", *words, "--report"]) == 0
    assert "fedbr run digits " in capsys.readouterr().out
    page = (tmp_path / "digits" / "t" / "report.html").read_text()
    assert ("validation accuracy" in page, "test accuracy" in page) == (True, False)


def chosen(planned: Sweep, failed: dict[str, str], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What these runs choose."""
    done = judged.apart({"folder": "runs/digits/t", "runs": runs, "failed": failed, "missing": list(failed)})
    return {**done, **to_builtins(judged.choice(planned, planned.axes, done))}


def tables_of(result: dict[str, Any]) -> list[Table]:
    return judged.tables(convert(result, judged.JudgedSettings), OF_ACCURACY, [], "diverged" in result)


def test_a_value_that_diverges_is_a_result_and_never_the_chosen_one() -> None:
    planned = tuned("method=fedavg", "train.lr=0.1,10,100", seeds=2)
    best = {"score": 0.75, "rounds": 3}
    ended = [
        {"name": "fedavg-lr-0.1-seed0", "best_round": best},
        {"name": "fedavg-lr-0.1-seed1", "best_round": best},
        {"name": "fedavg-lr-10-seed1", "best_round": {"score": 1.0, "rounds": 4}},
    ]
    why = "update rejected: client 2, round 1: loss = nan (training diverged?)"
    names = ("fedavg-lr-10-seed0", "fedavg-lr-100-seed0", "fedavg-lr-100-seed1")
    result = chosen(planned, dict.fromkeys(names, why), ended)

    assert (result["diverged"], "failed" in result, "missing" in result) == (dict.fromkeys(names, why), False, False)
    assert [row["validation"]["values"] for row in result["settings"]] == [[0.75, 0.75], [None, 1.0], [None, None]]
    assert [row["settings"] for row in result["chosen"]] == [{"train.lr": "0.1"}]
    _, settings = tables_of(result)
    assert [row[2:] for row in settings.texts] == [
        ["75.00 ± 0.00 %", "3, 3"],
        ["diverged with 1 of 2 seeds", "-, 4"],
        ["diverged", "-, -"],
    ]
    assert settings.notes[-1].startswith("diverged: training gave numbers that are too large")
    assert not is_interrupted({**result, "runs": [{"stopped_by": "rounds"}] * 3}, planned.run_set)


@pytest.mark.usefixtures("pool_in_this_process")
@pytest.mark.parametrize(("values", "code"), [("0.1,100000", 0), ("90000,100000", 3)])
def test_a_study_fails_only_if_every_value_diverges(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, values: str, code: int
) -> None:
    words = ["digits", "method=fedavg", *changed((HELD_OUT, *SMALL), "rounds.max=2"), f"train.lr={values}", *JUDGED]
    assert main.run_command(["sweep", *words, "--no-report", "--out", str(tmp_path)]) == code
    said = capsys.readouterr()
    assert ("training diverged?" in said.err) == (code == 3)
    assert ("train.lr=100000 diverged" in " ".join(said.out.split())) == (code == 0)
