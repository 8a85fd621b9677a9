"""Files of a run folder that are none, or hold what no run writes: each command refuses them by name, and at once.

A ledger's own contents are in `tests.coordinator.records.test_foreign`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedbr
from scenarios.cli.main import run_command
from scenarios.config.errors import ReportError
from scenarios.report import html
from scenarios.report.run_reader import open_runs
from scenarios.run.environment import Environment
from scenarios.run.run_records import (
    ScenarioRecord,
    SummaryRecord,
    checked,
)
from tests.crossed import every
from tests.ledgers import made_run
from tests.scenarios.in_this_process import pool_in_this_process, run
from tests.scenarios.runs import refused

SCENARIO = 'method = "fedavg"\nseed = 0\n'
__all__ = ["pool_in_this_process"]
COMMANDS = (
    ("report",),
    ("audit",),
    ("replay",),
    ("diff", "--again", "--workers", "1"),
    ("replay", "--measure", "loss", "--workers", "1"),
    ("resume", "--workers", "1"),
)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one round."""
    return run(tmp_path_factory.mktemp("out"), "rounds.max=1")


@pytest.fixture
def folder(ended: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ended, tmp_path / "digits" / "sent"))


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", every(3, [pipe, device]))
@pytest.mark.parametrize(
    "name",
    ["scenario.toml", "environment.json", "ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm",
     "ledger.sqlite-journal"],
)  # fmt: skip
def test_a_pipe_or_device_in_a_files_place_is_refused_by_name(
    name: str, make: Callable[[Path], None], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    for command, *options in COMMANDS:
        message = refused(capsys, command, str(folder), *options)
        assert name in message or "zero is not a regular file" in message
        assert any(why in message for why in ("regular file", "is a device or a pipe, not a file", "is a link"))


def test_other_files_in_a_run_folder_are_not_waited_for(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(folder / "uncertainty.json")
    assert "uncertainty.json cannot be read: is no ordinary file" in refused(capsys, "report", str(folder))
    (folder / "uncertainty.json").unlink()
    for name in ("compare.json", "measure.json", "study.json", "sweep.toml"):
        os.mkfifo(folder / name)
    assert "compare.json does not name the runs that were compared: is a device or a pipe, not a file;" in refused(
        capsys, "report", str(folder)
    )
    (folder / "compare.json").unlink()
    assert run_command(["report", str(folder), "-o", str(tmp_path / "page.html")]) == 0
    for name in ("study.json", "compare.json"):  # of a folder above
        os.mkfifo(folder.parent / name)
    with pytest.raises(ReportError, match=r"compare\.json does not name"):
        fedbr.open(folder.parent)
    (folder.parent / "compare.json").unlink()
    opened = fedbr.open(folder.parent)
    assert isinstance(opened, fedbr.RunCollection)
    assert [found.folder for found in opened] == [folder]


# --- values -----------------------------------------------------------------------------------------------------------


def with_summary(folder: Path, **values: Any) -> Path:
    """A run whose summary has other values; `KeyError` as the value: it lacks the key."""
    with contextlib.closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        ((text,),) = db.execute("SELECT value FROM meta WHERE key = 'summary'")
        summary = {key: value for key, value in (json.loads(text) | values).items() if value is not KeyError}
        db.execute("UPDATE meta SET value = ? WHERE key = 'summary'", (json.dumps(summary),))
        db.commit()
    return folder


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("rounds", "many", "rounds: Input should be a valid integer"),
        ("rounds", 10**400, "rounds: is a number that no run writes"),
        ("wall_seconds", 1e300, f"wall_seconds: Input should be less than or equal to 1{'0' * 30}"),
        ("bytes_down", 2**62, "bytes_down: Input should be less than or equal to 1152921504606846976"),
        ("stopped_by", ["rounds"], "stopped_by: Input should be a valid string"),
        ("best_round", 7, "best_round: must be a table"),
        ("bottlenecks", {"compute": "x"}, "bottlenecks.compute: Input should be a valid integer"),
        ("warnings", 5, "warnings: Input should be a valid list"),
        ("warnings", ["\x1b[31mred"], "warnings: has control characters"),
        ("evaluation", {"values": {"x\x9b": 1.0}}, "evaluation.values: has control characters"),
        ("method", "fed\x1bavg", "method: has control characters"),
    ],
)
def test_a_summary_with_values_that_no_run_writes_is_refused(
    key: str, value: object, why: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_summary(folder, **{key: value})
    for command in (("report", str(folder)), ("resume", str(folder), "--workers", "1"), ("replay", str(folder))):
        assert refused(capsys, *command) == f"{folder / 'ledger.sqlite'} is damaged: summary: {why}"


@pytest.mark.parametrize(
    ("kind", "tables", "why"),
    [
        (SummaryRecord, {"rounds": True, "stopped_by": "rounds"}, "rounds: Input should be a valid integer"),
        (SummaryRecord, [], "must be a table"),
        (Environment, {"blocks": [{"name": "a", "params": 1, "buffers": 0}]}, "blocks.0.nbytes: Field required"),
        (Environment, {"blocks": {}}, "blocks: Input should be a valid list"),
        (Environment, {"partition": {"histogram": [[1, 2], [3]]}}, "its lists are of different numbers"),
        (Environment, {"partition": {"histogram": [[1]], "test": [1, 2]}}, "its lists are of different numbers"),
        (Environment, {"partition": {"histogram": [[-1]]}}, "partition.histogram.0.0: Input should be greater"),
        (Environment, {"bases": {"devices": {"pi": 5}}}, "bases.devices.pi: Input should be a valid dictionary"),
        (Environment, {"anything": {"deep": ["\x07"]}}, "anything.deep: has control characters"),
        (ScenarioRecord, {"method": 5}, "method: Input should be a valid string"),
        (ScenarioRecord, {"stop": {"target_accuracy": "high"}}, "stop.target_accuracy: Input should be a valid number"),
        (ScenarioRecord, {"stop": 5}, "stop: must be a table"),
        (ScenarioRecord, {"seed": -1}, "seed: Input should be greater than or equal to 0"),
    ],
)
def test_records_of_other_types_are_refused_with_the_key(kind: Any, tables: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        checked(tables, kind)


def test_names_that_a_terminal_obeys_are_escaped_in_messages_and_tables(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "a\x1b[31mb", (0.5,), SCENARIO)
    path = html.csv_table([folder], tmp_path / "rounds.csv")
    assert path.read_text().splitlines()[1].startswith("a\\x1b[31mb,fedavg,0,0,")
    (folder / "ledger.sqlite").unlink()
    with pytest.raises(ReportError) as error:
        open_runs([folder])
    assert str(error.value) == f"{tmp_path}/a\\x1b[31mb is not a run folder: it has no ledger.sqlite"


def test_a_ledger_that_lacks_a_table_is_refused_by_name(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", (0.5,), SCENARIO)
    with contextlib.closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        db.execute("DROP TABLE meta")
        db.commit()
    with pytest.raises(ReportError, match="meta") as error:
        open_runs([folder])
    assert str(folder) in str(error.value)
