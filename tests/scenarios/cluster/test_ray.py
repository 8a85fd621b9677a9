"""Runs and sweeps on a real Ray cluster of three nodes on this host, which it loses bit by bit."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

import fedbr
from coordinator.records.store import has_rounds, read
from coordinator.workers.launcher import WorkerLauncher
from tests.scenarios.runs import fedbr as command
from tests.scenarios.runs import run_with

TINY = ("method=fedavg", "train.local_epochs=1", "stop.target_accuracy=1.0")
PRIVATE = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # loopback alone
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
}
PATIENCE_SECONDS = 150.0
pytestmark = pytest.mark.timeout(400)  # Ray itself takes some five seconds per node, and more on a busy machine


@dataclass
class Nodes:
    """A cluster in a process of its own, `tests.scenarios.cluster.ray_nodes`."""

    process: subprocess.Popen[str]
    address: str
    pids: list[list[int]]
    environment: dict[str, str]

    def add(self) -> None:
        """A node joins."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("add\n")
        self.process.stdin.flush()
        self.pids.append(json.loads(self.process.stdout.readline()))

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A command on it."""
        return subprocess.Popen(
            command(*words, "--on", self.address, "--quiet"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    environment = {**os.environ, **PRIVATE, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    words = [sys.executable, "-m", "tests.scenarios.cluster.ray_nodes", "3"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        there = json.loads(process.stdout.readline())
        yield Nodes(process, there["address"], there["nodes"], environment)


def until(is_so: Callable[[], bool], run: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def joined(folder: Path) -> list[str]:
    """What is recorded of each agent that has joined."""
    with suppress(Exception):
        rows = read(folder / "ledger.sqlite", "SELECT detail FROM host_events WHERE kind = 'worker_joined'")
        return [row["detail"] for row in rows]
    return []


def models(folder: Path) -> list[str]:
    """The hashes of the models of all rounds."""
    if not has_rounds(folder / "ledger.sqlite"):
        return []
    rows = read(folder / "ledger.sqlite", "SELECT model_sha256 FROM rounds ORDER BY round")
    return [row["model_sha256"] for row in rows]


def agents_of(raylet: int) -> list[psutil.Process]:
    """The processes of the agent that was placed on a node: they outlive the node's own, and have its number."""
    supervisors = [one for one in psutil.process_iter() if "scenarios.cluster.supervisor" in command_line(one)]
    return [one for one in supervisors if environment_of(one).get("RAY_RAYLET_PID") == str(raylet)]


def command_line(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def environment_of(process: psutil.Process) -> dict[str, str]:
    with suppress(psutil.Error):
        return process.environ()
    return {}


def kill(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_sweep_on_a_cluster_has_the_results_of_one_here(
    nodes: Nodes, tmp_path: Path, trainers: WorkerLauncher
) -> None:
    words = ["sweep", "digits", *TINY, "rounds.max=2", "train.lr=0.05,0.1", "--seeds", "1", "--out", str(tmp_path)]
    with nodes.start(*words, "--json", "--run-id", "spread") as sweep:
        out, errors = sweep.communicate()
    assert (sweep.returncode, errors) == (0, "")
    folders = [Path(run["run_dir"]) for run in json.loads(out)["runs"]]
    assert [folder.parent for folder in folders] == [tmp_path / "digits" / "spread"] * 2
    assert list(folders[0].parent.glob(".*")) == []  # no sign by which nodes recognize the folder
    here = run_with(tmp_path, trainers, 1, *TINY, "rounds.max=2", "train.lr=0.05")
    assert models(folders[0]) == models(Path(here["run_dir"]))


def test_nodes_join_a_run_and_are_lost_with_the_head_and_change_nothing(
    nodes: Nodes, tmp_path: Path, trainers: WorkerLauncher
) -> None:
    folder = tmp_path / "digits" / "on-nodes"
    words = ["run", "digits", *TINY, "rounds.max=100000", "--out", str(tmp_path), "--run-id", "on-nodes"]
    with nodes.start(*words) as run:
        until(lambda: len(joined(folder)) == 3, run)
        nodes.add()
        until(lambda: len(joined(folder)) == 4, run)
        (lost,) = agents_of(nodes.pids[1][0])
        keepers = psutil.Process(nodes.pids[1][0]).children(recursive=True)
        kill([*nodes.pids[1], *[one.pid for one in [*keepers, *lost.children(recursive=True), lost]]])
        beside = [agent for node in (nodes.pids[0], *nodes.pids[2:]) for agent in agents_of(node[0])]
        at_loss = len(models(folder))
        until(lambda: len(models(folder)) >= at_loss + 5, run)
        kill(nodes.pids[0])
        at_loss = len(models(folder))
        until(lambda: len(models(folder)) >= at_loss + 5, run)
        run.send_signal(signal.SIGINT)
        _, errors = run.communicate()
    assert run.returncode == 4
    assert errors.count("\n") == errors.count("fedbr: note: ")
    assert f"the cluster at {nodes.address} has 3 nodes, 3 cores" in errors
    assert "aggregate.sum=client_order" in errors
    assert all(re.search(r"key \S{40}, node 127\.0\.0\.1( \([0-9a-f]{6}\))?$", one) for one in joined(folder))
    deadline = time.monotonic() + 30
    while any(agent.is_running() for agent in beside) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [agent for agent in beside if agent.is_running()] == []  # though none of their cluster told them to end
    done = models(folder)
    alone = run_with(tmp_path, trainers, 2, *TINY, "aggregate.sum=fixed_point", f"rounds.max={len(done)}")
    assert models(Path(alone["run_dir"])) == done


def test_a_python_call_starts_a_cluster_of_its_own_and_leaves_no_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = psutil.Process().children(recursive=True)
    overrides = dict(item.split("=") for item in TINY)
    done = fedbr.run("digits", out=tmp_path, workers=1, on="ray", **{"rounds.max": 1, **overrides})
    assert set(psutil.Process().children(recursive=True)) <= set(before)
    assert joined(done.folder)[0].endswith(", node 127.0.0.1")
    assert "on = ray: the cluster at 127.0.0.1:" in capsys.readouterr().err
