"""What ``fedbr check`` says first: costs per round and in all, and whether the run can work here at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scenarios.cli import main
from scenarios.config.load import load
from scenarios.config.overrides import parse_all, parsed
from scenarios.report import check_output
from scenarios.studies.forecast import earlier_runs, run_costs
from tests.scenarios import in_this_process
from tests.scenarios.in_this_process import SMALL
from tests.scenarios.in_this_process import pool_in_this_process as pool_in_this_process

COSTS: dict[str, Any] = {
    "rounds": 40,
    "virtual_seconds_per_round": 1.5,
    "bytes_per_round": [1000.0, 2000.0],
    "wall_seconds_per_round": None,
    "wall_seconds": None,
    "wall_from": None,
    "workers": 2,
    "device": "cpu",
    "disk_nbytes": 1_390_000,
    "coordinator_nbytes": 74_000_000,
    "worker_nbytes": 569_000_000,
}
ESTIMATE: dict[str, Any] = {
    "virtual_seconds": 60.0,
    "bytes": [40_000, 80_000],
    "joules": None,
    "untimed": None,
    "ended_by": None,
    "data": {"found": "here", "warning": None},
    "refused_clients": [],
}


def test_wall_time_is_that_of_measured_rounds_and_otherwise_unknown() -> None:
    assert list(check_output.cost_rows(COSTS, ESTIMATE)) == [
        ("virtual time", "1.5 s", "1 min"),
        ("bytes", "1 kB to 2 kB", "40 kB to 80 kB"),
        ("wall time here", "unknown", "unknown"),
    ]
    notes = list(check_output.cost_notes(COSTS, ESTIMATE))
    assert notes[0] == "wall time: unknown, since no run of this kind is in --out; --measure finds it in a few rounds"
    assert notes[2] == "memory: about 74 MB for the coordinator, and 569 MB for each of 2 workers"
    measured = run_costs.with_pace(COSTS, 0.5, 1)
    assert list(check_output.cost_rows(measured, ESTIMATE))[-1] == ("wall time here", "500 ms", "20 s")
    assert next(check_output.cost_notes(measured, ESTIMATE)) == "wall time: measured just now, with 1 worker on cpu"


@pytest.mark.parametrize(
    ("keep", "copies"), [("newest", 2), ("best", 3), ("every:10", 6), pytest.param((1, 10, 99), 4, id="list")]
)
def test_disk_counts_the_checkpoints_that_are_kept(keep: str | tuple[int, ...], copies: int) -> None:
    assert run_costs.checkpoints_kept(keep, 40) == copies


def test_a_run_that_cannot_work_is_refused_by_key() -> None:
    loaded = load("digits", parsed(["data.clients=5", "rounds.participants=5"]))
    assert list(run_costs.refusals(loaded, ESTIMATE, COSTS)) == []
    small = ESTIMATE | {"refused_clients": [{"clients": 5, "why": "board: too small"}]}
    assert list(run_costs.refusals(loaded, small, COSTS)) == [
        "fleet.devices: none of 5 clients can take part: board: too small"
    ]
    some = ESTIMATE | {"refused_clients": [{"clients": 4, "why": "board: too small"}]}
    assert list(run_costs.refusals(loaded, some, COSTS)) == []
    (large,) = run_costs.refusals(loaded, ESTIMATE, COSTS | {"worker_nbytes": 10**18})
    assert large.startswith("train.batch = 16: the coordinator and one worker need 1000 PB of memory, and this machine")


def test_data_that_cannot_be_had_are_a_reason_and_those_that_may_be_downloaded_are_not() -> None:
    absent = ESTIMATE | {"data": {"found": None, "warning": "data set mnist was not found"}}
    assert list(run_costs.refusals(load("mnist-cnn"), absent, COSTS)) == []
    assert list(run_costs.refusals(load("mnist-cnn", parsed(["data.download=false"])), absent, COSTS)) == [
        "data.name = 'mnist': data set mnist was not found; it is not downloaded: data.download is false"
    ]


def test_an_earlier_run_of_the_same_kind_says_how_long_a_round_takes(tmp_path: Path) -> None:
    folder = in_this_process.run(tmp_path)
    same = load("digits", parse_all(["method=fedavg", *SMALL, "rounds.max=100", "seed=5", "train.lr=0.3"]))
    found = earlier_runs.newest(same, tmp_path, "cpu")
    assert found is not None
    assert (found.folder, found.rounds, found.workers) == (str(folder), 4, 1)
    assert 0 < found.seconds_per_round < 60
    assert (
        earlier_runs.newest(load("digits", parse_all(["method=fedavg", *SMALL, "train.batch=7"])), tmp_path, "cpu")
        is None
    )
    environment = json.loads((folder / "environment.json").read_bytes())
    environment["computes"]["processor"] = "another"
    (folder / "environment.json").write_text(json.dumps(environment))
    assert earlier_runs.newest(same, tmp_path, "cpu") is None
    (folder / "environment.json").write_text("no json")
    assert earlier_runs.newest(same, tmp_path, "cpu") is None


def test_check_ends_with_2_where_data_cannot_be_had_after_it_has_said_all_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("FEDBR_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = ["check", "mnist-cnn", "data.download=false", "--out", str(tmp_path)]
    assert main.run_command([*words, "--json"]) == 2
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["costs"]["bytes_per_round"][0] > 0
    assert result["costs"]["wall_seconds"] is None
    (reason,) = result["refusals"]
    assert captured.err.splitlines()[-1] == f"fedbr: mnist-cnn: {reason}"
