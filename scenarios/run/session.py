"""Resources of this process for runs: workers, a stop flag, a folder, and whoever watches them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals
from types import TracebackType
from typing import Protocol, Self, TypeVar

from coordinator.records.schema import HostEvent
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.pool import Pool
from coordinator.workers.sockets import RemoteAccess
from edge.protocol.config import CPU
from edge.protocol.portable import NATIVE
from edge.protocol.scratch import scratch
from edge.runtime.gpu_memory import free_nbytes, gpu_workers
from scenarios.config.load import Loaded
from scenarios.config.validation import evaluated
from scenarios.run import app_run, folder_files, runner
from scenarios.run.host import (
    Host,
    Piece,
    StopFlag,
    check_workers,
    choose_device,
    default_workers,
    logging_to,
    piece_seconds,
)
from scenarios.run.observer import Observers, RunObserver
from scenarios.run.setup import RunInputs, Setup

Outcome = TypeVar("Outcome")
Work = Callable[[Host, WorkerLauncher, Piece], Outcome]
"""(host, launcher, stopped) -> result"""


class Engine(Protocol):
    """A cluster whose nodes do the work of a run, as a context."""

    on_note: Callable[[str], None]
    """Told of what happens there; set before the context is entered."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def names(self) -> Mapping[str, str]:
        """Public key of a node's agent -> the node's name."""

    def serve(self, device: str) -> RemoteAccess:
        """The port that the nodes' agents join."""

    def on_event(self, event: HostEvent) -> None:
        """Is told of everything that happens to workers."""

    def check(self) -> None:
        """PoolError if no node can take part."""


@dataclass(frozen=True)
class Session:
    """The user's settings for one call that makes runs."""

    workers: int | None
    """None: as many as the runs can use on this machine."""
    device: str
    observers: Sequence[RunObserver] = ()
    out: Path | None = None
    """The folder of run folders; None if none is created there."""
    run_id: str | None = None
    remote_access: RemoteAccess | None = None
    engine: Engine | None = None
    """The cluster whose nodes do all the work; None: this machine's workers, and those that join it."""
    piece: str | None = None
    """The duration of ``--for``."""
    preload: Sequence[str] | None = None
    """Modules that the fork server imports for workers, by default all that they need; () where this process trains
    nothing."""
    signals: Sequence[Signals] = (Signals.SIGINT, Signals.SIGTERM)
    """Signals that ask the runs to stop."""

    def __post_init__(self) -> None:
        """ScenarioError for too many workers."""
        check_workers(self.workers)

    def call(self, runs: Sequence[Loaded], work: Work[Outcome]) -> Outcome:
        """Call ``work`` with a worker launcher and a stop flag, and tell the observers of ``runs`` meanwhile.

        ScenarioError if the folder cannot be written, and for a piece that is no duration.
        """
        interrupt, engine = StopFlag(self.signals), self.engine
        link = None if engine is None else _EngineLink(engine, interrupt)
        stopped = Piece(piece_seconds(self.piece), link or interrupt)
        host = Host(
            self.out or Path(),
            1,
            choose_device(self.device, runs),
            self.run_id,
            (*((link,) if link else ()), *self.observers, stopped),
            self.remote_access,
            stopped.stopped_by,
        )
        if self.out is not None:
            folder_files.check_place(self.out / runs[0].name, self.run_id)
        with ExitStack() as stack:
            stack.enter_context(interrupt.watching())
            if engine is not None:
                engine.on_note = Observers(self.observers).on_note
                stack.enter_context(engine)
            launcher = stack.enter_context(self._launcher(runs))
            for observer in self.observers:
                stack.enter_context(observer)
            if engine is not None:
                return work(replace(host, workers=0, remote_access=engine.serve(host.device)), launcher, stopped)
            asked = self.workers
            workers = choose_workers(runs, host.device, launcher, interrupt) if asked is None else asked
            most = useful_workers(runs)
            if most is not None and asked is not None and asked > most:
                Observers(self.observers).on_note(f"workers: {most}, not {asked}: more have no visit at any time")
                workers = most
            return work(replace(host, workers=workers), launcher, stopped)

    def _launcher(self, runs: Sequence[Loaded]) -> AbstractContextManager[WorkerLauncher]:
        first = runs[0].scenario.train.instructions if runs else NATIVE
        return WorkerLauncher(preloaded(runs) if self.preload is None else self.preload, first)


def useful_workers(runs: Iterable[Loaded]) -> int | None:
    """The visits that these runs have at a time, if all of them are made together; None where that is not known: of
    Flower apps, and where clients are evaluated."""
    together = 0
    for run in runs:
        if (
            run.method.app is not None
            or run.scenario.eval.aggregators
            or evaluated(run.method, run.scenario) != "global"
        ):
            return None
        together += run.scenario.rounds.cohort
    return together or None


def preloaded(runs: Iterable[Loaded]) -> list[str]:
    """The modules that workers of these runs need: of Flower apps other ones than of other runs."""
    executors = dict.fromkeys(Pool.site if run.method.app is None else app_run.EXECUTOR for run in runs)
    return [name.partition(":")[0] for name in executors or (Pool.site,)]


class _EngineLink(RunObserver):
    """Between runs and the cluster that does their work: it is told of workers, and its error ends the runs."""

    def __init__(self, engine: Engine, stopped: Callable[[], bool]) -> None:
        self._engine, self._stopped = engine, stopped

    def __call__(self) -> bool:
        """Whether the user has asked to stop."""
        self._engine.check()
        return self._stopped()

    def on_event(self, event: HostEvent) -> None:
        self._engine.on_event(event)


def choose_workers(runs: Iterable[Loaded], device: str, launcher: WorkerLauncher, stopped: Callable[[], bool]) -> int:
    """One worker per core; on a GPU, as many as the memory that is free has room for (`gpu_workers`).

    The largest of the runs counts. Where the driver does not tell the free memory, one per core.
    """
    free = free_nbytes(device)
    if not free:
        return default_workers()
    distinct = {repr((run.scenario.model, run.scenario.method, run.scenario.train.batch)): run for run in runs}
    visit_nbytes = []
    for run in distinct.values():  # from a description of the model on the CPU, before any worker has a GPU
        train = replace(run.scenario.train, precision="fp32")
        there = RunInputs(replace(run, scenario=run.scenario.model_copy(update={"train": train})), CPU)
        with (
            scratch() as logs,
            logging_to(logs / "coordinator.log"),
            runner.probe_worker(there, launcher, logs, stopped) as pool,
        ):
            profile, _ = pool.describe(data=False)
        visit_nbytes.append(Setup(there, profile).training_nbytes())
    visits = max(run.scenario.rounds.cohort for run in distinct.values())
    return gpu_workers(free, max(visit_nbytes), default_workers(), visits)
