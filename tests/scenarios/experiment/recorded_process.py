"""Runs that have been made before: each is a copy, if its plan still has the scenario that it was made with.

As a program this is a run process that makes such runs. Nothing here is a test.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import cast
from unittest.mock import patch

from scenarios.experiment import run_process
from scenarios.experiment.run_set import NamedSummary, PlannedRun, named_summary
from scenarios.run.host import Host
from scenarios.run.run_folder import RunFolder, resolved_keys
from scenarios.run.run_summary import RunSummary
from scenarios.run.setup import on_device

RECORDED = "RECORDED_RUNS"
"""The environment variable that names the folder of the run folders"""


def make_run(run: PlannedRun, path: Path, host: Host, launcher: object, stopped: Callable[[], bool]) -> NamedSummary:
    """In the place of `scenarios.experiment.run_set.make_run`."""
    recorded = RunFolder(Path(os.environ[RECORDED], run.name))
    assert recorded.keys() == resolved_keys(on_device(run.loaded, host.device).scenario)
    assert recorded.summary is not None
    shutil.copytree(recorded.folder, path)
    return named_summary(run, path, cast(RunSummary, recorded.summary))


if __name__ == "__main__":
    with (
        patch.object(run_process, "make_run", make_run),
        patch.object(run_process, "WorkerLauncher", lambda instructions: nullcontext()),
    ):
        run_process.main()
