"""A worker on another machine, as far as the network can tell: another namespace, behind a router and a slow link."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from edge.runtime.keys import make
from tests.network.lab import Lab
from tests.network.peer import SERVER

ENDPOINT = "tcp://10.77.0.1:5600"
SCENARIO = ["digits", "method=fedavg", "train.local_epochs=1", "rounds.max=2"]


def test_a_worker_joins_from_another_network_namespace(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    for name in ("run", "alice"):
        make(name, tmp_path)
    fedbr = [sys.executable, "-m", "scenarios.cli.main"]
    run = [*fedbr, "run", *SCENARIO, "--out", str(tmp_path), "--json"]
    remote_access = ["--listen", ENDPOINT, "--keys", str(tmp_path / "run.key"), "--allow", str(tmp_path / "alice.pub")]
    keys = ["--keys", str(tmp_path / "alice.key"), "--server", str(tmp_path / "run.pub")]
    with make_lab(0.03, down=[20e6]) as lab:
        here = lab.start(SERVER, [*run, "--workers", "1"])
        alone, _ = here.communicate(timeout=100)
        worker = lab.start(lab.clients[0], [*fedbr, "worker", "--connect", ENDPOINT, *keys])
        listening = lab.start(SERVER, [*run, *remote_access, "--workers", "0"])
        with_remote_worker, _ = listening.communicate(timeout=100)
        assert worker.wait(timeout=20) == 0
    assert json.loads(with_remote_worker)["model_sha256"] == json.loads(alone)["model_sha256"]
