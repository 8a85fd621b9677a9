"""An address of a cluster at which nobody listens, and an agent's wait for a run, are told soon."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.cluster.ray_engine import RayEngine
from scenarios.config.errors import ScenarioError
from tests.scenarios.runs import refused


def test_a_port_at_which_nobody_listens_is_named_before_ray_tries_it_for_minutes() -> None:
    notes: list[str] = []
    engine = RayEngine("ray://127.0.0.1:1")
    engine.on_note = notes.append
    why = "--on ray://127.0.0.1:1: no cluster is at 127.0.0.1:1: Connection refused; `ray start --head` starts one"
    with pytest.raises(ScenarioError, match=why), engine:
        pass
    assert notes == ["Ray cluster ray://127.0.0.1:1: connecting, for 120 s at most"]


def test_a_ray_address_for_which_ray_would_start_a_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    why = "^--on auto: RAY_ADDRESS = local: must be HOST:PORT or ray://HOST:PORT$"
    with pytest.raises(ScenarioError, match=why), RayEngine("auto"):
        pass


NO_CLUSTERS = """
import os, socket
from concurrent.futures import ThreadPoolExecutor
import grpc
from scenarios.cluster import ray_reach

ray_reach.PROTOCOL_SECONDS = 0.5
silent, other = socket.create_server(("127.0.0.1", 0)), grpc.server(ThreadPoolExecutor(1))
port = other.add_insecure_port("127.0.0.1:0")
other.start()
for address in (f"127.0.0.1:{silent.getsockname()[1]}", f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}", "127.0.0.1:1"):
    try:
        ray_reach.check_reachable(address)
    except ConnectionError as error:
        print(str(error).replace(address.removeprefix("ray://"), "PLACE"), flush=True)
os._exit(0)  # Ray's threads would look for the cluster for a minute
"""


def test_what_listens_at_an_address_and_is_no_ray_cluster_is_told_within_seconds() -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment = plain | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # for Ray to leave addresses of loopback alone
    words = [sys.executable, "-c", NO_CLUSTERS]
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.splitlines() == [
        "at PLACE is something else than a Ray cluster, or a stuck one: it has not answered within 0.5 s",
        "at PLACE is no head of a Ray cluster: Method not found!; its port for clients would be ray://PLACE",
        "at PLACE is no port for clients of a Ray cluster: as a rule it is 10001; the head's own port is named without "
        "ray://",
        "no cluster is at PLACE: Connection refused; `ray start --head` starts one",
    ]


@pytest.mark.parametrize("words", [("sweep", "digits", "seed=1,2"), ("compare", "digits")])
def test_every_command_that_makes_several_runs_has_them_made_on_a_cluster(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = (*words, "--out", str(tmp_path), "--on", "slurm", "--quiet")
    assert refused(capsys, *command) == "--on slurm: must be ray, auto, HOST:PORT or ray://HOST:PORT"
