"""What runs need of this process: workers, a stop flag, a folder, and somebody who is told of their progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals
from typing import Any, Protocol

from coordinator.records.schema import HostEvent
from coordinator.rounds.run import RoundFinished
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.sockets import RemoteAccess
from scenarios.config.load import Loaded
from scenarios.host import Host, Piece, StopFlag, check_folder, choose_device, piece_seconds
from scenarios.worker_count import choose_workers

Work = Callable[[Host, WorkerLauncher, Piece], dict[str, Any]]
"""(host, launcher, stopped) -> result"""


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

    def call(self, runs: Sequence[Loaded], work: Work) -> dict[str, Any]:
        """Call ``work`` with a worker launcher and a stop flag, and show the progress of ``runs`` meanwhile.

        ScenarioError if the folder cannot be written, and for a piece that is no duration.
        """
        interrupt = StopFlag(self.signals)
        stopped = Piece(piece_seconds(self.piece), interrupt)
        host = Host(
            self.out or Path(),
            1,
            choose_device(self.device),
            self.run_id,
            self.show.on_start,
            stopped.after(self.show.on_round),
            self.remote_access,
            self.on_note,
            self.on_event,
        )
        if self.out is not None:
            check_folder(runs[0].name, host)
        with interrupt.watching(), self._launcher(runs) as launcher, self.show.showing():
            asked = self.workers
            workers = choose_workers(runs, host.device, launcher, interrupt) if asked is None else asked
            return work(replace(host, workers=workers), launcher, stopped)

    def _launcher(self, runs: Sequence[Loaded]) -> WorkerLauncher:
        launcher = WorkerLauncher() if self.preload is None else WorkerLauncher(self.preload)
        if runs:
            launcher.use(runs[0].scenario.train.instructions)  # the first pool would have it started twice
        return launcher
