"""A run under fire: what all kinds of drills of `benchmarks.chaos` share."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness import FEDBR, committed
from coordinator.records.store import read

SCENARIO = ("digits", "stop.target_accuracy=1.0", "train.local_epochs=2")
MOST_RESTARTS = 3
"""Of a fork server in one process: it may die no more often."""


def rows(folder: Path, query: str) -> list[dict[str, Any]]:
    """Rows of a run's ledger; none while there is no ledger."""
    with contextlib.suppress(sqlite3.OperationalError):
        return [dict(row) for row in read(folder / "ledger.sqlite", query)]
    return []


def chain(folder: Path) -> list[str]:
    """The hashes of the rounds that are committed."""
    return [row["chain"] for row in rows(folder, "SELECT chain FROM rounds ORDER BY round")]


def grandchildren(process: psutil.Process) -> list[psutil.Process]:
    """The workers that the fork servers of a process have started, by their pids; none if it has ended."""
    processes = []
    with contextlib.suppress(psutil.Error):
        for launcher in process.children():
            with contextlib.suppress(psutil.Error):
                processes += launcher.children()
    return sorted(processes, key=lambda one: one.pid)


def processes_in(temporary: Path) -> list[psutil.Process]:
    """All processes with this ``TMPDIR``, whoever their parents are by now."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR") == str(temporary) and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


class Drill:
    """One run under fire. A subclass overrides `strike`, and `finish` if there is something to do after the last fault.

    ``options``: of ``fedbr run`` and ``fedbr resume``, for how the work is done.
    """

    stuck_seconds = 300.0
    """In which a run under fire must commit a round or end, else it hangs."""
    pause_seconds = (0.5, 5.0)
    """Between two faults; a run takes some two seconds to start, an agent five."""

    def __init__(
        self, out: Path, overrides: Sequence[str], rounds: int, faults: int, rng: random.Random, *options: str
    ) -> None:
        self.out, self.folder, self.rounds, self.rng = out, out / "digits" / "fire", rounds, rng
        self.left = faults
        self.faults: Counter[str] = Counter()
        self.environment: Mapping[str, str] = os.environ
        self.logs: dict[int, Path] = {}
        on = (*options, "--quiet", "--no-report")
        self._first = [*FEDBR, "run", *SCENARIO, *overrides, "--out", str(out), "--run-id", "fire", *on]
        self._again = [*FEDBR, "resume", str(self.folder), *on]
        self._committed, self._committed_at = -1, time.monotonic()
        self.coordinator: subprocess.Popen[bytes]

    def strike(self) -> str | None:
        """Do harm; the name of the fault, None if there was nothing to be harmed."""
        raise NotImplementedError

    def finish(self) -> None:
        """After the last fault, or after a run that has ended before it."""

    def play(self) -> None:
        """To the end of the run; RuntimeError if it fails or hangs."""
        self.start_coordinator()
        pause = self.rng.uniform(*self.pause_seconds)
        while self.left and not self.wait(pause):
            pause = 0.2  # until there is something to be harmed
            fault = None
            with contextlib.suppress(psutil.Error):
                fault = self.strike()
            if fault:
                self.left -= 1
                self.faults[fault] += 1
                pause = self.rng.uniform(*self.pause_seconds)
        self.finish()
        while not self.wait(1.0):
            pass

    def wait(self, seconds: float) -> bool:
        """Whether the run ends within these seconds. RuntimeError if it fails or hangs."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.coordinator.poll() is not None and self.has_finished():
                return True
            self.check_progress()
            time.sleep(0.05)
        return False

    def has_finished(self) -> bool:
        """Whether the run whose process has ended was finished."""
        if self.coordinator.returncode:
            raise RuntimeError(f"{self.folder}: {self.last_words(self.coordinator)} after {dict(self.faults)}")
        return True

    def check_progress(self) -> None:
        if (rounds := committed(self.folder)) != self._committed:
            self._committed, self._committed_at = rounds, time.monotonic()
        if time.monotonic() - self._committed_at > self.stuck_seconds:
            raise RuntimeError(f"{self.folder}: no round in {self.stuck_seconds:g} s after {dict(self.faults)}")

    def start(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        path = self.out / f"process-{len(self.logs)}-{time.monotonic_ns()}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=log, env=self.environment)
        self.logs[process.pid] = path
        return process

    def last_words(self, process: subprocess.Popen[bytes]) -> str:
        """The exit code of a process, and its last lines on stderr."""
        lines = self.logs[process.pid].read_text(errors="replace").splitlines()
        return f"exit code {process.returncode}: {' / '.join(lines[-20:])}"

    def start_coordinator(self) -> None:
        """Begin the run, or resume it."""
        self.coordinator = self.start(self._again if (self.folder / "scenario.toml").is_file() else self._first)

    def kill_coordinator(self, *moment_seconds: float) -> None:
        """SIGKILL, and resume it after a moment between two limits, if they are given."""
        self.coordinator.kill()
        self.coordinator.wait()
        if moment_seconds:
            time.sleep(self.rng.uniform(*moment_seconds))
        self.start_coordinator()

    def close(self) -> None:
        """End all that it has started."""
        self.coordinator.kill()
        self.coordinator.wait()


class LocalDrill(Drill):
    """Local workers, their fork server and the coordinator are killed; workers are stopped, which must be found out."""

    KILL, STOP, COORDINATOR = "worker killed", "worker stopped", "coordinator killed"
    FORK_SERVER, AFTER = "fork server killed", "coordinator killed after its last commit"
    stuck_seconds = 120.0
    pause_seconds = (0.2, 4.0)
    _restarts = 0

    def strike(self) -> str | None:
        fault = self.rng.choices((self.KILL, self.STOP, self.FORK_SERVER, self.COORDINATOR), (5, 1, 2, 4))[0]
        if fault == self.COORDINATOR:
            self._restarts = 0
            self.kill_coordinator()
            return fault
        if not (victims := grandchildren(psutil.Process(self.coordinator.pid))):
            return None
        if fault == self.FORK_SERVER and self._restarts == MOST_RESTARTS:
            fault = self.KILL
        if fault == self.FORK_SERVER:
            self._restarts += 1
            victims[0].parent().kill()
        else:
            self.rng.choice(victims).send_signal(signal.SIGSTOP if fault == self.STOP else signal.SIGKILL)
        return fault

    def finish(self) -> None:
        """Kill the coordinator once more when all rounds are committed, if it has not ended by then."""
        while self.coordinator.poll() is None:
            if committed(self.folder) == self.rounds:
                time.sleep(self.rng.uniform(0.0, 1.0))
                if self.coordinator.poll() is None:
                    self.kill_coordinator()
                    self.faults[self.AFTER] += 1
                return
            self.check_progress()
            time.sleep(0.01)
