"""Runs that are really killed and taken up again with ``fedbr resume``, and runs that are made again to be verified."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from coordinator.records.store import read
from scenarios.cli.main import run_command
from scenarios.config.load import load
from scenarios.config.quantities import scenario_text
from scenarios.run.folder_files import run_lock
from scenarios.run.session import Session
from tests import warm
from tests.ledgers import made_run, virtual_rows
from tests.scenarios.runs import changed

DIGITS = ("run", "digits", "rounds.max=8", "stop.target_accuracy=1.0", "train.local_epochs=1", "--workers", "2")


CHANGE = f"torch {version('torch')} instead of 2.0.1"
MACHINE_CHANGED = "SELECT detail FROM host_events WHERE kind = 'machine_changed'"


def committed(folder: Path) -> int:
    with contextlib.suppress(sqlite3.OperationalError):
        return int(read(folder / "ledger.sqlite", "SELECT COUNT(*) FROM rounds")[0][0])
    return 0


def killed(out: Path, name: str, after: int, *overrides: str) -> Path:
    """A run whose coordinator gets SIGKILL when so many rounds are committed, wherever it is by then."""
    folder = out / "digits" / name
    with warm.start([*DIGITS, *overrides, "--out", str(out), "--run-id", name, "--quiet"]) as process:
        limit = time.monotonic() + 120
        while not (folder / "scenario.toml").exists() or committed(folder) < after:
            assert time.monotonic() < limit
            time.sleep(0.01)
    assert process.wait() == -signal.SIGKILL
    return folder


def moved(folder: Path) -> None:
    """As if the run had begun on a machine with an older torch."""
    known = json.loads((folder / "environment.json").read_text())
    known["computes"]["torch"] = "2.0.1"
    (folder / "environment.json").write_text(json.dumps(known))


@pytest.mark.usefixtures("warm_workers")
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    overrides = ("method=fedprox", "rounds.policy=fedbuff")
    assert run_command([*DIGITS, *overrides, "--out", str(tmp_path), "--run-id", "whole", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    folder = killed(tmp_path, "cut", 3, *overrides)
    moved(folder)
    assert run_command([*DIGITS, *overrides, "--out", str(tmp_path), "--run-id", "cut"]) == 2
    assert f"holds an unfinished run; to resume it: fedbr resume {folder}" in capsys.readouterr().err
    assert run_command(["resume", str(folder), "--workers", "1", "--json"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    assert resumed["rounds"] == whole["rounds"] == 8
    different = {key for key in whole if whole[key] != resumed[key]}
    assert different == {"run_dir", "wall_seconds"}
    assert virtual_rows(folder) == virtual_rows(tmp_path / "digits" / "whole")

    assert [row["detail"] for row in read(folder / "ledger.sqlite", MACHINE_CHANGED)] == [CHANGE]
    assert run_command(["resume", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == resumed
    assert run_command(["diff", "--again", str(folder), "--workers", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "run_dir": str(folder), "rounds": 8, "verified": 8, "same": True, "difference": None, "machine_change": CHANGE,
        "source_change": "",
    }  # fmt: skip


@pytest.mark.usefixtures("reports", "warm_workers")
def test_a_run_that_has_ended_says_so_again_whenever_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run_command([*changed(DIGITS, "rounds.max=1"), "--out", str(tmp_path / "runs"), "--run-id", "a", "--json"]) == 0
    )
    summary = json.loads(capsys.readouterr().out)
    folder = (tmp_path / "runs" / "digits").rename(tmp_path / "digits") / "a"
    page = folder / "report.html"
    ledger = (folder / "ledger.sqlite").read_bytes()
    call = Session.call
    monkeypatch.setattr(Session, "call", started_nothing)
    page.write_text("mine")
    assert run_command(["resume", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {**summary, "run_dir": str(folder)}
    assert page.read_text() == "mine"
    os.utime(page, (0, 0))  # as if it had been drawn before the last round
    assert run_command(["resume", str(folder)]) == 0
    assert capsys.readouterr().out.endswith(f"run folder: {folder}\nreport: {page}\n")
    drawn = page.read_text()
    assert drawn.startswith("<!DOCTYPE html>")
    page.unlink()
    assert run_command(["resume", str(folder)]) == 0
    assert page.read_text() == drawn
    assert (folder / "ledger.sqlite").read_bytes() == ledger
    with run_lock(folder):
        assert run_command(["resume", str(folder)]) == 2
    assert "another process has locked this run" in capsys.readouterr().err
    scenario = (folder / "scenario.toml").read_text()
    (folder / "scenario.toml").write_text(scenario.replace("seed = 0", "seed = 1"))
    assert run_command(["resume", str(folder)]) == 2
    why = f"{folder}: scenario.toml, or something that it names, has changed since the run began; restore it, or start"
    assert f"fedbr: {why} a new run" in capsys.readouterr().err
    monkeypatch.setattr(Session, "call", call)
    monkeypatch.setenv("FEDBR_REPORT", "0")


def started_nothing(*_: object) -> None:
    raise AssertionError("a process was started for a run that has ended")


@pytest.mark.usefixtures("warm_workers")
def test_a_ledger_that_is_none_is_named_and_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "digits" / "a"
    folder.mkdir(parents=True)
    (folder / "scenario.toml").write_text(scenario_text(load("digits", {}).scenario.model_dump()))
    assert run_command(["diff", "--again", str(folder)]) == 2
    assert "nothing to verify before the first round has been committed" in capsys.readouterr().err
    ledger = folder / "ledger.sqlite"
    ledger.write_text("no database\n" * 100)
    assert run_command(["diff", "--again", str(folder)]) == 2
    assert capsys.readouterr().err == f"fedbr: {ledger} cannot be read: file is not a database\n"
    assert run_command(["resume", str(folder)]) == 3
    assert f"fedbr: {ledger}: file is not a database\n" in capsys.readouterr().err
    assert run_command(["run", "digits", "--out", str(tmp_path), "--run-id", "a"]) == 2
    assert "holds an unfinished run" in capsys.readouterr().err
    assert ledger.read_text() == "no database\n" * 100


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"device": "cp', "cannot be read: Unterminated string"),
        ('{"device": 5}', "cannot be read: device: Input should be a valid string"),
        ("[]", "cannot be read: must be a table"),
        ("\xff", "cannot be read: "),
        (None, "is missing, and without it the run cannot be resumed"),
    ],
)
@pytest.mark.parametrize("command", [("resume",), ("diff", "--again")], ids=" ".join)
def test_a_damaged_environment_is_named(
    command: tuple[str, ...], text: str | None, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = made_run(tmp_path / "run", (0.5,), 'extends = "digits"\n')
    (folder / "environment.json").unlink()
    if text is not None:
        (folder / "environment.json").write_text(text, encoding="latin-1")
    assert run_command([*command, str(folder)]) == 2
    assert capsys.readouterr().err.startswith(f"fedbr: {folder / 'environment.json'} {why}")
    assert run_command([*command, str(tmp_path)]) == 2
    assert "not a run folder: there is no scenario.toml in it" in capsys.readouterr().err
