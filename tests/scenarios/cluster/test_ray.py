"""Runs and sweeps on a real Ray cluster of three nodes on this host, which it loses bit by bit.

The shortest test, of a cluster of one node, is the only one that is not marked as long.
"""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import fedbr
from coordinator.records.store import has_rounds, read
from coordinator.workers.launcher import WorkerLauncher
from tests.scenarios.cluster.ray_nodes import RayNodes, kill, ray_nodes
from tests.scenarios.runs import fedbr as command
from tests.scenarios.runs import run_with

TINY = ("method=fedavg", "train.local_epochs=1", "stop.target_accuracy=1.0")
PATIENCE_SECONDS = 150.0
pytestmark = pytest.mark.timeout(400)  # Ray itself takes some five seconds per node, and more on a busy machine


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes(3) as nodes:
        yield nodes


def start(nodes: RayNodes, *words: str) -> subprocess.Popen[str]:
    """A command on the cluster."""
    words = (*words, "--on", nodes.address, "--quiet")
    return subprocess.Popen(
        command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=nodes.environment
    )


def until(is_so: Callable[[], bool], run: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def joined(folder: Path) -> list[str]:
    """What is recorded of each agent that has joined."""
    with suppress(sqlite3.OperationalError):  # there is no ledger yet
        rows = read(folder / "ledger.sqlite", "SELECT detail FROM host_events WHERE kind = 'worker_joined'")
        return [row["detail"] for row in rows]
    return []


def models(folder: Path) -> list[str]:
    """The hashes of the models of all rounds."""
    if not has_rounds(folder / "ledger.sqlite"):
        return []
    rows = read(folder / "ledger.sqlite", "SELECT model_sha256 FROM rounds ORDER BY round")
    return [str(row["model_sha256"]) for row in rows]


@pytest.mark.long
def test_a_cluster_of_somebody_else_is_told_by_its_token_at_once(nodes: RayNodes, tmp_path: Path) -> None:
    environment = {name: value for name, value in nodes.environment.items() if not name.startswith("RAY_AUTH_")}
    words = command("run", "digits", "--on", nodes.address, "--quiet", "--out", str(tmp_path))
    done = subprocess.run(words, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    why = (
        "InvalidAuthToken: Authentication token is missing or incorrect; RAY_AUTH_MODE=token and RAY_AUTH_TOKEN give it"
    )
    refusal = f"fedbr: --on {nodes.address}: the cluster at {nodes.address} refuses: {why}"
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, refusal)


@pytest.mark.long
def test_a_sweep_on_a_cluster_has_the_results_of_one_here(
    nodes: RayNodes, tmp_path: Path, launcher: WorkerLauncher
) -> None:
    words = ["sweep", "digits", *TINY, "rounds.max=2", "train.lr=0.05,0.1", "--seeds", "1", "--out", str(tmp_path)]
    with start(nodes, *words, "--json", "--run-id", "spread") as sweep:
        out, errors = sweep.communicate()
    assert (sweep.returncode, errors) == (0, "")
    folders = [Path(run["run_dir"]) for run in json.loads(out)["runs"]]
    assert [folder.parent for folder in folders] == [tmp_path / "digits" / "spread"] * 2
    assert list((tmp_path / "digits").rglob(".*")) == []  # no sign by which nodes recognize the folder
    here = run_with(tmp_path, launcher, 1, *TINY, "rounds.max=2", "train.lr=0.05")
    assert models(folders[0]) == models(Path(here["run_dir"]))


@pytest.mark.long
def test_nodes_join_a_run_and_are_lost_with_the_head_and_change_nothing(
    nodes: RayNodes, tmp_path: Path, launcher: WorkerLauncher
) -> None:
    folder = tmp_path / "digits" / "on-nodes"
    words = ["run", "digits", *TINY, "rounds.max=100000", "--out", str(tmp_path), "--run-id", "on-nodes"]
    with start(nodes, *words) as run:
        until(lambda: len(joined(folder)) == 3, run)
        nodes.add()
        until(lambda: len(joined(folder)) == 4, run)
        assert len(nodes.agents(1)) == 1
        nodes.kill(1)
        beside = [agent for node in (0, 2, 3) for agent in nodes.agents(node)]
        at_loss = len(models(folder))
        until(lambda: len(models(folder)) >= at_loss + 5, run)
        kill(nodes.pids[0])  # the head, not its agent
        at_loss = len(models(folder))
        until(lambda: len(models(folder)) >= at_loss + 5, run)
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate()
    assert run.returncode == 4
    assert errors.count("\n") == errors.count("fedbr: note: ")
    assert f"the cluster at {nodes.address} has 3 nodes, 3 cores" in errors
    assert "aggregate.sum=fixed_point" in errors
    assert all(re.search(r"key \S{40}, node 127\.0\.0\.1( \([0-9a-f]{6}\))?$", one) for one in joined(folder))
    deadline = time.monotonic() + 30
    while any(agent.is_running() for agent in beside) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [agent for agent in beside if agent.is_running()] == []  # though none of their cluster told them to end
    done = models(folder)
    alone = run_with(tmp_path, launcher, 2, *TINY, f"rounds.max={len(done)}")
    assert models(Path(alone["run_dir"])) == done


@pytest.mark.long
def test_a_python_call_starts_a_cluster_of_its_own_and_leaves_no_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = psutil.Process().children(recursive=True)
    short = {"extends": "digits", "method": "fedavg", "rounds": {"max": 1}, "train": {"local_epochs": 1}}
    done = fedbr.run(short, out=tmp_path, workers=1, on="ray")
    assert set(psutil.Process().children(recursive=True)) <= set(before)
    assert joined(done.folder)[0].endswith(", node 127.0.0.1")
    assert "Ray cluster ray: the cluster at 127.0.0.1:" in capsys.readouterr().err
