"""A run of the product, whose coordinator is this process: ``python -m benchmarks.product REQUEST``.

The request is the JSON of `Request`; the answer is one JSON object on stdout: the rounds, their clients, the workers'
events, and the peak of memory if it is requested. The run is ended from outside after its rounds, so that the last
round is like the others.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
from safetensors.numpy import load_file

from benchmarks.engine_parts import images
from benchmarks.harness import memory_of
from coordinator.records.schema import HostEvent
from coordinator.records.store import read
from coordinator.rounds.run import RoundFinished
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.pool import Pool
from coordinator.workers.sockets import RemoteAccess
from edge.protocol.config import Job
from edge.runtime.keys import read_pair, read_public
from scenarios.config.load import Loaded, load
from scenarios.config.overrides import parse_all
from scenarios.run import runner
from scenarios.run.host import Host
from scenarios.run.observer import RunObserver
from scenarios.run.setup import RunInputs

NEVER = 1_000_000
"""More rounds than any run here has."""


@dataclass(frozen=True)
class Federation:
    """A scenario of alike clients without stragglers: FedAvg, iid, every round waits for all."""

    clients: int
    samples: int
    """Random images per client; 0: those of ``data``, divided equally."""
    participants: int
    train: str = "local_epochs = 1"
    model: str = "cnn"
    width: int | None = None
    eval_every: int = NEVER
    batch: int = 20
    data: str = ""

    @property
    def name(self) -> str:
        return self.model if self.width is None else f"{self.model} of width {self.width}"

    def write(self, folder: Path, name: str) -> str:
        """The path of its scenario file."""
        data = self.data or images.data_name(self.clients * self.samples)
        width = "" if self.width is None else f"width = {self.width}\n"
        path = folder / f"{name}-{self.model}-{self.width}-{self.clients}.toml"
        path.write_text(
            f'method = "fedavg"\n[data]\nname = "{data}"\nclients = {self.clients}\naugment = "none"\n'
            f'[model]\nname = "{self.model}"\n{width}[train]\nlr = 0.05\nbatch = {self.batch}\n{self.train}\n'
            f"[rounds]\nparticipants = {self.participants}\nmax = {NEVER}\n"
            f"[eval]\nevery = {self.eval_every}\n[fleet]\njitter = 0.0\n"
        )
        return str(path)


@dataclass(frozen=True)
class Request:
    """One run."""

    scenario: str
    overrides: Sequence[str]
    workers: int
    """Local ones, or those of all node agents where there is an endpoint."""
    rounds: int
    """Rounds to record; the first began before all workers were there."""
    device: str = "cpu"
    is_untrained: bool = False
    """Whether its workers answer without training (`benchmarks.echo`)."""
    first: str | None = None
    """File for the global model after the first round, as one vector (.npy)."""
    memory: bool = False
    endpoint: str = ""
    keys: str = ""
    """The run's key pair, and the agents' public key."""
    allowed: str = ""


@dataclass
class Watch(RunObserver):
    """The record of a run as it goes on."""

    request: Request
    rounds: list[dict[str, float]] = field(default_factory=list)
    """The coordinator's view at the end of each round: times and bytes since the beginning, and ``charged_down`` and
    ``charged_up``, the bytes that its clients are charged."""
    events: list[tuple[str, str]] = field(default_factory=list)
    clients: list[list[int]] = field(default_factory=list)
    """Of each recorded round."""
    _numbers: list[int] = field(default_factory=list)
    _pool: Pool | None = None
    _folder: Path = Path()
    _blocks: Sequence[str] = ()

    def open_pool(self, *arguments: Any, **options: Any) -> Pool:
        self._pool = Pool(*arguments, **options)
        return self._pool

    def on_start(self, folder: Path, loaded: Loaded) -> None:
        self._folder, self._blocks = folder, loaded.model.blocks

    def on_event(self, event: HostEvent) -> None:
        self.events.append((event.kind, event.detail))
        if event.kind == "listening":
            print(event.kind, flush=True)

    def on_round(self, progress: RoundFinished) -> None:
        assert self._pool is not None
        if self._pool.size < self.request.workers:
            return
        seconds, cpu_seconds, row = time.perf_counter(), time.process_time(), progress.row
        sent, received = self._pool.physical_bytes
        self.rounds.append(
            {
                "seconds": seconds,
                "cpu_seconds": cpu_seconds,
                "nbytes_sent": sent,
                "nbytes_received": received,
                "rss": psutil.Process().memory_info().rss,
                "charged_down": row.bytes_down,
                "charged_up": row.bytes_up,
            }
        )
        self._numbers.append(row.round)
        if len(self.rounds) == 1 and self.request.first is not None:
            (path,) = (self._folder / "checkpoints").iterdir()
            model = load_file(path)
            np.save(self.request.first, np.concatenate([model[f"model|{block}"] for block in self._blocks]))

    def is_over(self) -> bool:
        return len(self.rounds) >= self.request.rounds

    def read_clients(self) -> None:
        """After the run, so that no round lasts longer for it."""
        query = "SELECT round, client FROM visits WHERE kind = 'train' ORDER BY client"
        visits = read(self._folder / "ledger.sqlite", query)
        self.clients = [[each["client"] for each in visits if each["round"] == number] for number in self._numbers]


_JOB: Callable[[RunInputs], Job] = vars(RunInputs)["job"].func


def _untrained(inputs: RunInputs) -> Job:
    return replace(_JOB(inputs), is_untrained=True)


def play(request: Request) -> Watch:
    """Make the run."""
    watch, access = Watch(request), None
    if request.endpoint:
        pair, allowed = read_pair(Path(request.keys)), read_public(Path(request.allowed)).decode()
        access = RemoteAccess(request.endpoint, pair.public, pair.secret, [allowed])
    preload = () if access else ("edge.training.trainer",)
    with tempfile.TemporaryDirectory(prefix="fedbr-benchmark-") as name:
        host = Host(Path(name), 0 if access else request.workers, request.device, None, [watch], access)
        job = mock.patch.object(RunInputs, "job", property(_untrained)) if request.is_untrained else nullcontext()
        with job, mock.patch.object(runner, "Pool", watch.open_pool), WorkerLauncher(preload) as launcher:
            loaded = load(request.scenario, parse_all(request.overrides))
            runner.run(loaded, host, launcher, watch.is_over, stop_at_target=False)
        watch.read_clients()
    return watch


def differences(rounds: Sequence[Mapping[str, float]], key: str) -> list[float]:
    """The increase of a number in each round but the first."""
    return [after[key] - before[key] for before, after in pairwise(rounds)]


def main(text: str) -> None:
    request = Request(**json.loads(text))
    with memory_of(os.getpid()) if request.memory else nullcontext() as peak:
        watch = play(request)
    memory = asdict(peak) if peak else None
    print(json.dumps({"rounds": watch.rounds, "clients": watch.clients, "events": watch.events, "memory": memory}))


if __name__ == "__main__":
    main(sys.argv[1])
