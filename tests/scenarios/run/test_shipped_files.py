"""A worker on a machine that has nothing but the product: data, partition and the user's modules come from the run."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from coordinator.records.schema import HostEvent
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.sockets import RemoteAccess
from edge.protocol.config import DataConfig, PartitionConfig
from edge.runtime.keys import make, read_pair, read_public
from scenarios.config.errors import ScenarioError
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run import runner
from scenarios.run.host import Host
from scenarios.run.run_folder import RunFolder
from tests import warm
from tests.edge.data.made_up import png, write
from tests.edge.protocol.mutations import JOB
from tests.observers import Listener
from tests.scenarios.runs import never

PACKAGE = {
    "__init__.py": "",
    "method.py": (
        "from dataclasses import replace\n"
        "from coordinator.methods.fedavg import SPEC as FEDAVG\n"
        "SPEC = replace(FEDAVG, name='halved', client='lent_package.client:HalvedLoss')\n"
    ),
    "client.py": (
        "from edge.training.client_update import ClientUpdate\n"
        "from lent_package.factor import FACTOR\n"
        "class HalvedLoss(ClientUpdate):\n"
        "    def loss(self, net, x, y):\n"
        "        return FACTOR * super().loss(net, x, y)\n"
    ),
    "factor.py": "FACTOR = 0.5\n",
    "images.py": (
        "from edge.data.registry import DataSet\n"
        "ROW = DataSet('lent-images', 'Grey 8x8', 10, (1, 8, 8), (1, 8, 8), 'plain', 'made up')\n"
    ),
}
"""A user's method and data set."""
CLIENTS, EXAMPLES = 4, 80
DATA_SET = "lent_package.images:ROW"


class Runs(NamedTuple):
    """The same run twice: by this machine's worker, and by a remote worker alone."""

    folder: Path
    """Of the user's files."""
    summaries: list[dict[str, Any]]
    alice: tuple[int, str]
    """The remote worker that trained."""
    bob: tuple[int, str]
    """One that refuses the run's modules. Both: exit code and stderr."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """The run finds the user's modules on its import path; the remote workers do not, and have an empty cache."""
    folder = tmp_path_factory.mktemp("lent")
    write_files(folder)
    own, key = read_pair(folder / "run.key"), read_public(folder / "alice.pub").decode()
    access = RemoteAccess("tcp://127.0.0.1:*", own.public, own.secret, [key])
    joined: list[tuple[warm.WarmProcess, Path]] = []

    def join(event: HostEvent) -> None:
        if event.kind == "listening":
            joined.append(worker(folder, "alice", event.detail))
            joined.append(worker(folder, "bob", event.detail, "--no-sources"))

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder / "modules"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.delenv("FEDBR_DATA", raising=False)
        loaded = load("digits", parse_all(scenario_keys(folder)))
        hosts = [
            Host(folder / "runs", 1, "cpu", "alone"),
            Host(folder / "runs", 0, "cpu", "remote", [Listener(on_event=join)], access),
        ]
        try:
            with WorkerLauncher() as launcher:
                summaries = [dict(runner.run(loaded, host, launcher, never, True)) for host in hosts]
            ended = [(process.wait(), errors.read_text()) for process, errors in joined]
        finally:
            for process, _ in joined:
                process.kill()
        yield Runs(folder, summaries, *ended)


def write_files(folder: Path) -> None:
    """The user's files: modules, images, a partition and keys."""
    package, images = folder / "modules" / "lent_package", folder / "data" / "lent-images"
    package.mkdir(parents=True)
    for name, text in PACKAGE.items():
        (package / name).write_text(text)
    images.mkdir(parents=True)
    rng = np.random.default_rng(3)
    for split, count in (("train", EXAMPLES), ("test", 20)):
        pixels = rng.integers(0, 256, (count, 8, 8), dtype=np.uint8)
        write(images / f"{split}.parquet", [png(image) for image in pixels], [n % 10 for n in range(count)])
    parts = {str(client): list(range(client, EXAMPLES, CLIENTS)) for client in range(CLIENTS)}
    (folder / "parts.json").write_text(json.dumps(parts))
    for name in ("run", "alice"):
        make(name, folder)


def scenario_keys(folder: Path) -> list[str]:
    """Keys of a scenario with all these files."""
    return [
        *("method=lent_package.method:SPEC", f"data.name={DATA_SET}", f"data.root={folder / 'data'}"),
        *(f"data.clients={CLIENTS}", "data.partition.kind=file", f"data.partition.file={folder / 'parts.json'}"),
        *("train.local_epochs=1", "rounds.max=2", "rounds.participants=2", "stop.target_accuracy=1.0"),
    ]


def worker(folder: Path, name: str, endpoint: str, *more: str) -> tuple[warm.WarmProcess, Path]:
    """``fedbr worker`` with a cache of its own, and the file of its stderr."""
    keys = ["--keys", str(folder / "alice.key"), "--server", str(folder / "run.pub")]
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache-of-alice")}
    errors = folder / f"{name}.stderr"
    with errors.open("w") as file:
        words = ["worker", "--connect", endpoint, *keys, *more]
        return warm.start(words, errors=file.fileno(), env=environment), errors


def test_a_worker_that_has_nothing_gets_data_partition_and_modules_from_the_run(runs: Runs) -> None:
    alone, remote = runs.summaries
    assert (remote["model_sha256"], remote["rounds"]) == (alone["model_sha256"], 2)
    assert runs.alice[0] == 0, runs.alice[1]
    lines = [line.removeprefix("fedbr worker: ") for line in runs.alice[1].splitlines()]
    said = [line for line in lines if ": waiting for a run, " not in line]
    assert said[0].startswith("joined run ")
    assert [line.split(",")[0] for line in said[1:]] == [
        "the run's modules: 0.5 kB from the run",
        "the run's modules: received",
        f"data set {DATA_SET}: 7.9 kB from the run",
        f"data set {DATA_SET}: received",
        "partition: 0.3 kB from the run",
        "partition: received",
        "the run has ended",
    ]
    received = runs.folder / "cache-of-alice" / "fedbr-edge" / "received"
    (modules,) = (received / "source").iterdir()
    assert {path.name: path.read_text() for path in (modules / "lent_package").glob("*.py")} == PACKAGE
    (partition,) = (received / "partition").glob("*/partition.json")
    assert partition.read_bytes() == (runs.folder / "parts.json").read_bytes()


def test_a_worker_that_refuses_modules_does_not_serve_a_run_that_has_some(runs: Runs) -> None:
    why = "--no-sources: the run needs lent_package/__init__.py, which this machine lacks; install it here, or join "
    assert runs.bob[0] == 3
    assert runs.bob[1].splitlines()[-1].endswith(f": {why}without --no-sources")


def test_files_that_a_job_cannot_list_are_refused(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cache = Path(runs.summaries[0]["run_dir"]), runs.folder / "cache" / "fedbr-edge"
    data = DataConfig(DATA_SET, partition=PartitionConfig("file", file=str(runs.folder / "parts.json")))
    job = replace(JOB, data=data, cache=str(cache), data_sha256=RunFolder(folder).environment.data.sha256)
    kinds = Counter(file.kind for file in runner.shipped_files(job, folder))
    assert kinds == {"data": 5, "partition": 1, "source": 5}
    monkeypatch.setattr(runner, "MOST_FILES", 10)
    with pytest.raises(ScenarioError, match="modules of 11 files; remote workers can get at most 10"):
        runner.shipped_files(job, folder)
    gone = replace(data, partition=PartitionConfig("file", file=str(runs.folder / "none.json")))
    with pytest.raises(ScenarioError, match=r"--listen: data\.partition\.file: cannot read .*none\.json: No such file"):
        runner.shipped_files(replace(job, data=gone), folder)
    with pytest.raises(ScenarioError, match=f"--listen: data set {DATA_SET}: the cache {cache} has it no more"):
        runner.shipped_files(replace(job, data_sha256="0" * 64), folder)
