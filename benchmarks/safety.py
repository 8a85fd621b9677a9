"""What it costs to lose nothing, and how soon a run goes on: ``python benchmarks/safety.py [--parts cost,worker]``.

cost    share of the rounds' wall time that is spent in commits, checkpoints and ledger, on cifar10-cnn
worker  from a SIGKILL of the only worker to its task being handed to the one that replaces it, on cifar10-cnn
resume  from ``fedbr resume`` after a SIGKILL of the coordinator to the next committed round, on digits

Needs CIFAR-10 for the first two.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.harness import FEDBR, Line, Options, answer, at_most, committed, in_turns, main, wait_until  # noqa: E402
from coordinator.records.checkpoints import CheckpointStore  # noqa: E402
from coordinator.workers.message_sender import MessageSender  # noqa: E402
from scenarios.cli.main import run_command  # noqa: E402

INSIDE = "--inside"
ROUNDS, REPEATS = 8, 3
"""Rounds of cifar10-cnn; the first is a warm-up."""


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

    shares = in_turns({"share": share}, options.cycles(REPEATS))
    yield at_most("time of rounds that is spent in commits", shares.median("share"), 0.03, "{:.2%}")


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

    turns = in_turns({"kill": seconds}, options.cycles(REPEATS))
    yield at_most("a killed worker's task is handed to another", turns.median("kill"), 3.0, "{:.2f} s")


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

    turns = in_turns({"resume": seconds}, options.cycles(REPEATS))
    yield at_most("resumed, until the next round is committed", turns.median("resume"), 5.0, "{:.2f} s")


if __name__ == "__main__":
    if sys.argv[1:2] == [INSIDE]:
        inside(sys.argv[2:])
    else:
        sys.exit(main(__doc__, {"cost": cost, "worker": worker, "resume": resume}))
