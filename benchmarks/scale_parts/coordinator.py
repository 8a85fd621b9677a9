"""The coordinator of a run that node agents join: ``python -m benchmarks.scale_parts.coordinator REQUEST``.

The request is the JSON of `Request`. When the coordinator listens, it says so in a line on stdout; at the end, it
prints the rounds that began when all agents had joined, as one JSON object.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from coordinator.records.schema import HostEvent
from coordinator.rounds.run import RoundFinished
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.pool import Pool
from coordinator.workers.sockets import RemoteAccess
from edge.runtime.keys import read_pair, read_public
from scenarios.config.load import load
from scenarios.config.overrides import parse_all
from scenarios.run import runner
from scenarios.run.host import Host
from scenarios.run.observer import RunObserver

CLIENTS = 1000


@dataclass(frozen=True)
class Request:
    """What is to be run."""

    endpoint: str
    keys: str
    """The run's key pair."""
    allowed: str
    """The agents' public key."""
    workers: int
    """Of all agents together."""
    visits: int
    """In a round."""
    rounds: int
    """To be measured."""
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Round:
    """One round, as the coordinator sees it."""

    seconds: float
    cpu_seconds: float
    nbytes_sent: int
    nbytes_received: int
    rss: int
    """Bytes, at its end."""
    model_nbytes: int
    """Bytes that a client is charged for its download: the model, and some hundred bytes."""


@dataclass
class Watch(RunObserver):
    """What is noted as the run goes on."""

    request: Request
    pools: list[Pool] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    _last: tuple[float, float, tuple[int, int]] | None = None

    def open_pool(self, *arguments: Any, **named: Any) -> Pool:
        """The pool of the run, which counts its bytes."""
        self.pools.append(Pool(*arguments, **named))
        return self.pools[-1]

    def on_event(self, event: HostEvent) -> None:
        """The coordinator listens."""
        if event.kind == "listening":
            print(json.dumps({"listening": event.detail}), flush=True)

    def on_round(self, progress: RoundFinished) -> None:
        """A round has been committed."""
        now = time.perf_counter(), time.process_time(), self.pools[-1].physical_bytes
        if self._last is not None and progress.row.participants == self.request.visits:
            (wall, cpu, nbytes), last = now, self._last
            sent, received = (after - before for after, before in zip(nbytes, last[2], strict=True))
            rss, model_nbytes = psutil.Process().memory_info().rss, progress.row.bytes_down // self.request.visits
            self.rounds.append(Round(wall - last[0], cpu - last[1], sent, received, rss, model_nbytes))
        # a round that has begun before the last agent was ready was shared by fewer
        self._last = now if self.pools[-1].size == self.request.workers else None

    def is_over(self) -> bool:
        """Whether the rounds that were asked for are there."""
        return len(self.rounds) >= self.request.rounds + 1


def main(text: str) -> None:
    request = Request(**json.loads(text))
    watch = Watch(request)
    pair, allowed = read_pair(Path(request.keys)), read_public(Path(request.allowed)).decode()
    access = RemoteAccess(request.endpoint, pair.public, pair.secret, [allowed])
    overrides = (
        "method=fedavg",
        f"data.clients={CLIENTS}",
        'data.partition={kind="iid"}',
        "eval.every=100000",
        "rounds.max=100000",
        f"rounds.participants={request.visits}",
        *request.overrides,
    )
    with tempfile.TemporaryDirectory(prefix="fedbr-benchmark-") as folder:
        host = Host(Path(folder), 0, "cpu", None, [watch], access)
        pool: Callable[..., Pool] = watch.open_pool
        with mock.patch.object(runner, "Pool", pool), WorkerLauncher(()) as launcher:
            runner.run(load("digits", parse_all(overrides)), host, launcher, watch.is_over, stop_at_target=False)
    print(json.dumps({"rounds": [asdict(each) for each in watch.rounds[1:]]}))


if __name__ == "__main__":
    main(sys.argv[1])
