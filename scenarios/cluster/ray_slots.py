"""Whole runs of a run set on the nodes of a Ray cluster, as `scenarios.experiment.parallel` hands them out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from scenarios.cluster.ray_engine import RayEngine
from scenarios.config.errors import Argument, ScenarioError
from scenarios.experiment.run_set import PlannedRun
from scenarios.experiment.slots import told_of
from scenarios.run.host import Host


class RayRuns:
    """A cluster that makes runs, as a context: when it is left, none of them is on its way."""

    def __init__(
        self,
        address: str,
        workers: int | None,
        parallel: int | None,
        on_note: Callable[[str], None],
        option: str = "--on",
    ) -> None:
        """``workers``: of one run, by default as many as the cores allow where all runs have as many; ``parallel``: the
        most runs at a time, by default as many as there is room for. ScenarioError."""
        self._engine = RayEngine(address, option=option)
        self._named, self._workers, self._parallel = f"{option} {address}", workers, parallel
        self._engine.on_note = on_note
        self._count = 0

    def __enter__(self) -> Self:
        self._engine.__enter__()
        self._engine.on_note(f"{self._named}: the cluster at {self._engine.address} has {self._engine.size}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.__exit__(kind, error, trace)

    def start(self, host: Host, workers: int) -> RaySlot:
        """A slot for runs with so many workers."""
        self._count += 1
        return RaySlot(self._engine, self._count, host, workers)

    def shares(self, missing: int, parallel: int) -> list[int]:
        """The workers of each slot. ScenarioError if no node has as many cores as a run is to have workers."""
        return run_shares(self._engine.size.cpus, self._engine.size.most_cpus, missing, self._parallel, self._workers)


def run_shares(cpus: float, most_cpus: float, missing: int, parallel: int | None, workers: int | None) -> list[int]:
    """The workers of each of the runs that a cluster makes at the same time.

    ``cpus``: cores of all nodes; ``most_cpus``: of the largest node. ScenarioError for ``workers`` that no node has.
    """
    if (workers or 1) > most_cpus:
        raise ScenarioError(
            Argument("workers", str(workers or 1)),
            f": a run needs a node with as many cores; the largest has {most_cpus:g}",
        )
    count = min(missing, parallel or missing, int(cpus // (workers or 1)))
    each = workers or max(1, int(min(most_cpus, cpus // max(1, count))))
    return [each] * count


class RaySlot:
    """A place for one run after another; each is made on a node of its own choice."""

    def __init__(self, engine: RayEngine, number: int, host: Host, workers: int) -> None:
        self.workers = workers
        self.run: PlannedRun | None = None
        self._engine, self._number = engine, number
        self._host = {"out": str(host.out.resolve()), "device": host.device, "workers": workers}
        self._is_stopped = False
        self._pending = b""
        reading, self._writing = os.pipe()
        self._answers: IO[bytes] = os.fdopen(reading, "rb", buffering=0)

    @property
    def answers(self) -> IO[bytes]:
        """Readable when there are answers."""
        return self._answers

    def begin(self, run: PlannedRun, path: Path) -> None:
        """Have a run made."""
        self._engine.begin_run(self._number, self._host, told_of(run, path.resolve()), self._heed)

    def stop(self, reason: str) -> None:
        """Tell it, once, that its run is to end with its round, and what for."""
        if not self._is_stopped:
            self._engine.stop_run(self._number, reason)
        self._is_stopped = True

    def lines(self) -> list[bytes] | None:
        """The whole lines that it has answered since."""
        *lines, self._pending = (self._pending + os.read(self._answers.fileno(), 1 << 16)).split(b"\n")
        return lines

    def dismiss(self) -> None:
        """Drop its run, if it has one."""
        if self.run is not None:
            self._engine.drop_run(self._number)

    def join(self, seconds: float) -> int:
        """Close it; there is nothing to wait for."""
        self._engine.forget_run(self._number)
        with suppress(OSError):
            os.close(self._writing)
        self._answers.close()
        return 0

    def _heed(self, said: dict[str, Any] | None) -> None:
        lost = {"failed": "the connection to the cluster is lost", "is_users": False}
        with suppress(OSError):  # nobody listens any more
            os.write(self._writing, json.dumps(lost if said is None else said).encode() + b"\n")
