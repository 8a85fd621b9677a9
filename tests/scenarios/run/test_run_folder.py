"""A recorded run is read as it was written, up to its last round; a folder that is no run says why."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from edge.protocol.serialization import pack_description
from scenarios.config.errors import ReportError
from scenarios.run.environment import DataSetRecord, Environment
from scenarios.run.run_folder import RunFolder
from tests.edge.protocol.mutations import DESCRIPTION as PROFILE
from tests.ledgers import made_run

SCENARIO = 'extends = "digits"\nmethod = "fedavg"\nseed = 3\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made_run(tmp_path / "run", (0.25, 0.5), SCENARIO)


def test_a_run_that_has_not_ended_is_read_up_to_its_last_round(folder: Path) -> None:
    assert RunFolder(folder).summary == {"stopped_by": "rounds", "rounds": 2}
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        db.execute("DELETE FROM meta WHERE key = 'summary'")
        db.commit()
    run = RunFolder(folder)
    assert (run.method, run.is_begun, run.summary, run.completed) == ("fedavg", True, None, 2)
    assert ([point.score for point in run.trail], run.final(), run.best()) == ([0.25, 0.5], 0.5, 0.5)
    assert (run.evaluations, run.logged) == ([], [])


def test_settings_are_those_of_this_version_or_as_they_are_written_where_a_module_would_be_imported(
    folder: Path, tmp_path: Path
) -> None:
    assert RunFolder(folder).settings["rounds.policy"] == "sync"
    own = made_run(tmp_path / "own", (0.5,), 'method = "my_method:SPEC"\n[train]\nlr = 0.5\n')
    assert RunFolder(own).keys() == {"method": "my_method:SPEC", "train.lr": 0.5}


def test_an_environment_is_read_as_it_was_written_also_with_keys_that_nobody_knows(tmp_path: Path) -> None:
    began = Environment(
        device="cpu", workers=2, data=DataSetRecord(name="digits", sha256="ab"), own_method={"table": None}
    )
    began.write(tmp_path)
    tables = json.loads((tmp_path / "environment.json").read_text())
    assert tables == {
        "workers": 2,
        "device": "cpu",
        "data": {"name": "digits", "sha256": "ab"},
        "own_method": {"table": None},
    }
    (tmp_path / "environment.json").write_text(json.dumps(tables | {"room": "B 17"}))
    assert RunFolder(tmp_path).environment.tables() == tables | {"room": "B 17"}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, r"No such file or directory"),
        (b"no msgpack", r"description: "),
        (pack_description(PROFILE)[:-1], r"description: "),
        (pack_description(replace(PROFILE, samples=-PROFILE.samples)), r"Described: samples"),
    ],
)
def test_a_description_that_no_worker_has_given_is_refused(content: bytes | None, problem: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "description.msgpack").write_bytes(content)
    with pytest.raises(ReportError, match=rf"description\.msgpack does not describe the run's .*{problem}"):
        _ = RunFolder(tmp_path).description
