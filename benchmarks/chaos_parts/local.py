"""A run with local workers under fire: its workers, its fork server and its coordinator are killed and stopped."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks.chaos_parts.processes import SCENARIO, STUCK_SECONDS, chain, command, workers_of

KILL, STOP, COORDINATOR = "worker killed", "worker stopped", "coordinator killed"
FORK_SERVER, AFTER = "fork server killed", "coordinator killed after its last commit"
MOST_RESTARTS = 3
"""Of the fork server in one process: it may die no more often."""
PAUSE_SECONDS = (0.2, 4.0)
"""Between two faults; a run takes some two seconds to start."""


class LocalDrill:
    """One run under fire."""

    def __init__(
        self, out: Path, name: str, overrides: Sequence[str], rounds: int, faults: int, rng: random.Random
    ) -> None:
        self.folder, self.left, self.rng, self.rounds = out / "digits" / name, faults, rng, rounds
        self.restarts = 0
        self.faults: Counter[str] = Counter()
        self._first = command(
            "run", *SCENARIO, *overrides, "--out", str(out), "--run-id", name, "--quiet", "--workers", "2"
        )
        self._again = command("resume", str(self.folder), "--quiet", "--workers", "2")

    def play(self) -> None:
        """To the end of the run; RuntimeError if it fails or hangs."""
        process = self._start(self._first)
        try:
            while (ended := self._strike(process)) is None:
                if process.poll() is not None:
                    self.restarts = 0
                    process = self._start(self._again if (self.folder / "scenario.toml").is_file() else self._first)
            if ended:
                raise RuntimeError(f"{self.folder}: exit code {ended} after {dict(self.faults)}")
        finally:
            process.kill()
            process.wait()

    @staticmethod
    def _start(words: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(words, stdout=subprocess.DEVNULL)

    def _strike(self, process: subprocess.Popen[bytes]) -> int | None:
        """Wait for a moment, then do harm; the exit code if the run has ended, None if it must be looked after."""
        if not self.left:
            return self._strike_last(process)
        try:
            return process.wait(self.rng.uniform(*PAUSE_SECONDS))
        except subprocess.TimeoutExpired:
            pass
        what = self.rng.choices((KILL, STOP, FORK_SERVER, COORDINATOR), (5, 1, 2, 4))[0]
        if what == FORK_SERVER and self.restarts == MOST_RESTARTS:
            what = KILL
        with contextlib.suppress(psutil.Error):
            victims = workers_of(psutil.Process(process.pid))
            if what == COORDINATOR:
                process.kill()
                process.wait()
            elif not victims:
                return None
            elif what == FORK_SERVER:
                self.restarts += 1
                victims[0].parent().kill()
            else:
                self.rng.choice(victims).send_signal(signal.SIGKILL if what == KILL else signal.SIGSTOP)
            self.left -= 1
            self.faults[what] += 1
        return None

    def _strike_last(self, process: subprocess.Popen[bytes]) -> int | None:
        """Kill the coordinator once more when all rounds are committed, if it has not ended by then."""
        deadline = time.monotonic() + STUCK_SECONDS
        while process.poll() is None and not self.faults[AFTER]:
            if len(chain(self.folder)) == self.rounds:
                time.sleep(self.rng.uniform(0.0, 1.0))
                if process.poll() is None:
                    process.kill()
                    process.wait()
                    self.faults[AFTER] += 1
                    return None
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(process.args, STUCK_SECONDS)
            time.sleep(0.01)
        return process.wait(STUCK_SECONDS)
