"""Flower, with its processes already warm; without it these tests are skipped."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from coordinator.workers.launcher import WorkerLauncher, environment
from tests.scenarios.flower.apps import Apps
from tests.scenarios.flower.warm_server_app import starter


@pytest.fixture(scope="session")
def flower() -> None:
    """Skips where Flower is not installed."""
    if find_spec("flwr") is None:
        pytest.skip("needs Flower: pip install 'fedbr-edge[flower]'")


@pytest.fixture(scope="session")
def app_workers(flower: None) -> Iterator[WorkerLauncher]:
    """One fork server for all workers that run a ClientApp."""
    with WorkerLauncher(("edge.flower.client_app", "sklearn.datasets", "sklearn.linear_model")) as launcher:
        yield launcher


@pytest.fixture(scope="session")
def warm_server_app(flower: None) -> Iterator[socket.socket]:
    """A process that others are forked from for each ServerApp."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.scenarios.flower.warm_server_app", str(theirs.fileno())],
            env=environment(),
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    with ours:
        yield ours
    process.wait()


@pytest.fixture
def apps(
    tmp_path: Path, app_workers: WorkerLauncher, warm_server_app: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> Apps:
    """Runs apps."""
    monkeypatch.setattr("scenarios.run.app_run.ChildProcess", starter(warm_server_app))
    return Apps(tmp_path, app_workers)
