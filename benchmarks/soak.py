"""A long run of the smallest scenario: does anything grow that should not?

``python benchmarks/soak.py`` plays 500 rounds of 200 clients of ``digits`` (FedBR) and looks, as it goes, at the memory
of the coordinator and of each worker, at their open files, and at the ledger. At the end it compares the last tenth of
the rounds with those around round 50, and looks for processes, sockets and shared memory left behind. Exit code 1 if
memory has grown by more than a tenth, files by any, the ledger by more per round than before, or something is left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.harness import FEDBR, committed

POLL_SECONDS = 0.25
MOST_GROWTH = 1.10
WARM_ROUND, AROUND = 50, 5
"""Rounds 45 to 55 are compared with the end."""
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Sample:
    """The state of a run at one moment."""

    round: int
    """The last one committed."""
    rss: dict[str, int]
    """Bytes by process."""
    files: int
    """Open ones of all processes."""
    ledger: int
    """Bytes of the database."""
    log: int
    """Bytes of its write-ahead log."""


def sample(process: psutil.Process, folder: Path) -> Sample | None:
    """None when the run is about to begin or to end."""
    ledger = folder / "ledger.sqlite"
    with contextlib.suppress(psutil.Error, FileNotFoundError, StopIteration):
        launcher = next(iter(process.children()))
        processes = {"coordinator": process, "launcher": launcher}
        for number, worker in enumerate(sorted(launcher.children(), key=lambda one: one.pid)):
            processes[f"worker {number}"] = worker
        log = ledger.with_name("ledger.sqlite-wal")
        return Sample(
            committed(folder),
            {name: one.memory_info().rss for name, one in processes.items()},
            sum(one.num_fds() for one in processes.values()),
            ledger.stat().st_size,
            log.stat().st_size if log.is_file() else 0,
        )
    return None


def play(words: Sequence[str], folder: Path) -> list[Sample]:
    """The samples of one run, in order. CalledProcessError if it fails."""
    samples: list[Sample] = []
    with subprocess.Popen([*FEDBR, *words], stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            state = sample(psutil.Process(process.pid), folder)
            if state is not None and state.round:
                samples.append(state)
            time.sleep(POLL_SECONDS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(words))
    return samples


def remains() -> set[str]:
    """Folders of sockets, shared memory and processes of runs, wherever they come from."""
    paths = {str(path) for path in Path(tempfile.gettempdir()).glob("fedbr-*")}
    paths |= {str(path) for path in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.is_dir() else set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "edge.runtime.fork_server" in process.cmdline():
                paths.add(f"process {process.pid}")
    return paths


def judge(samples: Sequence[Sample], rounds: int, left: set[str]) -> dict[str, object]:
    """The result, and whether it is within bounds."""
    warm = [one for one in samples if abs(one.round - WARM_ROUND) <= AROUND]
    late = [one for one in samples if one.round > 0.9 * rounds]
    half = next(one for one in samples if one.round >= rounds / 2)
    tenths = [[one for one in samples if tenth < 10 * one.round / rounds <= tenth + 1] for tenth in range(10)]
    names = sorted(set.intersection(*(set(one.rss) for one in warm)))

    def mib(some: Sequence[Sample], name: str) -> float:
        return round(statistics.median(one.rss[name] for one in some if name in one.rss) / 2**20, 1)

    growth = {name: round(mib(late, name) / mib(warm, name), 3) for name in names}
    files = [max(one.files for one in some) for some in (warm, late)]
    per_round = [
        (last.ledger - first.ledger) / (last.round - first.round) for first, last in ((warm[0], half), (half, late[-1]))
    ]
    return {
        "rounds": rounds,
        "samples": len(samples),
        "mib_at_round_50": {name: mib(warm, name) for name in names},
        "mib_at_the_end": {name: mib(late, name) for name in names},
        "coordinator_mib_by_tenths": [mib(some, "coordinator") for some in tenths if some],
        "growth": growth,
        "open_files": files,
        "ledger_bytes_per_round": [round(nbytes) for nbytes in per_round],
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
    options = parser.parse_args()
    before = remains()
    with tempfile.TemporaryDirectory(prefix="soak-") as out:
        clients = (f"data.clients={options.clients}", f"rounds.participants={options.clients}")
        length = (f"rounds.max={options.rounds}", "stop.target_accuracy=1.0", "train.local_epochs=1")
        words = ["run", "digits", *clients, *length, *options.overrides, "--workers", str(options.workers), "--quiet"]
        begun = time.monotonic()
        samples = play([*words, "--out", out, "--run-id", "soak"], Path(out, "digits", "soak"))
        seconds = time.monotonic() - begun
    result = judge(samples, options.rounds, remains() - before)
    print(json.dumps({"seconds": round(seconds), **result}, indent=2))
    return 0 if result["good"] else 1


if __name__ == "__main__":
    sys.exit(main())
