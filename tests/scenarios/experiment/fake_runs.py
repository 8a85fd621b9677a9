"""Runs that train nothing: names of runs say what becomes of them. As a program this is a run process that makes such
runs. Nothing here is a test."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from coordinator.workers.task import Stopped
from scenarios.config.errors import ScenarioError
from scenarios.experiment import run_process
from scenarios.experiment.run_set import PlannedRun
from scenarios.run.host import Host
from scenarios.run.observer import Observers


def make_run(run: PlannedRun, path: Path, host: Host, launcher: object, stopped: Callable[[], bool]) -> dict[str, Any]:
    """In the place of `scenarios.experiment.run_set.make_run`."""
    if run.name.startswith("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if run.name.startswith("wrong"):
        raise ScenarioError(f"no data for {run.name}")
    if run.name.startswith("broken"):
        raise KeyError("no such column")
    observers = Observers(host.observers)
    observers.on_note(f"{run.name} has {host.workers} workers")
    observers.on_start(path, run.loaded)
    if run.name.startswith("endless"):
        while not stopped():
            time.sleep(0.01)
        raise Stopped
    return {"name": run.name, "run_dir": str(path), "stopped_by": "rounds", "pid": os.getpid()}


if __name__ == "__main__":
    with (
        patch.object(run_process, "make_run", make_run),
        patch.object(run_process, "WorkerLauncher", lambda instructions: nullcontext()),
    ):
        run_process.main()
