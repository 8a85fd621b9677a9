"""A long run of the smallest scenario: does anything grow that should not?

``python benchmarks/soak.py`` plays 500 rounds of 200 clients of ``digits`` (FedBR) and looks, as it goes, at the memory
of the coordinator and of each worker, at their open files, and at the ledger. At the end it compares the last tenth of
the rounds with those around round 50, and looks for processes and files left behind: memory may grow
by a tenth, the ledger by a tenth more per round than before, open files by none, and nothing may be left.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.chaos_parts.drill import processes_in
from benchmarks.harness import FEDBR, MIB, Line, Options, at_most, committed, main

POLL_SECONDS = 0.25
MOST_GROWTH = 1.10
WARM_ROUND, AROUND = 50, 5
"""Rounds 45 to 55 are compared with the end."""


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


def play(words: Sequence[str], folder: Path, temporary: Path) -> list[Sample]:
    """The samples of one run, in order. CalledProcessError if it fails."""
    samples: list[Sample] = []
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen([*FEDBR, *words], stdout=subprocess.DEVNULL, env=environment) as process:
        while process.poll() is None:
            state = sample(psutil.Process(process.pid), folder)
            if state is not None and state.round:
                samples.append(state)
            time.sleep(POLL_SECONDS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(words))
    return samples


def soak(options: Options) -> Iterator[Line]:
    rounds, clients = (120, 20) if options.quick else (500, 200)
    temporary = options.folder / "tmp"
    temporary.mkdir()
    size = (f"data.clients={clients}", f"rounds.participants={clients}", f"rounds.max={rounds}")
    words = ("run", "digits", *size, "stop.target_accuracy=1.0", "train.local_epochs=1", "--workers", "2", "--quiet")
    folder = options.folder / "digits" / "soak"
    samples = play([*words, "--out", str(options.folder), "--run-id", folder.name], folder, temporary)
    options.details["samples"] = [asdict(each) for each in samples]
    warm = [one for one in samples if abs(one.round - WARM_ROUND) <= AROUND]
    late = [one for one in samples if one.round > 0.9 * rounds]
    half = next(one for one in samples if one.round >= rounds / 2)
    for name in sorted(set.intersection(*(set(one.rss) for one in warm))):
        begin, end = (statistics.median(one.rss[name] for one in some if name in one.rss) for some in (warm, late))
        sizes = f" ({begin / MIB:.1f} to {end / MIB:.1f} MiB)"
        yield at_most(f"memory of {name}, round {WARM_ROUND} to the end", end / begin, MOST_GROWTH, "x {:.3f}", sizes)
    files, later = (max(one.files for one in some) for some in (warm, late))
    yield at_most("open files at the end", later, files, "{:.0f}")
    early, last = ((b.ledger - a.ledger) / (b.round - a.round) for a, b in ((warm[0], half), (half, late[-1])))
    yield at_most("ledger, second half", last, MOST_GROWTH * early, "{:,.0f} B a round", f" ({early:,.0f} before)")
    yield at_most("write-ahead log", max(one.log for one in samples) / MIB, form="{:.1f} MiB")
    left = [*(path.name for path in temporary.iterdir()), *(str(each) for each in processes_in(temporary))]
    yield at_most("things left behind", len(left), 0, "{:.0f}", f" {' '.join(left)}")


if __name__ == "__main__":
    sys.exit(main(__doc__, {"soak": soak}))
