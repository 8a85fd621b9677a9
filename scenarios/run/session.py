"""What runs need of this process: workers, a stop flag, a folder, and somebody who is told of their progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals
from types import TracebackType
from typing import Any, Protocol, Self

from coordinator.records.schema import HostEvent
from coordinator.rounds.run import RoundFinished
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.sockets import RemoteAccess
from scenarios.config.load import Loaded
from scenarios.run.host import Host, Piece, StopFlag, check_folder, choose_device, piece_seconds
from scenarios.run.worker_count import choose_workers

Work = Callable[[Host, WorkerLauncher, Piece], dict[str, Any]]
"""(host, launcher, stopped) -> result"""


class Engine(Protocol):
    """A cluster whose nodes do the work of a run, as a context."""

    on_note: Callable[[str], None]
    """Told of what happens there; set before the context is entered."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def serve(self, device: str) -> RemoteAccess:
        """The port that the nodes' agents join."""

    def on_event(self, event: HostEvent) -> None:
        """Is told of everything that happens to workers."""

    def check(self) -> None:
        """PoolError if no node can take part."""


class ProgressDisplay(Protocol):
    """Shows how far runs are."""

    def on_start(self, folder: Path, loaded: Loaded) -> None:
        """A run begins or goes on."""

    def on_round(self, progress: RoundFinished) -> None:
        """A round of it has been committed."""

    def showing(self) -> AbstractContextManager[object]:
        """Entered while the runs work."""


@dataclass(frozen=True)
class Session:
    """The user's settings for one call that makes runs."""

    out: Path | None
    """The folder of run folders; None if none is created there."""
    run_id: str | None
    workers: int | None
    """None: as many as the runs can use on this machine."""
    device: str
    show: ProgressDisplay
    on_note: Callable[[str], None]
    remote_access: RemoteAccess | None = None
    piece: str | None = None
    """The duration of ``--for``."""
    preload: Sequence[str] | None = None
    """What the fork server imports for workers, by default all that they need; () where this process trains nothing."""
    signals: Sequence[Signals] = (Signals.SIGINT, Signals.SIGTERM)
    """Those that ask the runs to stop."""
    on_event: Callable[[HostEvent], None] = lambda event: None
    """Told of workers that come and go."""
    engine: Engine | None = None
    """The cluster whose nodes do all the work; None: this machine's workers, and those that join it."""

    def call(self, runs: Sequence[Loaded], work: Work) -> dict[str, Any]:
        """Call ``work`` with a worker launcher and a stop flag, and show the progress of ``runs`` meanwhile.

        ScenarioError if the folder cannot be written, and for a piece that is no duration.
        """
        interrupt = StopFlag(self.signals)
        stopped = Piece(piece_seconds(self.piece), self._checked(interrupt))
        host = Host(
            self.out or Path(),
            1,
            choose_device(self.device),
            self.run_id,
            self.show.on_start,
            stopped.after(self.show.on_round),
            self.remote_access,
            self.on_note,
            self._on_event,
            stopped.stopped_by,
        )
        if self.out is not None:
            check_folder(runs[0].name, host)
        if self.engine is not None:
            self.engine.on_note = self.on_note
        with interrupt.watching(), self.engine or nullcontext(), self._launcher(runs) as launcher, self.show.showing():
            if self.engine is not None:
                access = self.engine.serve(host.device)
                return work(replace(host, workers=0, remote_access=access), launcher, stopped)
            asked = self.workers
            workers = choose_workers(runs, host.device, launcher, interrupt) if asked is None else asked
            return work(replace(host, workers=workers), launcher, stopped)

    def _checked(self, interrupt: Callable[[], bool]) -> Callable[[], bool]:
        """The user's wish to stop, or the engine's error."""
        engine = self.engine
        if engine is None:
            return interrupt

        def is_stopped() -> bool:
            engine.check()
            return interrupt()

        return is_stopped

    def _on_event(self, event: HostEvent) -> None:
        if self.engine is not None:
            self.engine.on_event(event)
        self.on_event(event)

    def _launcher(self, runs: Sequence[Loaded]) -> WorkerLauncher:
        launcher = WorkerLauncher() if self.preload is None else WorkerLauncher(self.preload)
        if runs:
            launcher.use(runs[0].scenario.train.instructions)  # the first pool would have it started twice
        return launcher
