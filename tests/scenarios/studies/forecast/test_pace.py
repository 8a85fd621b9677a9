"""The pace of this machine, read from run folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scenarios.config.load import load
from scenarios.config.overrides import parse_all
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
