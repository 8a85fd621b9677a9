"""Whole runs on a GPU: one seed, one result, for any number of workers and after an interruption."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from coordinator.records.store import read
from coordinator.rounds.run import RoundFinished
from coordinator.workers.launcher import WorkerLauncher
from scenarios.config.load import load
from scenarios.config.overrides import parse_all, parsed
from scenarios.run import runner
from scenarios.run.host import Host
from tests.observers import Listener
from tests.scenarios.runs import never, opened

METHODS = {
    "fedavg": (),
    "scaffold with graphs": ("method=scaffold", "train.graphs=true"),
    "fedmlb in a sweep": ("method=fedmlb", "train.pathways=sweep", "train.precision=bf16"),
    "fedbr with graphs": ("method=fedbr", "train.graphs=true"),
}


def finished(out: Path, launcher: WorkerLauncher, scenario: str, gpu: str, workers: int, *more: str) -> dict[str, Any]:
    loaded = load(scenario, parse_all(list(more)))
    return dict(runner.run(loaded, Host(out, workers, gpu), launcher, never, stop_at_target=False))


@pytest.mark.parametrize("name", METHODS)
def test_the_number_of_workers_on_a_gpu_does_not_matter(
    gpu: str, scenario: str, tmp_path: Path, launcher: WorkerLauncher, name: str
) -> None:
    one, three = (finished(tmp_path, launcher, scenario, gpu, count, *METHODS[name]) for count in (1, 3))
    assert one["rounds"] == three["rounds"] == 3
    assert one["model_sha256"] == three["model_sha256"]


def test_a_run_on_a_gpu_resumes_after_its_first_round(
    gpu: str, scenario: str, tmp_path: Path, launcher: WorkerLauncher
) -> None:
    whole = finished(tmp_path, launcher, scenario, gpu, 2, "method=fedbr")
    rounds: list[RoundFinished] = []
    host = Host(tmp_path, 2, gpu, observers=[Listener(on_round=rounds.append)])
    cut = runner.run(
        load(scenario, parsed(["method=fedbr"])), host, launcher, lambda: bool(rounds), stop_at_target=False
    )
    assert cut["rounds"] == 1
    folder = Path(cut["run_dir"])
    loaded, device = opened(folder)
    resumed = runner.resume(loaded, Host(folder.parent, 1, device), folder, launcher, never)
    assert (device, resumed["rounds"], resumed["model_sha256"]) == (gpu, 3, whole["model_sha256"])


def test_each_worker_tells_what_its_first_visit_took(
    gpu: str, scenario: str, tmp_path: Path, launcher: WorkerLauncher
) -> None:
    folder = Path(finished(tmp_path, launcher, scenario, gpu, 2)["run_dir"])
    rows = read(folder / "ledger.sqlite", "SELECT detail FROM host_events WHERE kind = 'worker_memory' ORDER BY detail")
    told = [re.fullmatch(r"worker ([0-9]) on (.*): [0-9]+ MiB reserved, (.*)", row["detail"]) for row in rows]
    assert told, "no worker told"
    for line in told:
        assert line is not None
        assert line[2] == gpu
        assert line[3].endswith("share 0.50")
