"""However a run ends, it leaves its folder and nothing else: no process, no socket, no temporary file, no lock."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from coordinator.records.store import read
from coordinator.rounds.run import RunFailed
from coordinator.workers.task import PoolError
from scenarios.cli.main import run_command
from scenarios.run import run_problems
from tests import warm
from tests.crossed import every
from tests.remains import Watch
from tests.scenarios.runs import committed, fedbr

LONG = ("rounds.max=1000", "stop.target_accuracy=1.0")


class Started:
    """A run in a process of its own, executed as by a shell or, with ``warm_start``, forked (`tests.warm`)."""

    def __init__(
        self,
        watch: Watch,
        out: Path,
        overrides: tuple[str, ...],
        warm_start: bool = True,
        meddler: tuple[str, ...] = (),
    ) -> None:
        words = ["run", "digits", "method=fedavg", *overrides, "--workers", "2", "--out", str(out), "--run-id", "a"]
        self.watch, self.place, self.folder = watch, out / "digits", out / "digits" / "a"
        self.said = [out / "stdout", out / "stderr"]
        with self.said[0].open("w") as output, self.said[1].open("w") as errors:
            self.process = (
                warm.start([*words, "--json"], output.fileno(), errors.fileno(), meddler, env=watch.environment)
                if warm_start
                else subprocess.Popen(fedbr(*words, "--json"), stdout=output, stderr=errors, env=watch.environment)
            )

    def await_first_round(self) -> None:
        """Until it is in mid-run, with all that it might leave behind."""
        while not self._has_round():
            assert self.process.poll() is None
            time.sleep(0.01)
        assert len(self.watch.processes()) == 4  # with the process that starts workers, and two of these
        assert len(list(self.watch.temporary.glob("fedbr-*/pool"))) == 1

    def _has_round(self) -> bool:
        with contextlib.suppress(sqlite3.OperationalError):  # there is no ledger yet
            return bool(read(self.folder / "ledger.sqlite", "SELECT round FROM rounds"))
        return False

    def ended(self, seconds: float = 120) -> tuple[int, str, str]:
        """(exit code, stdout, stderr), when nothing of it is left."""
        deadline = time.monotonic() + seconds
        while (code := self.process.poll()) is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert self.watch.remains() == []
        output, errors = (path.read_text() for path in self.said)
        return code, output, errors

    def check_folder(self, ledger: tuple[str, ...] = ("ledger.sqlite",)) -> None:
        """There is one folder, without halves of files, and nobody holds it."""
        assert [path.name for path in self.place.iterdir()] == ["a"]
        assert list(self.folder.rglob("*.part")) == []
        assert sorted(path.name for path in self.folder.glob("ledger*")) == list(ledger)
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(handle)


@pytest.mark.parametrize(
    ("overrides", "stopped_by"),
    [(("rounds.max=1", "stop.target_accuracy=1.0"), "rounds"), (("stop.target_accuracy=0.15",), "target")],
)
def test_a_run_that_has_come_to_its_end(
    overrides: tuple[str, ...], stopped_by: str, watch: Watch, tmp_path: Path
) -> None:
    run = Started(watch, tmp_path, overrides)
    code, output, errors = run.ended()
    assert (code, json.loads(output)["stopped_by"], errors) == (0, stopped_by, "")
    run.check_folder()


def test_a_run_that_fails(watch: Watch, tmp_path: Path) -> None:
    run = Started(watch, tmp_path, (*LONG, "faults.max_norm=0.001"))
    code, output, errors = run.ended()
    assert (code, output) == (3, "")
    assert re.fullmatch(
        r"fedbr: update rejected: client \d, round 1: changes the model by a norm of [\d.]+, more than "
        rf"faults.max_norm = 0.001\nrun folder: {run.folder}\n",
        errors,
    ), errors
    run.check_folder()


@pytest.mark.parametrize("number", every(2, [signal.SIGINT, signal.SIGTERM]))
def test_a_run_that_the_user_stops(
    number: signal.Signals, watch: Watch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Started(watch, tmp_path, LONG, warm_start=number == signal.SIGTERM)
    run.await_first_round()
    assert run_command(["resume", str(run.folder)]) == 2
    assert "another process has locked this run" in capsys.readouterr().err
    os.kill(run.process.pid, number)
    code, output, errors = run.ended()
    summary = json.loads(output)
    assert (code, summary["stopped_by"], summary["rounds"], errors) == (4, "user", committed(run.folder), "")
    run.check_folder()


def test_a_run_that_is_killed(watch: Watch, tmp_path: Path) -> None:
    run = Started(watch, tmp_path, LONG, warm_start=False)
    run.await_first_round()
    run.process.kill()
    assert run.ended() == (-signal.SIGKILL, "", "")
    run.check_folder(("ledger.sqlite", "ledger.sqlite-shm", "ledger.sqlite-wal"))


def test_an_error_of_the_users_in_a_worker_is_told_without_the_workers_log() -> None:
    report = "evaluate: given up after 3 workers; the last: worker 0: ValueError: model.norm: the statistics"
    trace = "\n    File trainer.py, line 1"
    other = report.replace("model.norm", "a tensor")
    own = report.replace("model.norm: the statistics", "bad (/home/me/own.py, line 3)")
    expected = {
        report + trace: "evaluate: model.norm: the statistics",
        own + trace: "evaluate: ValueError: bad (/home/me/own.py, line 3)",
        other + trace: other + trace,
    }
    for message, told in expected.items():
        with pytest.raises(RunFailed) as caught, run_problems.named(Path("here")):
            raise PoolError(message)
        assert str(caught.value) == f"{told}\nrun folder: here"
