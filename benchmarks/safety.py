"""What it costs to lose nothing, how soon a run goes on, and whether anything grows in a long one:
``python benchmarks/safety.py [--parts cost,worker]``.

cost    share of the rounds' wall time that is spent in commits, checkpoints and ledger, on cifar10-cnn
worker  from a SIGKILL of the only worker to its task being handed to the one that replaces it, on cifar10-cnn
resume  from ``fedbr resume`` after a SIGKILL of the coordinator to the next committed round, on digits
soak    500 rounds of 200 clients of digits (FedBR), only if it is named

Needs CIFAR-10 for the first two. The soak looks, as it goes, at the memory of the coordinator and of each worker, at
their open files, and at the ledger. At the end it compares the last tenth of the rounds with those around round 50, and
looks for processes and files left behind: memory may grow by a tenth, the ledger by a tenth more per round than before,
open files by none, and nothing may be left.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.harness import FEDBR, MIB, Line, Options, answer, at_most, committed, main, processes_in, wait_until
from coordinator.records.checkpoints import CheckpointStore
from coordinator.workers.message_sender import MessageSender
from scenarios.cli.main import run_command

INSIDE = "--inside"
ROUNDS, REPEATS = 8, 3
"""Rounds of cifar10-cnn; the first is a warm-up."""
POLL_SECONDS = 0.25
MOST_GROWTH = 1.10
WARM_ROUND, AROUND = 50, 5
"""Rounds 45 to 55 are compared with the end."""


def inside(words: Sequence[str]) -> None:
    """``fedbr WORDS``, and at the end one JSON line: when its rounds were over, and when tasks were handed out."""
    rounds: list[float] = []
    handed: list[tuple[float, int]] = []
    seconds: list[float] = []
    commit, send_tasks = CheckpointStore.commit, MessageSender.send_tasks

    def watch_commit(self: CheckpointStore, *arguments: Any) -> None:
        begun = time.time()
        commit(self, *arguments)
        rounds.append(time.time())
        seconds.append(rounds[-1] - begun)

    def watch_tasks(self: MessageSender, worker: Any, opened: Any) -> None:
        send_tasks(self, worker, opened)
        handed.append((time.time(), worker.number))

    with (
        mock.patch.object(MessageSender, "send_tasks", watch_tasks),
        mock.patch.object(CheckpointStore, "commit", watch_commit),
    ):
        run_command(list(words))
    print(json.dumps({"rounds": rounds, "handed": handed, "commits": seconds}))


def cifar(options: Options, *more: str) -> list[str]:
    """A run of cifar10-cnn as a process that is watched from inside."""
    length = (f"rounds.max={3 if options.quick else ROUNDS}", "stop.target_accuracy=1.0")
    words = ("run", "cifar10-cnn", *length, *more, "--json", "--out", str(options.folder))
    return [sys.executable, __file__, INSIDE, *words]


def cost(options: Options) -> Iterator[Line]:
    def share() -> float:
        run = answer(cifar(options))
        return float(sum(run["commits"][1:]) / (run["rounds"][-1] - run["rounds"][0]))

    median = statistics.median(share() for _ in range(options.cycles(REPEATS)))
    yield at_most("time of rounds that is spent in commits", median, 0.03, "{:.2%}")


def worker(options: Options) -> Iterator[Line]:
    def seconds() -> float:
        folder = options.folder / "cifar10-cnn" / f"worker-{time.monotonic_ns()}"
        words = cifar(options, "--workers", "1", "--run-id", folder.name)
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            wait_until(lambda: committed(folder) >= 1)
            time.sleep(0.5)  # a visit is under way
            (launcher,) = psutil.Process(process.pid).children()
            (victim,) = launcher.children()
            victim.kill()
            killed = time.time()
            assert process.stdout is not None
            run = json.loads(process.stdout.read().splitlines()[-1])
        return float(next(at for at, number in run["handed"] if at > killed and number > 0) - killed)

    median = statistics.median(seconds() for _ in range(options.cycles(REPEATS)))
    yield at_most("a killed worker's task is handed to another", median, 3.0, "{:.2f} s")


def resume(options: Options) -> Iterator[Line]:
    def seconds() -> float:
        folder = options.folder / "digits" / f"resume-{time.monotonic_ns()}"
        words = ["run", "digits", "stop.target_accuracy=1.0", "--quiet", "--out", str(options.folder)]
        with subprocess.Popen([*FEDBR, *words, "--run-id", folder.name], stdout=subprocess.DEVNULL) as process:
            wait_until(lambda: committed(folder) >= 5)
            process.kill()
        before, begun = committed(folder), time.monotonic()
        with subprocess.Popen([*FEDBR, "resume", str(folder), "--quiet"], stdout=subprocess.DEVNULL) as process:
            wait_until(lambda: committed(folder) > before)
            process.kill()
            return time.monotonic() - begun

    median = statistics.median(seconds() for _ in range(options.cycles(REPEATS)))
    yield at_most("resumed, until the next round is committed", median, 5.0, "{:.2f} s")


# --- a long run -------------------------------------------------------------------------------------------------------


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


def soak(options: Options) -> Iterator[Line]:
    """The growth of everything from around round 50 to the last tenth of the rounds, and what is left behind."""
    rounds, clients = (120, 20) if options.quick else (500, 200)
    temporary = options.folder / "tmp"
    temporary.mkdir()
    size = (f"data.clients={clients}", f"rounds.participants={clients}", f"rounds.max={rounds}")
    words = ("run", "digits", *size, "stop.target_accuracy=1.0", "train.local_epochs=1", "--workers", "2", "--quiet")
    folder = options.folder / "digits" / "soak"
    command = [*FEDBR, *words, "--out", str(options.folder), "--run-id", folder.name]
    samples: list[Sample] = []
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as process:
        while process.poll() is None:
            state = sample(psutil.Process(process.pid), folder)
            if state is not None and state.round:
                samples.append(state)
            time.sleep(POLL_SECONDS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
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


PARTS = {"cost": cost, "worker": worker, "resume": resume, "soak": soak}

if __name__ == "__main__":
    if sys.argv[1:2] == [INSIDE]:
        inside(sys.argv[2:])
    else:
        sys.exit(main(__doc__, PARTS, on_request=("soak",)))
