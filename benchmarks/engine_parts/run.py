"""One run of the product in a process that is its coordinator: ``python -m benchmarks.engine_parts.run REQUEST``.

The request is the JSON of `Request`; the answer, one JSON object on stdout, has per round: when it ended (seconds), the
CPU seconds of this process until then, and its clients. With ``sample``, it also has what `sampler` says of this
process and of the workers. The run is ended from the outside after ``rounds``, so that its last round is like the
others.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from safetensors.numpy import load_file

from benchmarks.engine_parts.sampler import FOLDER_VARIABLE, KINDS, Sampler, sum_of
from coordinator.records.store import read
from coordinator.rounds.run import RoundFinished
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.pool import Pool
from scenarios.config.load import Loaded, load
from scenarios.config.overrides import parse_all
from scenarios.run import runner
from scenarios.run.host import Host
from scenarios.run.observer import RunObserver

SITE = "benchmarks.engine_parts.site"


@dataclass(frozen=True)
class Request:
    """What is to be run."""

    toml: str
    overrides: tuple[str, ...]
    workers: int
    rounds: int
    first: str | None = None
    """Where the global model after the first round is to be written, as one vector (.npy)"""
    sample: bool = False


@dataclass
class Watch(RunObserver):
    """What is noted when the run starts, and after each round."""

    request: Request
    sampler: Sampler | None
    samples: Path
    """Folder of the workers' samples"""
    ends: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    accounts: list[dict[str, Any]] = field(default_factory=list)
    folder: Path = Path()
    blocks: tuple[str, ...] = ()

    def on_start(self, folder: Path, loaded: Loaded) -> None:
        """The run folder is there."""
        self.folder, self.blocks = folder, loaded.model.blocks

    def on_round(self, progress: RoundFinished) -> None:
        """A round has been committed."""
        self.ends.append(time.perf_counter())
        self.cpu.append(time.process_time())
        if self.sampler is not None:
            self.accounts.append({"coordinator": self.sampler.read(), "workers": sum_of(self.samples)})
        if len(self.ends) == 1 and self.request.first is not None:
            (path,) = (self.folder / "checkpoints").iterdir()
            named = load_file(path)
            np.save(self.request.first, np.concatenate([named[f"model|{block}"] for block in self.blocks]))

    def is_over(self) -> bool:
        """Whether the rounds that were asked for are there."""
        return len(self.ends) >= self.request.rounds


def main(text: str) -> None:
    request = Request(**json.loads(text))
    with tempfile.TemporaryDirectory(prefix="fedbr-benchmark-") as name:
        folder = Path(name)
        os.environ[FOLDER_VARIABLE] = name
        sampler = Sampler(np.zeros((2, len(KINDS)))) if request.sample else None
        watch = Watch(request, sampler, folder)
        preload = ("edge.training.trainer", SITE) if request.sample else ("edge.training.trainer",)
        pool = partial(Pool, site=f"{SITE}:SampledSite") if request.sample else Pool
        host = Host(folder / "runs", request.workers, "cpu", None, [watch])
        loaded = load(request.toml, parse_all(request.overrides))
        with mock.patch.object(runner, "Pool", pool), WorkerLauncher(preload) as launcher:
            if sampler is not None:
                sampler.start()
            runner.run(loaded, host, launcher, watch.is_over, stop_at_target=False)
        Sampler.stop()
        query = "SELECT round, client FROM visits WHERE kind = 'train' ORDER BY round, client"
        rows = read(watch.folder / "ledger.sqlite", query)
        clients = [[row["client"] for row in rows if row["round"] == number] for number in range(len(watch.ends))]
    answer = {"ends": watch.ends, "cpu": watch.cpu, "clients": clients, "accounts": watch.accounts}
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
