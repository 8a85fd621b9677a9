"""Executors of runs: the same results and failures in turn, in processes and on a cluster, whoever stops or dies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.records.schema import RoundRow
from coordinator.rounds.run import RoundFinished, RunFailed
from coordinator.workers.launcher import WorkerLauncher, environment
from coordinator.workers.task import Stopped
from scenarios.cluster import ray_engine
from scenarios.cluster.ray_engine import RayRuns
from scenarios.config.errors import ScenarioError
from scenarios.config.load import load, load_resolved
from scenarios.config.overrides import parse_all
from scenarios.config.toml_source import shipped
from scenarios.experiment import executors, run_process
from scenarios.experiment.executors import (
    AtOnce,
    InTurn,
    RunExecutor,
    RunPlaces,
    RunProcesses,
    make_runs,
)
from scenarios.experiment.run_set import PlannedRun, RunSet
from scenarios.run.child_process import ChildProcess
from scenarios.run.host import Host
from tests.crossed import every
from tests.observers import Listener
from tests.scenarios.experiment import fake_runs
from tests.scenarios.runs import QUICK, never

IN_TURN, PROCESSES, CLUSTER = "in turn", "processes", "cluster"
Chosen = Callable[[str], RunExecutor]


@pytest.fixture(scope="module")
def fakes() -> Iterator[RayRuns]:
    """A cluster of two nodes without Ray, whose runs train nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_engine, "DRIVER", "tests.scenarios.cluster.fake_ray_driver")
        patch.setenv("FAKE_RUN_PROCESS", fake_runs.__name__)
        with RayRuns("auto", 1, None, lambda note: None) as cluster:
            yield cluster


@pytest.fixture
def choose(fakes: RayRuns, monkeypatch: pytest.MonkeyPatch) -> Chosen:
    """Executors by their kinds, whose runs train nothing; those that make runs at the same time have two places."""
    monkeypatch.setattr(executors, "make_run", fake_runs.make_run)
    monkeypatch.setattr(executors, "RUN_PROCESS", fake_runs.__name__)
    places: dict[str, RunPlaces] = {PROCESSES: RunProcesses(2), CLUSTER: fakes}
    return lambda kind: AtOnce(places[kind]) if kind in places else InTurn(WorkerLauncher())


def made(
    executor: RunExecutor,
    out: Path,
    *names: str,
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

    return make_runs(runs, host, executor, stopped, about)


@pytest.mark.parametrize(
    ("kind", "processes", "workers"), every(2, [(IN_TURN, 1, [3, 3, 3, 3]), (PROCESSES, 2, [2, 1])])
)
def test_results_are_in_the_order_of_the_plan_whoever_makes_the_runs(
    kind: str, processes: int, workers: list[int], tmp_path: Path, choose: Chosen
) -> None:
    events: list[str] = []
    result = made(choose(kind), tmp_path, "a", "b", "c", "d", tell=events.append)
    folder = tmp_path / "digits" / "s"
    assert [run["name"] for run in result["runs"]] == ["a", "b", "c", "d"]
    assert [run["run_dir"] for run in result["runs"]] == [str(folder / name) for name in "abcd"]
    assert len({run["pid"] for run in result["runs"]}) == processes
    assert {f"{name} has {count} workers" for name, count in zip("abcd", workers, strict=False)} <= set(events)
    for name in "abcd":
        about, began, end = (events.index(f"{event} {name}") for event in ("about", "began", "end of"))
        assert about < began < end
    assert set(result) == {"folder", "runs", "warnings"}


def folders(out: Path) -> list[str]:
    """The folders of run sets; a cluster's sign in ``digits`` is there as long as it is connected."""
    return [path.name for path in (out / "digits").iterdir() if not path.name.startswith(".seen-")]


KILLED = "its process was ended by SIGKILL"


@pytest.mark.parametrize(
    ("kind", "failures"),
    every(
        2,
        [
            (IN_TURN, {}),
            (PROCESSES, {"killed": KILLED, "killed-too": KILLED}),
            (CLUSTER, {"killed": KILLED, "doomed": "its node was lost: The actor died unexpectedly"}),
        ],
        first=1,
    ),
)
def test_a_run_that_fails_or_whose_process_is_killed_costs_the_others_nothing(
    kind: str, failures: dict[str, str], tmp_path: Path, choose: Chosen
) -> None:
    events: list[str] = []
    result = made(choose(kind), tmp_path, *failures, "broken", "a", "wrong", "lost", "b", tell=events.append)
    assert [run["name"] for run in result["runs"]] == ["a", "lost", "b"]
    first, *trace = result["failed"].pop("broken").splitlines()
    assert first == "KeyError: 'no such column'"
    assert 'raise KeyError("no such column")' in trace[-1]
    assert result["failed"] == {**failures, "wrong": "no data for wrong"}
    ended = sorted(event.removeprefix("end of ") for event in events if event.startswith("end of"))
    assert ended == sorted([*failures, "a", "b", "broken", "lost", "wrong"])


def test_if_no_run_is_made_the_reason_is_the_users_error_or_the_failures(tmp_path: Path, choose: Chosen) -> None:
    with pytest.raises(ScenarioError, match="no data for wrong"):
        made(choose(IN_TURN), tmp_path, "wrong-1", "wrong-2")
    assert folders(tmp_path) == []
    with pytest.raises(RunFailed, match="broken failed: KeyError: 'no such column'"):
        made(choose(IN_TURN), tmp_path, "wrong", "broken")


@pytest.mark.parametrize(("kind", "at_work"), every(2, [(IN_TURN, 1), (PROCESSES, 2)]))
def test_when_the_user_stops_the_runs_at_work_end_and_no_other_begins(
    kind: str, at_work: int, tmp_path: Path, choose: Chosen
) -> None:
    events: list[str] = []

    def stopped() -> bool:
        return sum(event.startswith("began endless") for event in events) == at_work

    result = made(choose(kind), tmp_path, "a", "endless-1", "endless-2", "b", stopped=stopped, tell=events.append)
    assert [run["name"] for run in result["runs"]] == ["a"]
    assert result["missing"] == ["endless-1", "endless-2", "b"]
    with pytest.raises(Stopped):
        made(choose(kind), tmp_path / "none", "endless", "endless-too", "b", stopped=lambda: True)
    assert folders(tmp_path / "none") == []


def test_a_run_that_is_interrupted_goes_on_to_the_same_result(
    tmp_path: Path, launcher: WorkerLauncher, whole: dict[str, Any]
) -> None:
    rounds: list[int] = []
    watch = Listener(on_round=lambda progress: rounds.append(progress.rounds))
    host = Host(tmp_path, 2, "cpu", observers=[watch])
    interrupted = make_runs(tiny_run(), host, InTurn(launcher), lambda: bool(rounds))
    assert (interrupted["runs"][0]["stopped_by"], rounds) == ("user", [1])
    again = make_runs(tiny_run(), host, InTurn(launcher), never)
    assert rounds == [1, 2, 3, 4, 5]
    assert again["runs"][0] | DIFFERS == whole | DIFFERS


DIFFERS = {"run_dir": "", "wall_seconds": 0.0}


def tiny_run() -> RunSet:
    """One run of five rounds."""
    loaded = load("digits", parse_all([*QUICK, "rounds.max=5", "data.clients=6", "method=fedavg"]))
    return RunSet("sweep", "digits", [PlannedRun("one", loaded, {})], "s")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, launcher: WorkerLauncher) -> dict[str, Any]:
    """The summary of `tiny_run` that nobody disturbs."""
    host = Host(tmp_path_factory.mktemp("whole"), 2, "cpu")
    return dict(make_runs(tiny_run(), host, InTurn(launcher), never)["runs"][0])


def test_a_run_process_ends_when_whoever_asked_is_gone() -> None:
    process = ChildProcess(run_process.__name__, env=environment())
    process.channel.close()  # as the kernel does when the other process is killed
    assert process.end(30) == 1


def test_progress_comes_through_whole() -> None:
    row = RoundRow(2, 1.5, 2.25, 5, None, 0.1, 0.3, 7, 8, 9.5, 1e9, 2e9, 3.5, 4.5, 0.0, 0, 0.0, 3, "compute", "ab")
    before = RoundFinished(row, 3, 1_000, 2_000, {1: 2, 4: 3}, {"drift": 0.5, "spread": None})
    assert executors.round_finished(json.loads(json.dumps(executors.round_message(before)))) == before


@pytest.mark.parametrize("name", shipped())
def test_a_run_process_has_the_scenario_of_the_plan(name: str, tmp_path: Path) -> None:
    planned = load(name)
    request = executors.run_request(PlannedRun("one", planned, {}), tmp_path, Host(tmp_path, 1, "cpu"), 1)
    received = json.loads(json.dumps(request))
    loaded = load_resolved(received["scenario_name"], received["scenario"])
    assert (loaded.name, loaded.scenario, loaded.options) == (planned.name, planned.scenario, planned.options)
