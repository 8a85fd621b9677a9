"""Commands whose output goes nowhere: readers that have gone, full disks, streams that were closed before the start."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import warm
from tests.remains import Watch
from tests.scenarios.runs import QUICK, committed, fedbr

RUN = ["run", "digits", *QUICK, "method=fedavg", "rounds.max=2", "--workers", "2", "--run-id", "a"]
COMPARE = ["compare", "digits", *QUICK, "rounds.max=1", "method=fedavg,fedprox", "--workers", "2"]
FULL = "fedbr: stdout cannot be written: No space left on device\n"


@contextmanager
def without_reader() -> Iterator[int]:
    """A pipe to write to, whose reader has gone."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        yield writing
    finally:
        os.close(writing)


@contextmanager
def full() -> Iterator[int]:
    """A device on which there is never room."""
    with Path("/dev/full").open("wb") as device:
        yield device.fileno()


def run(words: list[str], output: int, errors: Path) -> tuple[int, str]:
    """(exit code, stderr) of a command with this stdout."""
    with errors.open("wb+") as file:
        code = warm.start(words, output, file.fileno()).wait()
        file.seek(0)
        return code, file.read().decode()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("list servers", 0),
        ("check digits", 0),
        ("--help", 0),
        ("run digits train.lr=-1", 2),
        ("report {tmp}/nothing", 2),
    ],
)
def test_a_reader_that_has_gone_changes_no_exit_code_and_a_full_disk_that_of_a_list(
    words: str, code: int, tmp_path: Path
) -> None:
    command = words.format(tmp=tmp_path).split()
    with without_reader() as output:
        quiet = run(command, output, tmp_path / "errors")
    assert quiet[0] == code
    assert (quiet[1] == "") == (code == 0)
    with full() as output:
        assert run(command, output, tmp_path / "errors") == ((3, FULL) if code == 0 else quiet)


@pytest.mark.usefixtures("reports")
@pytest.mark.parametrize(
    ("words", "place"),
    [
        pytest.param(RUN, "digits/a", id="run", marks=pytest.mark.long),
        pytest.param([*RUN, "--json"], "digits/a", id="run --json"),
        pytest.param([*COMPARE, "--run-id", "a"], "digits/a/fedprox", id="compare", marks=pytest.mark.long),
        pytest.param(
            [*COMPARE, "--run-id", "a", "--parallel", "2"],
            "digits/a/fedprox",
            id="at the same time",
            marks=pytest.mark.long,
        ),
    ],
)
def test_runs_go_on_without_anybody_who_reads_their_progress_or_result(
    words: list[str], place: str, tmp_path: Path, watch: Watch
) -> None:
    with without_reader() as output:
        code = warm.start([*words, "--out", str(tmp_path)], output, output, env=watch.environment).wait()
    assert code == 0
    assert watch.remains() == []
    assert committed(tmp_path / place) == (2 if words[0] == "run" else 1)
    assert (tmp_path / "digits" / "a" / "report.html").is_file()


@pytest.mark.long
@pytest.mark.usefixtures("reports")
def test_a_run_that_cannot_print_its_summary_has_finished_and_one_that_owes_json_has_not_delivered_it(
    tmp_path: Path,
) -> None:
    words, folder = [*RUN, "--quiet", "--out", str(tmp_path)], tmp_path / "digits" / "a"
    with full() as output:
        assert run(words, output, tmp_path / "errors") == (0, FULL)
        assert (committed(folder), (folder / "report.html").is_file()) == (2, True)
        assert run(["resume", str(folder)], output, tmp_path / "errors") == (0, FULL)
        assert run(["resume", str(folder), "--json"], output, tmp_path / "errors") == (3, FULL)
    ended = warm.run(["resume", str(folder), "--json"])
    assert (ended.returncode, json.loads(ended.stdout)["rounds"], ended.stderr) == (0, 2, "")
    with without_reader() as output:
        assert run(["resume", str(folder), "--json"], output, tmp_path / "errors") == (0, "")


def test_a_live_table_whose_terminal_is_closed_ends_no_run(tmp_path: Path, watch: Watch) -> None:
    ours, theirs = pty.openpty()
    with warm.start([*RUN, "--out", str(tmp_path)], theirs, theirs, env=watch.environment) as process:
        os.close(theirs)
        assert b"\x1b[" in os.read(ours, 1 << 16)
        os.close(ours)
        assert process.wait() == 0
    assert (watch.remains(), committed(tmp_path / "digits" / "a")) == ([], 2)


@pytest.mark.long
def test_streams_that_were_closed_before_the_start_are_no_failure_and_no_file_takes_their_places(
    tmp_path: Path,
) -> None:
    shell = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *fedbr(*RUN, "--out", str(tmp_path), "--json")]
    assert subprocess.run(shell, check=False).returncode == 0
    assert committed(tmp_path / "digits" / "a") == 2
    shell = ["sh", "-c", '"$@" >&-', "sh", *fedbr("list", "servers")]
    ended = subprocess.run(shell, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
