"""What all drills of `benchmarks.chaos` share: command lines, the record of a run, and the processes of a run.

It kills nothing.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from pathlib import Path
from typing import Any

import psutil

from coordinator.records.store import read

SCENARIO = ("digits", "stop.target_accuracy=1.0", "train.local_epochs=2")
STUCK_SECONDS = 120.0
"""In which a run under fire must commit a round or end, else it hangs."""


def command(*words: str) -> list[str]:
    """``fedbr`` in a process of its own."""
    return [sys.executable, "-m", "scenarios.cli.main", *words]


def rows(folder: Path, query: str) -> list[dict[str, Any]]:
    """Rows of a run's ledger; none while there is no ledger."""
    with contextlib.suppress(sqlite3.OperationalError):
        return [dict(row) for row in read(folder / "ledger.sqlite", query)]
    return []


def chain(folder: Path) -> list[str]:
    """The hashes of the rounds that are committed."""
    return [row["chain"] for row in rows(folder, "SELECT chain FROM rounds ORDER BY round")]


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """Those that the process's launcher has started, by their pids."""
    found = []
    for launcher in process.children():
        with contextlib.suppress(psutil.Error):
            found += launcher.children()
    return sorted(found, key=lambda one: one.pid)


def processes_in(temporary: Path) -> list[psutil.Process]:
    """All processes with this ``TMPDIR``, which marks those of one drill, whoever their parents are by now."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR") == str(temporary) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
