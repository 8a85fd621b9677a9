"""Runs and run sets are found and listed with their state, whatever their folders hold."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from edge.protocol.files import folder_lock
from scenarios.cli.main import run_command
from scenarios.config.errors import ScenarioError
from scenarios.studies import run_list
from scenarios.studies.run_list import RunEntry, entries, half_made
from tests.ledgers import made_run

FEDAVG = 'method = "fedavg"\nseed = 3\n'


def summary(folder: Path, **values: object) -> Path:
    """The run with other values in its summary."""
    with contextlib.closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        ((text,),) = db.execute("SELECT value FROM meta WHERE key = 'summary'")
        db.execute("UPDATE meta SET value = ? WHERE key = 'summary'", (json.dumps(json.loads(text) | values),))
        db.commit()
    return folder


def unfinished(folder: Path) -> Path:
    """The run as it is while it works, or after a kill."""
    with contextlib.closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        db.execute("DELETE FROM meta WHERE key = 'summary'")
        db.commit()
    return folder


def run_set(folder: Path, kind: str = "sweep", mark: str = "study.json") -> Path:
    folder.mkdir(parents=True)
    (folder / mark).write_text(json.dumps({"study": kind}))
    return folder


def the(folder: Path) -> RunEntry:
    (found,) = entries([folder])
    return found


def test_a_run_is_listed_with_what_its_ledger_says(tmp_path: Path) -> None:
    folder = summary(made_run(tmp_path / "digits" / "a", (0.25, 0.5), FEDAVG), method="fedavg", seed=3, accuracy=0.5)
    found = the(tmp_path)
    assert (found.folder, found.kind, found.scenario, found.method, found.seed) == (
        folder,
        "run",
        "digits",
        "fedavg",
        3,
    )
    assert (found.state, found.stopped_by, found.rounds, found.accuracy) == ("finished", "rounds", 2, 0.5)
    assert found.nbytes == sum(file.stat().st_size for file in folder.iterdir())
    assert (found.state_text, found.problem) == ("finished, round limit", "")


def test_the_state_tells_runs_apart_that_ended_were_stopped_killed_or_work(tmp_path: Path) -> None:
    killed = unfinished(made_run(tmp_path / "killed", (0.25, None), FEDAVG))
    assert (the(killed).state, the(killed).rounds, the(killed).accuracy, the(killed).method) == (
        *("unfinished", 2, 0.25, "fedavg"),
    )
    stopped = summary(made_run(tmp_path / "stopped", (0.5,), FEDAVG), stopped_by="time_limit")
    assert (the(stopped).state, the(stopped).state_text) == ("stopped", "stopped at its time limit")
    with folder_lock(killed), folder_lock(stopped):
        assert [each.state for each in entries([tmp_path])] == ["running", "running"]
    assert summary(stopped, stopped_by="bytes_up") and the(stopped).state_text == "finished, budget: bytes up"


def test_a_run_that_was_killed_before_its_first_round_is_listed(tmp_path: Path) -> None:
    (tmp_path / "new" / "logs").mkdir(parents=True)
    (tmp_path / "new" / "scenario.toml").write_text(FEDAVG)
    assert (the(tmp_path).state, the(tmp_path).rounds, the(tmp_path).method) == ("unfinished", 0, "fedavg")
    sqlite3.connect(tmp_path / "new" / "ledger.sqlite").close()  # its creation has begun
    assert (the(tmp_path).state, the(tmp_path).rounds) == ("unfinished", 0)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "scenario.toml").write_text(FEDAVG)  # a user's own file, and no run
    assert len(entries([tmp_path])) == 1


def test_a_run_set_is_one_entry_with_its_runs_and_counts(tmp_path: Path) -> None:
    folder = run_set(tmp_path / "digits" / "sweep-lr")
    made_run(folder / "a", (0.5,), FEDAVG)
    unfinished(made_run(folder / "b", (0.5,), 'method = "fedbr"\n'))
    found = the(tmp_path)
    assert (found.kind, found.scenario, found.state, found.methods) == (
        "sweep",
        "digits",
        "unfinished",
        "fedavg, fedbr",
    )
    assert found.state_text == "sweep, 2 runs: 1 finished, 1 unfinished"
    assert [(run.folder.name, run.scenario, run.state) for run in found.runs] == [
        ("a", "digits", "finished"),
        ("b", "digits", "unfinished"),
    ]
    assert found.nbytes == sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    with folder_lock(folder):
        assert the(tmp_path).state == "running"
    empty = run_set(tmp_path / "none", "compare", "compare.json")
    assert (the(empty).state, the(empty).state_text) == ("unfinished", "comparison without runs")


def test_scratch_folders_and_links_are_passed_over(tmp_path: Path) -> None:
    made_run(tmp_path / ".a.new-abcdefg1" / "new", (0.5,), FEDAVG)
    (tmp_path / "link").symlink_to(made_run(tmp_path / "a", (0.5,), FEDAVG))
    assert [each.folder.name for each in entries([tmp_path])] == ["a"]
    assert half_made([tmp_path]) == [tmp_path / ".a.new-abcdefg1"]


# --- folders from anywhere --------------------------------------------------------------------------------------------


def test_no_such_folder_and_too_many_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ScenarioError, match="nowhere: no such folder"):
        entries([tmp_path / "nowhere"])
    monkeypatch.setattr(run_list, "MOST_FOLDERS", 3)
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    with pytest.raises(ScenarioError, match="more than 3 folders are below it; name one nearer to the runs"):
        entries([tmp_path])


def no_database(folder: Path) -> None:
    (folder / "ledger.sqlite").write_bytes(b"no database" * 1000)


def device(folder: Path) -> None:
    (folder / "ledger.sqlite-wal").symlink_to("/dev/zero")


def large_log(folder: Path) -> None:
    with (folder / "ledger.sqlite-wal").open("wb") as file:
        file.truncate(run_list.MOST_LOG_NBYTES + 1)


def terminal_codes(folder: Path) -> None:
    (folder / "scenario.toml").write_text('method = "a\\u001b[31m"\n')


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (no_database, "ledger.sqlite: file is not a database"),
        (device, "ledger.sqlite: ledger.sqlite-wal is not a regular file"),
        (large_log, "ledger.sqlite: its write-ahead log is too large to be read for a list"),
        (terminal_codes, "scenario.toml: method: has control characters"),
    ],
)
def test_what_is_wrong_with_a_folder_is_in_its_line(
    spoil: Callable[[Path], None], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made_run(tmp_path / "good", (0.5,), FEDAVG)
    spoil(made_run(tmp_path / "bad", (0.5,), FEDAVG))
    assert run_command(["ls", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert [line for line in lines if line.startswith(f"{tmp_path / 'bad'} ") and line.endswith(f"damaged: {problem}")]
    assert [line for line in lines if line.endswith("finished, round limit")]


def test_the_mark_of_a_run_set_that_cannot_be_read_is_said_beside_its_runs(tmp_path: Path) -> None:
    folder = run_set(tmp_path / "set")
    made_run(folder / "a", (0.5,), FEDAVG)
    (folder / "study.json").write_text("{")
    assert (the(tmp_path).state, the(tmp_path).kind, len(the(tmp_path).runs)) == ("damaged", "study", 1)
    assert the(tmp_path).problem.startswith("study.json: Expecting property name")
    shutil.rmtree(folder / "a")
    assert entries([tmp_path]) == []  # anybody's file of this name


# --- the command ------------------------------------------------------------------------------------------------------
