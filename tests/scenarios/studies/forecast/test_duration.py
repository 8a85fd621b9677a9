"""How long a study takes on this machine, and studies in pieces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.records.store import read
from coordinator.workers.launcher import WorkerLauncher
from scenarios.cli import main
from scenarios.experiment.grid import grid_of
from scenarios.papers import reproduce
from scenarios.report import html
from scenarios.report.run_reader import open_runs
from scenarios.run.host import Host, Piece
from scenarios.run.setup import Setup
from scenarios.studies.forecast import duration
from scenarios.studies.forecast.duration import rounds_needed
from scenarios.studies.forecast.forecast import PlayedRounds
from scenarios.studies.forecast.profiles import Profiles
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process
from tests.scenarios.runs import never

# --- arithmetic -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("needs", "rounds"),
    [
        ({"time": 900.0}, 56),
        ({"time": 900.0, "bytes": 60.5e9}, 61),
        ({"rounds": 1000.0}, 500),
        ({"rounds": 12.0}, 12),
        ({"accuracy": 0.5, "rounds": 12.0}, 500),
        ({}, 500),
        ({"nominal": 1.0}, 500),
    ],
)
def test_a_run_needs_as_many_rounds_as_its_last_budget_and_all_of_them_for_an_accuracy(
    needs: dict[str, float], rounds: int
) -> None:
    spent = {"time": 16.2, "bytes": 1e9, "rounds": 1.0, "nominal": 0.0}
    assert rounds_needed(needs, 500, spent) == rounds


# --- measuring --------------------------------------------------------------------------------------------------------


def test_a_short_run_has_whole_rounds_unless_they_are_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = reproduce.plan("fedbr:fig3", "tiny", grid_of("fedbr:fig3", ["row=FedAvg", "panel=a"]), 1).run_set.runs
    host = Host(tmp_path, 2, "cpu")
    profile = Profiles("cpu", WorkerLauncher(), never).of(run.loaded)
    played = PlayedRounds(Setup.of(run.loaded, profile))
    setup, work = played.setup, duration.round_work(played)

    assert duration.expected_rounds(run, played) == 5  # until 4 virtual seconds are over
    whole = duration.short_scenario(setup, work, host).scenario
    assert (whole.train, whole.rounds.participants, whole.eval.subset) == (setup.scenario.train, 5, None)
    monkeypatch.setitem(duration.LONG_FLOPS, "cpu", 1.0)
    cut = duration.short_scenario(setup, work, host).scenario
    assert (cut.train.local_steps, cut.rounds.participants, cut.eval.subset, cut.eval.batch) == (2, 2, 100, 50)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Four measured rounds are enough."""
    monkeypatch.setattr(duration, "ENOUGH_SECONDS", 0.0)
    yield


def test_an_estimate_names_each_run_and_runs_nothing_of_the_study(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reproduce", "fedbr:fig3", "row=FedAvg,FedBR", "panel=a", "--out", str(tmp_path), "--workers", "2"]
    words += ["train.local_steps=2", "eval.subset=50", "rounds.max=6"]

    assert main.run_command([*words, "--estimate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    runs = found["estimate"]["runs"]
    assert [run["name"] for run in runs] == ["cifar10-fedavg-seed0", "cifar10-fedbr-seed0"]
    assert [run["rounds"] for run in runs] == [6, 6]
    assert all(run["seconds_per_round"] > 0 for run in runs)
    assert found["estimated_seconds"] == pytest.approx(sum(run["rounds"] * run["seconds_per_round"] for run in runs))
    assert list(tmp_path.iterdir()) == []


# --- pieces -----------------------------------------------------------------------------------------------------------


def test_a_piece_is_over_at_the_end_of_the_first_round_after_its_time() -> None:
    now = [100.0]
    piece = Piece(7200.0, never, lambda: now[0])
    progress: Any = object()

    assert not piece.on_round(progress)
    now[0] = 7300.0
    assert not piece()
    assert piece.on_round(progress)
    assert piece()
    assert piece.stopped_by() == "time_limit"
    assert Piece(None, lambda: True)()


def test_a_piece_without_a_unit_is_refused_before_the_duration_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(duration, "forecast")
    words = ["reproduce", "fedmlb:2", "--scale", "paper", "row=FedAvg", "setting=cifar100-dir0.3-100"]
    assert main.run_command([*words, "--for", "2", "--out", str(tmp_path)]) == 2
    assert "--for: '2' is a duration without a unit" in capsys.readouterr().err


def chains(folder: Path) -> list[str]:
    return [
        read(path, "SELECT chain FROM rounds ORDER BY round DESC LIMIT 1")[0]["chain"]
        for path in sorted(folder.glob("*/ledger.sqlite"))
    ]


def test_a_comparison_in_pieces_ends_as_one_that_was_made_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "build", lambda runs, page, *_: page)  # reports take seconds
    words = ["compare", "digits", "method=fedavg,fedprox", "--json", "--workers", "1", "--out", str(tmp_path)]
    words += ["rounds.max=2", "train.local_steps=2"]
    assert main.run_command([*words, "--run-id", "whole"]) == 0
    capsys.readouterr()

    codes, rests, ends = [], [], []
    for _ in range(4):
        codes.append(main.run_command([*words, "--run-id", "pieces", "--for", "1 us"]))
        result = json.loads(capsys.readouterr().out)
        rests.append(result.get("left", {}))
        ends.append([run["stopped_by"] for run in result["runs"]])

    # The last round of a run ends it, so a piece that makes it stops before the next run.
    assert codes == [4, 4, 4, 0]
    assert [rest.get("rounds_done") for rest in rests] == [1, 2, 3, None]
    assert [rest.get("runs_ended") for rest in rests] == [0, 1, 1, None]
    # A run that Ctrl-C stops has "user".
    assert ends == [["time_limit"], ["rounds"], ["rounds", "time_limit"], ["rounds", "rounds"]]
    assert rests[0]["rounds_left"] == 3
    assert rests[0]["seconds_left"] > 0
    assert chains(tmp_path / "digits" / "pieces") == chains(tmp_path / "digits" / "whole")
    assert main.run_command(["run", "digits", "--for", "1 us", *words[3:], "--run-id", "one"]) == 4
    piece = json.loads(capsys.readouterr().out)
    assert (piece["rounds"], piece["stopped_by"]) == (1, "time_limit")
    assert open_runs([tmp_path / "digits" / "one"])[0].stopped_by() == "stopped at its time limit"
    assert main.run_command(["resume", str(tmp_path / "digits" / "one"), "--workers", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["stopped_by"] == "rounds"
