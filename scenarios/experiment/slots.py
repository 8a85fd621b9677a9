"""What makes the runs of a run set, as the process that hands them out sees it: slots, each with one run at a time."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any, Protocol

from scenarios.experiment.run_set import PlannedRun
from scenarios.run.host import Host


class RunSlot(Protocol):
    """Makes one run after another, somewhere: a process of this machine (`RunProcess`), or a place in a cluster."""

    workers: int
    run: PlannedRun | None
    """The run that it makes now"""

    @property
    def answers(self) -> IO[bytes]:
        """Readable when there are answers."""

    def begin(self, run: PlannedRun, path: Path) -> None:
        """Tell it to make a run."""

    def stop(self, reason: str) -> None:
        """Tell it, once, that its run is to end with its round."""

    def lines(self) -> list[bytes] | None:
        """The whole lines that it has answered since, see `run_process`; None if it has ended."""

    def dismiss(self) -> None:
        """Let it end: at once if it makes a run."""

    def join(self, seconds: float) -> int:
        """Its exit status; it is killed if it has not ended so soon."""


class RunCluster(Protocol):
    """Machines that make whole runs."""

    def start(self, host: Host, workers: int) -> RunSlot:
        """A slot for runs with so many workers."""

    def shares(self, missing: int, parallel: int) -> list[int]:
        """The workers of each slot for so many runs, of which at most ``parallel`` are made at the same time."""


def told_of(run: PlannedRun, path: Path) -> dict[str, Any]:
    """A run as `scenarios.experiment.run_process` reads it."""
    tables = run.loaded.scenario.model_dump()
    told = {"name": run.name, "path": str(path), "scenario": tables, "scenario_name": run.loaded.name}
    return {**told, "needs": dict(run.needs)}
