"""What it costs to lose nothing, and how soon a run goes on.

``python benchmarks/safety.py [--parts cost,worker,resume]``

cost    wall time per round of cifar10-cnn with checkpoints and ledger over the same rounds without, in turns
worker  from a SIGKILL of the only worker to its task being handed to the one that replaces it, on cifar10-cnn
resume  from ``fedbr resume`` after a SIGKILL of the coordinator to the next committed round, on digits

Exit code 1 if a bar is missed. Needs CIFAR-10 for the first two.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from coordinator.records.checkpoints import CheckpointStore  # noqa: E402
from coordinator.records.store import Ledger, read  # noqa: E402
from coordinator.workers.message_sender import MessageSender  # noqa: E402
from scenarios.cli.main import run_command  # noqa: E402
from scenarios.run import runner  # noqa: E402

MOST_COST, MOST_WORKER_SECONDS, MOST_RESUME_SECONDS = 1.03, 3.0, 5.0
REPEATS = 3
ROUNDS = 8
"""Of cifar10-cnn; the first is a warm-up."""
LIMIT_SECONDS = 300.0


# --- a run that is watched from inside: python benchmarks/safety.py --inside whole|bare WORDS -------------------------


def inside(how: str, words: Sequence[str]) -> int:
    """``fedbr WORDS``, and at the end one JSON line: when its rounds were over, and when tasks were handed out."""
    rounds: list[float] = []
    handed: list[tuple[float, int]] = []
    spent = 0.0
    commit, send_task = CheckpointStore.commit, MessageSender.send_task

    def whole(self: CheckpointStore, *arguments: Any) -> None:
        nonlocal spent
        begun = time.monotonic()
        commit(self, *arguments)
        rounds.append(time.time())
        spent += time.monotonic() - begun

    def bare(self: CheckpointStore, pending: Any, *arguments: Any) -> None:
        if self.states is not None:
            self.states.committed.update(pending.record.states)
        rounds.append(time.time())

    def send(self: MessageSender, worker: Any, sequence: int, opened: Any) -> None:
        send_task(self, worker, sequence, opened)
        handed.append((time.time(), worker.number))

    with contextlib.ExitStack() as patched:
        patched.enter_context(mock.patch.object(MessageSender, "send_task", send))
        patched.enter_context(mock.patch.object(CheckpointStore, "commit", whole if how == "whole" else bare))
        if how == "bare":  # there is nothing to sum up, or to draw
            ended = {"run_dir": os.devnull, "stopped_by": "user"}
            patched.enter_context(mock.patch.object(runner, "summary", lambda *_: ended))
            patched.enter_context(mock.patch.object(CheckpointStore, "remove_orphans", lambda self: None))
            patched.enter_context(mock.patch.object(Ledger, "finish", lambda *_: None))
        run_command(list(words))
    print(json.dumps({"rounds": rounds, "handed": handed, "commit_seconds": spent}))
    return 0


def watched(how: str, *words: str) -> list[str]:
    """Such a run as a process."""
    return [sys.executable, __file__, "--inside", how, *words]


def cnn(out: Path, rounds: int, *more: str) -> list[str]:
    """Words of a run of cifar10-cnn."""
    length = (f"rounds.max={rounds}", "stop.target_accuracy=1.0")
    return ["run", "cifar10-cnn", *length, *more, "--json", "--out", str(out)]


# --- the parts --------------------------------------------------------------------------------------------------------


def cost(out: Path) -> tuple[float, str]:
    """Seconds per round with over without, and both."""
    seconds: dict[str, list[float]] = {"whole": [], "bare": []}
    share = []
    for _ in range(REPEATS):
        for how, found in seconds.items():
            done = subprocess.run(watched(how, *cnn(out, ROUNDS)), check=True, capture_output=True, text=True)
            told = json.loads(done.stdout.splitlines()[-1])
            found.append((told["rounds"][-1] - told["rounds"][0]) / (len(told["rounds"]) - 1))
            if how == "whole":
                share.append(told["commit_seconds"] / (told["rounds"][-1] - told["rounds"][0]))
    ratio = statistics.median(seconds["whole"]) / statistics.median(seconds["bare"])
    each = "; ".join(f"{how} " + ", ".join(f"{one:.3f}" for one in found) for how, found in seconds.items())
    return ratio, f"seconds per round: {each}; in commits {statistics.median(share):.2%} of the time"


def worker(out: Path) -> tuple[float, str]:
    """Median seconds until the task runs again, and all."""
    found = []
    for number in range(REPEATS):
        words = watched("whole", *cnn(out, 3, "--workers", "1", "--run-id", f"worker-{number}"))
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            victim = _first_worker(psutil.Process(process.pid), out / "cifar10-cnn" / f"worker-{number}")
            victim.send_signal(signal.SIGKILL)
            killed = time.time()
            assert process.stdout is not None
            told = json.loads(process.stdout.read().splitlines()[-1])
        (again, *_) = [at for at, number in told["handed"] if at > killed and number > 0]
        found.append(again - killed)
    return statistics.median(found), "seconds: " + ", ".join(f"{one:.2f}" for one in found)


def _first_worker(run: psutil.Process, folder: Path) -> psutil.Process:
    """The only worker of a run, once it has trained for a while."""
    _until(lambda: _rounds(folder) >= 1)
    time.sleep(0.5)
    (launcher,) = run.children()
    (found,) = launcher.children()
    return found


def resume(out: Path) -> tuple[float, str]:
    """Median seconds to the next round, and all."""
    found = []
    for number in range(REPEATS):
        folder = out / "digits" / f"resume-{number}"
        fedbr = [sys.executable, "-m", "scenarios.cli.main"]
        words = ["run", "digits", "stop.target_accuracy=1.0", "--quiet", "--out", str(out), "--run-id", folder.name]
        with subprocess.Popen([*fedbr, *words], stdout=subprocess.DEVNULL) as process:
            _until(lambda: _rounds(folder) >= 5)  # noqa: B023 - used at once
            process.kill()
        before, begun = _rounds(folder), time.monotonic()
        with subprocess.Popen([*fedbr, "resume", str(folder), "--quiet"], stdout=subprocess.DEVNULL) as process:
            _until(lambda: _rounds(folder) > before)  # noqa: B023
            found.append(time.monotonic() - begun)
            process.kill()
    return statistics.median(found), "seconds: " + ", ".join(f"{one:.2f}" for one in found)


def _rounds(folder: Path) -> int:
    with contextlib.suppress(sqlite3.OperationalError):
        return int(read(folder / "ledger.sqlite", "SELECT COUNT(*) AS n FROM rounds")[0]["n"])
    return 0


def _until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


PARTS = {"cost": (cost, MOST_COST), "worker": (worker, MOST_WORKER_SECONDS), "resume": (resume, MOST_RESUME_SECONDS)}


def main() -> int:
    if sys.argv[1:2] == ["--inside"]:
        return inside(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), metavar="cost,worker,resume")
    missed = 0
    with tempfile.TemporaryDirectory(prefix="safety-") as out:
        for name in parser.parse_args().parts.split(","):
            part, bar = PARTS[name]
            value, detail = part(Path(out))
            missed += value >= bar
            print(f"{name}: {value:.3f} (bar {bar:g}{', MISSED' if value >= bar else ''}); {detail}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
