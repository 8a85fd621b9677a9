"""Small runs of the shipped scenario on digits, in this process or in one of their own."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from coordinator.records.store import read
from coordinator.workers.launcher import WorkerLauncher
from scenarios.cli import main
from scenarios.config.load import Loaded, load
from scenarios.config.overrides import parse_all
from scenarios.run import runner
from scenarios.run.host import Host
from scenarios.run.run_folder import RunFolder
from tests import warm

QUICK = ("train.local_epochs=1", "stop.target_accuracy=1.0")
AMONG_UPDATES = ("coordinator.rounds.pool_trainer:PoolTrainer.validate", "before", 8)
"""One update of the third round has been accumulated."""


def never() -> bool:
    """Nobody asks for an end."""
    return False


def changed(words: Sequence[str], *overrides: str) -> list[str]:
    """Words of a command line with other values of some keys, of which a command takes one each."""
    keys = {override.partition("=")[0] for override in overrides}
    return [*(word for word in words if word.partition("=")[0] not in keys), *overrides]


def fedbr(*words: str) -> list[str]:
    """A command line."""
    return [sys.executable, "-m", "scenarios.cli.main", *words]


def killed(instant: tuple[str, str, int], *words: str) -> None:
    """Run a command line whose process kills itself at an instant, see `tests.scenarios.meddler`."""
    ended = warm.run(words, meddler=("kill", *map(str, instant)))
    assert (ended.returncode, ended.stderr) == (-signal.SIGKILL, ""), instant


def undisturbed(out: Path, launcher: WorkerLauncher, *overrides: str) -> Path:
    """The folder of a run that nobody disturbs."""
    return Path(run_with(out, launcher, 2, *overrides, run_id="whole")["run_dir"])


def opened(folder: Path, allow_code: bool = False) -> tuple[Loaded, str]:
    """The scenario of a run, and the device that it began on."""
    with RunFolder(folder).open_scenario("auto", allow_code) as found:
        return found


def resumed(folder: Path, launcher: WorkerLauncher) -> dict[str, Any]:
    """The summary of a run that has been taken up again."""
    loaded, device = opened(folder)
    return dict(runner.resume(loaded, Host(folder.parent, 2, device), folder, launcher, never))


def committed(folder: Path) -> int:
    """Rounds in the ledger."""
    return int(read(folder / "ledger.sqlite", "SELECT COUNT(*) FROM rounds")[0][0])


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The message of a command line that must be refused, without its ``fedbr:``."""
    before = set(psutil.Process().children(recursive=True))
    assert main.run_command(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert set(psutil.Process().children(recursive=True)) <= before
    return captured.err.splitlines()[-1].removeprefix("fedbr: ")


def check_message(message: str, expected: str) -> None:
    """Check that a message is the expected one, of which " .." at the end stands for any rest."""
    if expected.endswith(" .."):
        expected = expected.removesuffix(" ..")
        message = message[: len(expected)]
    assert message == expected


def run_with(
    out: Path, launcher: WorkerLauncher, workers: int, *overrides: str, run_id: str | None = None
) -> dict[str, Any]:
    """The summary of a run with so many workers."""
    host = Host(out, workers, "cpu", run_id or f"with-{workers}")
    return dict(runner.run(load("digits", parse_all([*QUICK, *overrides])), host, launcher, never, True))


def killed_and_resumed(
    out: Path, launcher: WorkerLauncher, instant: tuple[str, str, int], *overrides: str, workers: int = 2
) -> Path:
    """The folder of a run that is killed at an instant (`meddled`), and taken up again."""
    words = (
        "run",
        "digits",
        *QUICK,
        *overrides,
        "--workers",
        str(workers),
        "--quiet",
        "--out",
        str(out),
        "--run-id",
        "cut",
    )
    killed(instant, *words)
    return Path(resumed(out / "digits" / "cut", launcher)["run_dir"])
