"""Runs under fire: workers and coordinators are killed and stopped at random moments, and the result must not change.

``python benchmarks/chaos.py`` plays each method once undisturbed, and once while faults strike: SIGKILL of a worker,
SIGSTOP of a worker (which must be found out), SIGKILL of the process that starts workers, SIGKILL of the coordinator
followed by ``fedbr resume``, also after the last commit. The moments are drawn from ``--seed``. At the end model and
hash chain of both runs are compared. Exit code 1 if any differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from coordinator.records.store import read

SCENARIO = ("digits", "stop.target_accuracy=1.0", "train.local_epochs=2")
METHODS = {
    "fedavg": ("method=fedavg",),
    "fedbr": ("method=fedbr",),
    "scaffold": ("method=scaffold", "train.lr=0.03", "train.clip=1.0"),
    "fedbuff": ("method=fedprox", "rounds.policy=fedbuff", "rounds.buffer=5"),
}
TWO = ("--quiet", "--workers", "2")
KILL, STOP, COORDINATOR = "worker killed", "worker stopped", "coordinator killed"
FORK_SERVER, AFTER = "fork server killed", "coordinator killed after its last commit"
MOST_RESTARTS = 3
"""Of the fork server in one process: it may die no more often."""
PAUSE_SECONDS = (0.2, 4.0)
"""Between two faults; a run takes some two seconds to start."""
STUCK_SECONDS = 120.0
"""In which a run under fire must commit a round or end, else it hangs."""


@dataclass
class Outcome:
    """How a method came through."""

    method: str
    same: bool
    rounds: int
    seconds: float
    faults: Counter[str] = field(default_factory=Counter)


def command(*words: str) -> list[str]:
    """``fedbr`` in a process of its own."""
    return [sys.executable, "-m", "scenarios.cli.main", *words]


def chain(folder: Path) -> list[str]:
    """The hashes of the rounds that are committed."""
    with contextlib.suppress(sqlite3.OperationalError):
        return [row["chain"] for row in read(folder / "ledger.sqlite", "SELECT chain FROM rounds ORDER BY round")]
    return []


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """Those that the run's launcher has started."""
    found = []
    for launcher in process.children():
        with contextlib.suppress(psutil.Error):
            found += launcher.children()
    return found


class Drill:
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
                self.rng.choice(sorted(victims, key=lambda one: one.pid)).send_signal(
                    signal.SIGKILL if what == KILL else signal.SIGSTOP
                )
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


def executed(words: Sequence[str]) -> None:
    """Run a command line to its end."""
    subprocess.run(command(*words), check=True, stdout=subprocess.DEVNULL)


def drill(
    method: str, rounds: int, faults: int, seed: int, undisturbed: Callable[[Sequence[str]], object] = executed
) -> Outcome:
    """One method, undisturbed (a command line that is run so) and under fire."""
    overrides = (*METHODS[method], f"rounds.max={rounds}")
    with tempfile.TemporaryDirectory(prefix="fedbr-chaos-") as scratch:
        out = Path(scratch)
        undisturbed(["run", *SCENARIO, *overrides, "--out", str(out), "--run-id", "calm", *TWO])
        fire = Drill(out, "fire", overrides, rounds, faults, random.Random(f"{seed} {method}"))
        begun = time.monotonic()
        fire.play()
        expected, found = chain(out / "digits" / "calm"), chain(fire.folder)
        assert len(expected) == rounds, (method, len(expected))
        return Outcome(method, found == expected, len(found), time.monotonic() - begun, fire.faults)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=250, help="enough for all faults to strike")
    parser.add_argument("--faults", type=int, default=26, help="per method")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", choices=METHODS, action="append", help="by default all")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    outcomes = []
    for method in asked.method or METHODS:
        outcome = drill(method, asked.rounds, asked.faults, asked.seed)
        outcomes.append(outcome)
        if not asked.json:
            survived = ", ".join(f"{count} x {what}" for what, count in sorted(outcome.faults.items()))
            verdict = "same chain" if outcome.same else "DIFFERENT CHAIN"
            print(f"{method}: {outcome.rounds} rounds, {survived}: {verdict} ({outcome.seconds:.0f} s)", flush=True)
    total = sum(sum(outcome.faults.values()) for outcome in outcomes)
    differing = sum(not outcome.same for outcome in outcomes)
    if asked.json:
        print(json.dumps({"faults": total, "differing": differing, "methods": [vars(one) for one in outcomes]}))
    else:
        print(f"{total} faults survived, {differing} differing hash chains")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
