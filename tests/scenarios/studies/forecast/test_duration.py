"""How long a study takes on this machine, by its pace in earlier runs, and studies in pieces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scenarios.cli import main
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run.host import Piece
from scenarios.studies.forecast import duration
from scenarios.studies.forecast.duration import rounds_needed
from scenarios.studies.forecast.pace import (
    MeasuredRound,
    Pace,
    RoundWork,
    busiest,
    earlier_run,
    read_rounds,
    seconds_per_round,
)
from tests.scenarios import in_this_process
from tests.scenarios.in_this_process import SMALL
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


def test_the_worker_with_most_to_do_takes_the_longest_visits_as_it_comes_free() -> None:
    assert busiest([1.0] * 5, 2) == 3.0
    assert busiest([3.0, 5.0, 4.0, 3.0], 2) == 8.0  # 5 and 4 first, then 3 on 4, then 3 on 5
    assert busiest([3.0, 5.0], 4) == 5.0


def test_rounds_with_and_without_an_evaluation_give_the_pace_of_both() -> None:
    # Three visits of 10 FLOPs keep one of two workers busy for 20: 3 s without, 5 s with an evaluation of 4 FLOPs.
    visits = [10.0, 10.0, 10.0]
    rounds = [MeasuredRound(3.0, False, visits), MeasuredRound(5.0, True, visits)]
    pace = Pace.of(rounds, 2, 4.0)

    assert seconds_per_round(rounds) == 4.0
    assert [pace.training, pace.evaluation] == pytest.approx([0.15, 0.5])
    # Typical rounds of 40 and 20 FLOPs: 4.5 s; every second one is evaluated, with 8 FLOPs: 4 s / 2.
    work = RoundWork([[10.0] * 7, [20.0]], 8.0, 2)
    assert Pace(0.15, 0.5).round_seconds(work, 2) == pytest.approx(4.5 + 2.0)


def test_an_earlier_run_of_the_same_kind_says_how_long_a_round_takes(tmp_path: Path) -> None:
    folder = in_this_process.run(tmp_path)
    rounds = read_rounds(folder, with_flops=True)
    assert [(each.is_evaluated, len(each.flops)) for each in rounds] == [(True, 5)] * 4
    same = load("digits", parse_all(["method=fedavg", *SMALL, "rounds.max=100", "seed=5", "train.lr=0.3"]))
    found = earlier_run(same, tmp_path, "cpu")
    assert found is not None
    assert (found.folder, found.rounds, found.workers) == (folder, 4, 1)
    assert found.seconds_per_round == seconds_per_round(rounds)
    assert 0 < found.seconds_per_round < 60
    assert earlier_run(load("digits", parse_all(["method=fedavg", *SMALL, "train.batch=7"])), tmp_path, "cpu") is None
    environment = json.loads((folder / "environment.json").read_bytes())
    environment["computes"]["processor"] = "another"
    (folder / "environment.json").write_text(json.dumps(environment))
    assert earlier_run(same, tmp_path, "cpu") is None
    (folder / "environment.json").write_text("no json")
    assert earlier_run(same, tmp_path, "cpu") is None
