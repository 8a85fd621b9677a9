"""A long run of the smallest scenario: does anything grow that should not?

``python benchmarks/soak.py`` plays 500 rounds of 200 clients of ``digits`` and looks, as it goes, at the memory of the
coordinator and of each worker, at their open files, and at the ledger. At the end it compares the last tenth of the
rounds with those around round 50, and looks for processes, sockets and shared memory left behind. Exit code 1 if
memory has grown by more than a tenth, files by any, the ledger by more per round than before, or something is left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from coordinator.records.store import read

POLL_SECONDS = 0.25
MOST_GROWTH = 1.10
WARM_ROUND, AROUND = 50, 5
"""Rounds 45 to 55 are what the end is compared with."""
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Sample:
    """What was seen at one moment."""

    round: int
    """The last one committed."""
    rss: dict[str, int]
    """Bytes, by process."""
    files: int
    """Open ones, of all processes."""
    ledger: int
    """Bytes of the database."""
    log: int
    """And of its write-ahead log."""


def take(process: psutil.Process, folder: Path) -> Sample | None:
    """A sample of a run under way; None before its first round, and when it is about to end."""
    ledger = folder / "ledger.sqlite"
    with contextlib.suppress(sqlite3.OperationalError, psutil.Error, FileNotFoundError, StopIteration):
        rounds = int(read(ledger, "SELECT COUNT(*) AS n FROM rounds")[0]["n"])
        launcher = next(iter(process.children()))
        workers = sorted(launcher.children(), key=lambda one: one.pid)
        everyone = {"coordinator": process, "launcher": launcher}
        everyone |= {f"worker {number}": worker for number, worker in enumerate(workers)}
        log = ledger.with_name("ledger.sqlite-wal")
        return Sample(
            rounds,
            {name: one.memory_info().rss for name, one in everyone.items()},
            sum(one.num_fds() for one in everyone.values()),
            ledger.stat().st_size,
            log.stat().st_size if log.is_file() else 0,
        )
    return None


def remains() -> set[str]:
    """Folders of sockets, shared memory and processes of runs, wherever they come from."""
    found = {str(path) for path in Path(tempfile.gettempdir()).glob("fedbr-*")}
    found |= {str(path) for path in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.is_dir() else set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "edge.runtime.fork_server" in process.cmdline():
                found.add(f"process {process.pid}")
    return found


def play(words: Sequence[str], folder: Path) -> list[Sample]:
    """The samples of one run, in order. CalledProcessError if it fails."""
    samples: list[Sample] = []
    with subprocess.Popen([sys.executable, "-m", "scenarios.cli.main", *words], stdout=subprocess.DEVNULL) as process:
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            sample = take(watched, folder)
            if sample is not None and sample.round:
                samples.append(sample)
            time.sleep(POLL_SECONDS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(words))
    return samples


def middle(samples: Iterable[Sample], what: str) -> float:
    """Median bytes of one process."""
    return statistics.median(sample.rss[what] for sample in samples if what in sample.rss)


def judge(samples: Sequence[Sample], rounds: int, left: set[str]) -> dict[str, object]:
    """What was seen, and whether it is within bounds."""
    warm = [one for one in samples if abs(one.round - WARM_ROUND) <= AROUND]
    late = [one for one in samples if one.round > 0.9 * rounds]
    names = sorted(set.intersection(*(set(one.rss) for one in warm)))
    growth = {name: middle(late, name) / middle(warm, name) for name in names}
    half = next(one for one in samples if one.round >= rounds / 2)
    per_round = (
        (half.ledger - warm[0].ledger) / (half.round - warm[0].round),
        (late[-1].ledger - half.ledger) / (late[-1].round - half.round),
    )
    files = (max(one.files for one in warm), max(one.files for one in late))
    return {
        "rounds": rounds,
        "samples": len(samples),
        "mib_at_round_50": {name: round(middle(warm, name) / 2**20, 1) for name in names},
        "mib_at_the_end": {name: round(middle(late, name) / 2**20, 1) for name in names},
        "coordinator_mib_by_tenths": [
            round(
                middle([one for one in samples if tenth < 10 * one.round / rounds <= tenth + 1], "coordinator") / 2**20,
                1,
            )
            for tenth in range(10)
        ],
        "growth": {name: round(value, 3) for name, value in growth.items()},
        "open_files": files,
        "ledger_bytes_per_round": tuple(round(value) for value in per_round),
        "write_ahead_log_bytes": max(one.log for one in samples),
        "left": sorted(left),
        "good": max(growth.values()) <= MOST_GROWTH
        and files[1] <= files[0]
        and per_round[1] <= MOST_GROWTH * per_round[0]
        and not left,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500, help="at least 200")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    asked = parser.parse_args()
    before = remains()
    with tempfile.TemporaryDirectory(prefix="soak-") as out:
        clients = (f"data.clients={asked.clients}", f"rounds.participants={asked.clients}")
        length = (f"rounds.max={asked.rounds}", "stop.target_accuracy=1.0", "train.local_epochs=1")
        words = ["run", "digits", *clients, *length, *asked.overrides, "--workers", str(asked.workers), "--quiet"]
        begun = time.monotonic()
        samples = play([*words, "--out", out, "--run-id", "soak"], Path(out, "digits", "soak"))
        seconds = time.monotonic() - begun
    seen = judge(samples, asked.rounds, remains() - before)
    print(json.dumps({"seconds": round(seconds), **seen}, indent=2))
    return 0 if seen["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
