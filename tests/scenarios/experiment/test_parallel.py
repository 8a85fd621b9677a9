"""Runs at the same time: who makes which, and what becomes of the others when one of them fails or the user stops."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.records.schema import RoundRow
from coordinator.rounds.run import RoundFinished, RunFailed
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.task import Stopped
from scenarios.config.errors import ScenarioError
from scenarios.config.load import load
from scenarios.experiment import parallel, run_process, run_set
from scenarios.experiment.run_set import PlannedRun, RunSet
from scenarios.run.host import Host
from tests.observers import Listener
from tests.scenarios.runs import never


@pytest.fixture(autouse=True)
def fake_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that make no real run."""
    monkeypatch.setattr(parallel, "RUN_PROCESS", "tests.scenarios.experiment.fake_run_process")


def made(
    out: Path,
    *names: str,
    at_once: int = 2,
    workers: int = 3,
    stopped: Callable[[], bool] = never,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """The result of runs of these names."""
    loaded = load("digits")
    runs = RunSet("sweep", "digits", [PlannedRun(name, loaded, {}) for name in names], "s")
    watch = Listener(on_start=lambda folder, of: tell(f"began {folder.name}"), on_note=tell)
    host = Host(out, workers, "cpu", observers=[watch])

    def about(name: str, has_ended: bool = False) -> None:
        tell(f"{'end of' if has_ended else 'about'} {name}")

    return parallel.make_runs(runs, host, WorkerLauncher(), stopped, at_once, about)


def test_each_process_takes_the_next_run_and_the_workers_are_shared_among_them(tmp_path: Path) -> None:
    told: list[str] = []
    result = made(tmp_path, "a", "b", "c", "d", tell=told.append)
    assert [run["name"] for run in result["runs"]] == ["a", "b", "c", "d"]
    assert len({run["pid"] for run in result["runs"]}) == 2
    assert {"a has 2 workers", "b has 1 workers"} <= set(told)
    assert told.index("about c") + 1 == told.index("began c")
    assert set(result) == {"folder", "runs", "warnings"}


def test_no_more_runs_at_a_time_than_workers(tmp_path: Path) -> None:
    told: list[str] = []
    result = made(tmp_path, "a", "b", "c", at_once=8, workers=1, tell=told.append)
    assert len({run["pid"] for run in result["runs"]}) == 1
    assert told[0] == "1 workers: at most as many runs at a time, not 8"


def test_a_run_that_fails_or_whose_process_is_killed_costs_the_others_nothing(tmp_path: Path) -> None:
    told: list[str] = []
    result = made(tmp_path, "killed", "broken", "a", "killed-too", "b", tell=told.append)
    assert sorted(text for text in told if text.startswith("end of")) == [
        "end of a",
        "end of b",
        "end of broken",
        "end of killed",
        "end of killed-too",
    ]
    assert [run["name"] for run in result["runs"]] == ["a", "b"]
    assert result["failed"] == {
        "killed": "its process was ended by SIGKILL",
        "broken": "ValueError: no such thing",
        "killed-too": "its process was ended by SIGKILL",
    }


def test_in_turn_too_a_run_that_fails_as_none_should_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_run(run: PlannedRun, path: Path, *_: Any) -> dict[str, Any]:
        if run.name == "odd":
            raise KeyError("no such column")
        return {"name": run.name, "run_dir": str(path), "stopped_by": "rounds"}

    monkeypatch.setattr(run_set, "make_run", make_run)
    result = made(tmp_path, "odd", "a", at_once=1)
    assert [run["name"] for run in result["runs"]] == ["a"]
    first, *trace = result["failed"]["odd"].splitlines()
    assert first == "KeyError: 'no such column'"
    assert 'raise KeyError("no such column")' in trace[-1]


def test_in_turn_too_the_users_error_is_raised_only_if_every_run_failed_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_run(run: PlannedRun, path: Path, *_: Any) -> dict[str, Any]:
        if run.name.startswith("wrong"):
            raise ScenarioError(f"no data for {run.name}")
        if run.name == "stopped":
            raise Stopped
        return {"name": run.name, "run_dir": str(path), "stopped_by": "rounds"}

    monkeypatch.setattr(run_set, "make_run", make_run)
    result = made(tmp_path / "one", "wrong", "a", at_once=1)
    assert ([run["name"] for run in result["runs"]], result["failed"]) == (["a"], {"wrong": "no data for wrong"})
    with pytest.raises(ScenarioError, match="no data for wrong-1"):
        made(tmp_path / "all", "wrong-1", "wrong-2", at_once=1)
    with pytest.raises(Stopped):
        made(tmp_path / "none", "stopped", "a", at_once=1)
    assert [list((tmp_path / out / "digits").iterdir()) for out in ("all", "none")] == [[], []]


def test_if_no_run_is_made_the_reason_is_the_users_error_or_the_failures(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="no data for wrong"):
        made(tmp_path, "wrong-1", "wrong-2")
    assert list((tmp_path / "digits").iterdir()) == []
    with pytest.raises(RunFailed, match="broken failed: ValueError: no such thing"):
        made(tmp_path, "wrong", "broken")


def test_when_the_user_stops_the_runs_at_work_end_and_no_other_begins(tmp_path: Path) -> None:
    told: list[str] = []
    result = made(tmp_path, "a", "endless-1", "endless-2", "b", stopped=lambda: len(told) >= 7, tell=told.append)
    assert [run["name"] for run in result["runs"]] == ["a"]
    assert result["missing"] == ["endless-1", "endless-2", "b"]
    with pytest.raises(Stopped):
        made(tmp_path / "none", "endless", "endless-too", "b", stopped=lambda: True)


def test_a_process_ends_when_whoever_asked_is_gone() -> None:
    code = f"from {run_process.__name__} import Commands; import time; Commands(); time.sleep(60)"
    alone = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    assert alone.stdin is not None
    alone.stdin.write(b'{"host": {}}\n')
    alone.stdin.close()  # as the kernel does when the other process is killed
    assert alone.wait(30) == 1


def test_progress_comes_through_whole() -> None:
    row = RoundRow(2, 1.5, 2.25, 5, None, 0.1, 0.3, 7, 8, 9.5, 1e9, 2e9, 3.5, 4.5, 0.0, 0, 0.0, 3, "compute", "ab")
    before = RoundFinished(row, 3, 1_000, 2_000, {1: 2, 4: 3})
    assert parallel.unpacked(json.loads(json.dumps(run_process.packed(before)))) == before
