"""A run goes on only from what it committed: a ledger that was changed is refused, and the round is named."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from coordinator.methods.gmbs import CHOICES
from coordinator.records.chain import next_hash
from coordinator.records.checkpoints import file_sha256
from coordinator.records.resume import audit, resume_checkpoint
from coordinator.records.store import Ledger
from coordinator.rounds.policy import PolicyName
from coordinator.rounds.run import RunFailed
from tests.toy import federation, play, store, unsteady_world

POLICIES: tuple[PolicyName, ...] = ("sync", "deadline", "fedbuff")
POLICY = pytest.mark.parametrize("policy", POLICIES)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of four rounds for each policy."""
    folders: dict[str, Path] = {}
    for policy in POLICIES:
        folders[policy] = tmp_path_factory.mktemp(policy)
        play(folders[policy], "fedbr", **unsteady_world(policy))
    return folders


def edited(folder: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        for statement in statements:
            assert db.execute(statement).rowcount > 0, statement
        db.commit()


def why_not(folder: Path, policy: PolicyName = "sync", **how: Any) -> str:
    """Why a run is not gone on with, without the ledger's path."""
    run = federation(folder, "fedbr", again=True, **{**unsteady_world(policy), **how})
    before = [tuple(row) for row in store(run).ledger._db.execute("SELECT * FROM rounds")]
    with contextlib.closing(store(run).ledger), pytest.raises(RunFailed) as failed:
        resume_checkpoint(run, store(run))
    with contextlib.closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        assert [tuple(row) for row in db.execute("SELECT * FROM rounds")] == before
    return str(failed.value).replace(f"{folder}/", "")


ROWS = "ledger.sqlite: round {}: its rows are not what was committed, so the run is not resumed"


@POLICY
def test_what_a_run_has_committed_is_what_its_chain_says(policy: PolicyName, made: dict[str, Path]) -> None:
    with contextlib.closing(sqlite3.connect(made[policy] / "ledger.sqlite")) as db:
        ended = [round for (round,) in db.execute("SELECT round FROM visits ORDER BY visit")]
    assert (ended == sorted(ended)) == (policy not in ("fedasync", "fedbuff"))  # there, rounds overlap
    ledger = Ledger(made[policy] / "ledger.sqlite", None, CHOICES)
    audit(ledger)
    ledger.close()


@POLICY
@pytest.mark.parametrize(
    ("statement", "round"),
    [
        ("UPDATE rounds SET accuracy = accuracy + 0.01 WHERE round = 1", 1),
        ("UPDATE rounds SET model_sha256 = 'ab' WHERE round = 3", 3),
        ("UPDATE visits SET steps = 77 WHERE visit = (SELECT MAX(visit) FROM visits WHERE round = 2)", 2),
        ("UPDATE visits SET loss = x'00' WHERE visit = (SELECT MIN(visit) FROM visits WHERE round = 2)", 2),
        ("UPDATE payload_shapes SET nbytes = nbytes + 1 WHERE rowid = (SELECT MIN(rowid) FROM payload_shapes)", 0),
        ("DELETE FROM payload_shapes WHERE rowid = (SELECT MIN(rowid) FROM payload_shapes)", 0),
        ("INSERT INTO payload_shapes SELECT payload, 9, slot, key, nbytes FROM payload_shapes LIMIT 1", 9),
        ("UPDATE choices SET reward = 1e6 WHERE rowid = (SELECT MAX(rowid) FROM choices WHERE round = 1)", 1),
        ("UPDATE rounds SET files = '[]' WHERE round = 2", 2),
        ("DELETE FROM rounds WHERE round = 0", 1),
    ],
)
def test_the_first_round_that_was_changed_is_named(
    statement: str, round: int, policy: PolicyName, made: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(made[policy], tmp_path / "run"))
    edited(folder, statement)
    assert why_not(folder, policy) == ROWS.format(round + 1)


@pytest.mark.parametrize("value", ["send_joules + 0.001", "NULL"])
def test_parts_of_joules_that_do_not_add_up_are_named_though_the_chain_has_the_joules_alone(
    value: str, made: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(made["sync"], tmp_path / "run"))
    edited(folder, f"UPDATE visits SET send_joules = {value} WHERE round = 2")
    assert why_not(folder) == (
        "ledger.sqlite: round 3: the parts of a visit's joules are not what was committed, so the run is not resumed"
    )


def test_a_row_that_is_changed_together_with_its_checkpoint_is_named(made: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(made["sync"], tmp_path / "run"))
    digest = swapped(folder, lambda arrays: {name: array + array.dtype.type(1) for name, array in arrays.items()})
    edited(folder, f"UPDATE checkpoints SET sha256 = '{digest}' WHERE round = 3")
    assert why_not(folder) == (
        "ledger.sqlite: round 4: its row in the table checkpoints is not what was committed, so the run is not resumed"
    )
    edited(folder, "UPDATE rounds SET model_sha256 = 'ab' WHERE round = 3")
    assert why_not(folder) == ROWS.format(4)


@pytest.mark.parametrize(
    ("statement", "client"),
    [
        ("UPDATE states SET sha256 = 'ab' WHERE client = 1", 1),
        ("DELETE FROM states WHERE client = 1", 1),
        ("INSERT INTO states SELECT 77, round, file, sha256 FROM states WHERE client = 1", 77),
    ],
)
def test_what_a_client_keeps_must_be_what_it_kept(
    statement: str, client: int, made: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(made["sync"], tmp_path / "run"))
    edited(folder, statement)
    why = why_not(folder)
    assert why.startswith("ledger.sqlite: round ")
    assert f": the rows in the table states of client {client} until then are not what was committed" in why


def swapped(folder: Path, change: Any) -> str:
    """Change the arrays of the newest checkpoint; returns the hash of the file."""
    path = folder / "checkpoints" / "round-000003.safetensors"
    save_file(change(load_file(path)), path)
    return file_sha256(path)


def forge(folder: Path, digest: str) -> None:
    """Name another newest checkpoint, and compute the whole chain again: it has no key."""
    ledger = Ledger(folder / "ledger.sqlite", None, CHOICES)
    last = list(ledger.stored())[-1]
    files = json.dumps([["round-000003.safetensors", digest], json.loads(last.files)[1]], separators=(",", ":"))
    before = list(ledger.stored())[-2].chain
    ledger.close()
    edited(
        folder,
        f"UPDATE checkpoints SET sha256 = '{digest}' WHERE round = 3",
        f"UPDATE rounds SET files = '{files}', chain = '{next_hash(before, last.rows, files)}' WHERE round = 3",
    )


Arrays = dict[str, NDArray[Any]]


@POLICY
def test_a_model_must_be_the_one_of_its_round_even_if_the_chain_says_otherwise(
    policy: PolicyName, made: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(made[policy], tmp_path / "run"))

    def moved(arrays: Arrays) -> Arrays:
        return {name: -array if name.startswith("model|") else array for name, array in arrays.items()}

    forge(folder, swapped(folder, moved))
    assert why_not(folder, policy) == (
        "checkpoints/round-000003.safetensors: round 4: its model is not the one that ledger.sqlite names"
    )
