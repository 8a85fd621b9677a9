"""``fedbr compare``: several methods on one scenario, side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scenarios.cli import main
from scenarios.experiment.compare import plan
from scenarios.experiment.grid import grid_of
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process


def test_an_option_goes_to_the_methods_that_have_it_whether_a_file_says_it_or_the_command_line(tmp_path: Path) -> None:
    words = ["method=fedavg,fedprox,fedmlb", "method_options.mu=0.5", "method_options.lambda1=2.0"]
    scenarios = [run.loaded.scenario for run in plan(grid_of("digits", words), first_seed=7).run_set.runs]
    options = [scenario.method_options for scenario in scenarios]
    assert options[0] == {}
    assert options[1]["mu"] == 0.5
    assert options[2]["lambda1"] == 2.0
    assert {scenario.seed for scenario in scenarios} == {7}
    file = tmp_path / "mine.toml"
    file.write_text('extends = "digits"\n[method_options]\nperiod = 9\n')
    fedavg, fedbr = plan(grid_of(str(file), ["method=fedavg,fedbr"])).run_set.runs
    assert fedavg.loaded.scenario.method_options == {}
    assert fedbr.loaded.scenario.method_options["period"] == 9


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, pool_in_this_process: None) -> Path:
    """The folder of a comparison of two methods over two rounds."""
    out = tmp_path_factory.mktemp("runs")
    words = [
        "rounds.max=2",
        "train.local_steps=4",
        "stop.target_accuracy=0.05",
        "--out",
        str(out),
        "--run-id",
        "both",
        "--json",
        "--report",
    ]
    assert main.run_command(["compare", "digits", "method=fedavg,fedbr", "--workers", "1", *words]) == 0
    return out / "digits" / "both"


def result_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "compare.json").read_text()))


def test_runs_of_one_folder_are_read_at_what_they_have_in_common_and_the_target_stops_none(compared: Path) -> None:
    result = result_of(compared)
    runs = result["runs"]
    assert [run["rounds"] for run in runs] == [2, 2]
    assert [run["stopped_by"] for run in runs] == ["rounds", "rounds"]
    assert [run["rounds_to_target"] for run in runs] == [1, 1]
    fedavg, fedbr = runs
    assert result["at_common_bytes"]["bytes"] == fedbr["bytes_down"] + fedbr["bytes_up"]
    assert result["at_common_bytes"]["accuracy"]["fedbr"] == fedbr["accuracy"]
    assert result["at_common_seconds"]["seconds"] == fedavg["virtual_seconds"]
    assert result["at_common_seconds"]["accuracy"]["fedavg"] == fedavg["accuracy"]


def test_a_run_id_is_the_name_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "digits", "method=fedavg", "--out", str(tmp_path), "--run-id"]
    for name in ("a/b", ""):
        assert main.run_command([*words, name]) == 2
        assert "must be the name of a folder" in capsys.readouterr().err
    assert main.run_command([*words, "a" * 300]) == 2
    assert "must not be longer than 241 bytes" in capsys.readouterr().err
