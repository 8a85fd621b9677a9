"""Whole runs with more and more workers on one device: ``python -m benchmarks.gpu_parts.workers REQUEST``.

Seconds of a visit are those of a round, on the wall, per client of it. Memory of a worker is the growth of the GPU's
use while the run goes on, as the driver counts it, by the number of workers; without a GPU, the sum of the proportional
memory of all processes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.engine_parts.memory import Peak
from benchmarks.engine_parts.memory import watch as watch_processes
from benchmarks.gpu_parts.children import tell
from benchmarks.gpu_parts.report import Row, in_turns
from coordinator.records.schema import HostEvent
from coordinator.rounds.run import RoundFinished, RunFailed
from coordinator.workers.launcher import WorkerLauncher
from edge.protocol.config import CPU
from edge.runtime.gpu_memory import free_nbytes
from scenarios.config.load import ScenarioError, load
from scenarios.run import runner
from scenarios.run.host import Host
from scenarios.run.observer import RunObserver

LOOK_SECONDS = 0.5
"""Between two looks at the GPU's memory; each starts a process"""
SHARE = 0.9
"""Of the limit, after which no further run begins"""
MEMORY_EVENT = "worker_memory"


@dataclass(frozen=True)
class Request:
    """What is measured."""

    toml: str
    device: str
    counts: tuple[int, ...]
    """Workers of each run"""
    rounds: int
    """Timed ones, after one that is not"""
    clients: int
    """Of a round"""
    name: str
    """Of the model, for tables"""
    seconds: float
    """Limit of this process"""


@dataclass
class Memory:
    """Peaks while a run goes on."""

    gpu_nbytes: int = 0
    processes: Peak = field(default_factory=Peak)


@contextmanager
def watched(device: str) -> Iterator[Memory]:
    """Memory of the GPU, or of this process and its workers, from here to the end of the block."""
    memory, is_over = Memory(), threading.Event()
    if device == CPU:
        thread = threading.Thread(target=watch_processes, args=(os.getpid(), memory.processes, is_over))
    else:
        thread = threading.Thread(target=_watch_gpu, args=(device, memory, is_over))
    thread.start()
    try:
        yield memory
    finally:
        is_over.set()
        thread.join()


def _watch_gpu(device: str, memory: Memory, is_over: threading.Event) -> None:
    """Never more than its growth: other processes' memory was there before."""
    before = free_nbytes(device)
    while before and not is_over.wait(LOOK_SECONDS):
        now = free_nbytes(device)
        if now:
            memory.gpu_nbytes = max(memory.gpu_nbytes, before[0] - now[0])


@dataclass
class Watch(RunObserver):
    """When rounds ended, and what workers said of their memory."""

    ends: list[float] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def on_round(self, progress: RoundFinished) -> None:
        self.ends.append(time.perf_counter())

    def on_event(self, event: HostEvent) -> None:
        if event.kind == MEMORY_EVENT:
            self.said.append(event.detail)


def one_run(request: Request, workers: int, folder: Path, launcher: WorkerLauncher) -> Row:
    """A run of the product, ended after its rounds."""
    watch = Watch()
    ends, said = watch.ends, watch.said
    host = Host(folder / "runs", workers, request.device, observers=[watch])
    with watched(request.device) as memory:
        runner.run(load(request.toml), host, launcher, lambda: len(ends) > request.rounds, stop_at_target=False)
    taken = tuple((end - start) / request.clients for start, end in pairwise(ends))
    if request.device == CPU:
        return Row(label(request, workers), taken, nbytes=memory.processes.pss, note="memory of all processes (PSS)")
    note = said[0].partition(" on ")[2] if said else "the workers told nothing of their memory"
    return Row(label(request, workers), taken, nbytes=memory.gpu_nbytes // workers or None, note=note)


def label(request: Request, workers: int) -> str:
    """For tables."""
    return f"{request.name}, {workers} {'worker' if workers == 1 else 'workers'}"


def main(text: str) -> None:
    fields = json.loads(text)
    request = Request(**fields | {"counts": tuple(fields["counts"])})
    began, first = time.monotonic(), ""
    seconds: dict[str, tuple[float, ...]] = {}
    with tempfile.TemporaryDirectory(prefix="fedbr-gpu-") as name, WorkerLauncher() as launcher:
        for workers in request.counts:
            what = label(request, workers)
            if time.monotonic() - began > SHARE * request.seconds:
                tell(Row(what, note="not measured: its part's time was up", failed=True))
                continue
            try:
                found = one_run(request, workers, Path(name), launcher)
            except (RunFailed, ScenarioError) as error:
                tell(Row(what, note=str(error), failed=True))
                continue
            seconds[what], first = found.seconds, first or what
            (compared,) = (each for each in in_turns(seconds, {what: first}) if each.what == what)
            is_base = what == first
            ratio, to = (None, "") if is_base else (compared.ratio, compared.to)
            tell(Row(what, found.seconds, ratio, to, found.nbytes, found.note))


if __name__ == "__main__":
    main(sys.argv[1])
