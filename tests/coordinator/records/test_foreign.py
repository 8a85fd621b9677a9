"""A ledger from anywhere: what is no ledger of a run is refused, nothing is read without end, and Ctrl-C ends it."""

from __future__ import annotations

import contextlib
import math
import os
import re
import sqlite3
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator.records import foreign
from coordinator.records.foreign import ForeignLedger, check
from coordinator.records.schema import EvaluationRow, LoggedRow, MethodTable, RoundRow
from coordinator.records.store import Commit, Ledger, has_rounds, read
from coordinator.records.visit_columns import VisitColumns
from coordinator.rounds.run import RunFailed
from tests.crossed import every
from tests.ledgers import visit_row

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Two rounds with a visit and an evaluation each."""
    path = tmp_path / "ledger.sqlite"
    made = Ledger(path, "genesis", None)
    for number in range(2):
        row = RoundRow(
            number, 1.0 * number, number + 1.0, 1, 0.5, None, 1.0, 5, 5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0, 0.0, 3,
            "compute", "ab",
        )  # fmt: skip
        visits = VisitColumns.of([visit_row(number, number, 3, 0.0, 1.0, 2.0, 3.0)])
        made.commit(Commit(row, visits, evaluations=[EvaluationRow(number, 3, "accuracy", 0.5, 8)]))
    made.finish({"stopped_by": "rounds", "rounds": 2})
    made.close()
    return path


def changed(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


def test_a_ledger_as_a_run_writes_it_is_read(ledger: Path) -> None:
    check(ledger)
    assert [tuple(row) for row in read(ledger, "SELECT round, critical FROM rounds")] == [(0, 3), (1, 3)]
    assert Ledger(ledger, None).genesis == "genesis"


@pytest.mark.parametrize("end", ["", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_file_that_is_none_is_refused_by_name_and_not_opened(
    end: str, make: Callable[[Path], None], ledger: Path
) -> None:
    place = ledger.with_name(f"{ledger.name}{end}")
    place.unlink(missing_ok=True)
    make(place)
    for use in (lambda: read(ledger, "SELECT 1"), lambda: check(ledger), lambda: Ledger(ledger, None)):
        with pytest.raises(ForeignLedger, match=r"^(zero|ledger\.sqlite" + end + ") is not a regular file$"):
            use()


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        ([f"CREATE VIEW more AS {ENDLESS}"], "it has the view 'more', which no run makes"),
        (["ALTER TABLE rounds RENAME TO r", f"CREATE VIEW rounds AS {ENDLESS}"], "it has the view 'rounds'"),
        (["CREATE TRIGGER t AFTER INSERT ON rounds BEGIN DELETE FROM visits; END"], "it has the trigger 't'"),
        (["CREATE INDEX i ON visits (client)"], "it has the index 'i'"),
    ],
)
def test_other_objects_than_a_runs_are_refused_before_anything_is_read_from_them(
    statements: Sequence[str], why: str, ledger: Path
) -> None:
    changed(ledger, *statements)
    for use in (lambda: read(ledger, "SELECT * FROM rounds"), lambda: has_rounds(ledger), lambda: Ledger(ledger, None)):
        with pytest.raises(ForeignLedger, match=why):
            use()


VALUE = "holds a value that no run writes"


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE rounds SET bytes_down = 'many'", f"table rounds: column bytes_down: {VALUE}"),
        ("UPDATE rounds SET joules = 9e999", f"table rounds: column joules: {VALUE}"),
        ("UPDATE rounds SET joules = NULL", f"table rounds: column joules: {VALUE}"),
        ("UPDATE rounds SET bottleneck = 'luck'", f"table rounds: column bottleneck: {VALUE}"),
        ("UPDATE rounds SET round = 7 WHERE round = 1", "table rounds: its rounds are not numbered from 0"),
        ("UPDATE visits SET device = char(27) || '[31m'", f"table visits: column device: {VALUE}"),
        ("UPDATE visits SET device = x'00'", f"table visits: column device: {VALUE}"),
        ("UPDATE evaluations SET metric = 'a' || char(10)", f"table evaluations: column metric: {VALUE}"),
        ("DELETE FROM meta WHERE key = 'genesis'", "table meta: it has no beginning of the hash chain"),
        ("INSERT INTO meta VALUES ('stopped_by', '[1]')", "table meta: stopped_by: is no rule"),
        ("INSERT INTO meta VALUES ('stopped_by', '[1, \"rounds\"]')", ""),
        ("ALTER TABLE visits DROP COLUMN samples", "table visits: there is no column samples"),
        ("CREATE TABLE own (round INTEGER, client INTEGER, choice INTEGER)", ""),
        ("CREATE TABLE own (round INTEGER, client BLOB)", "table own: column 'client' is one that no run makes"),
    ],
)
def test_values_that_no_run_writes_are_refused_with_their_column(statement: str, why: str, ledger: Path) -> None:
    changed(ledger, statement)
    if not why:
        check(ledger)
        return
    with pytest.raises(ForeignLedger, match=why):
        check(ledger)


def test_a_value_of_a_gigabyte_is_not_read(ledger: Path) -> None:
    changed(ledger, "UPDATE meta SET value = zeroblob(200000000) WHERE key = 'summary'")
    with pytest.raises(sqlite3.DataError, match="too big"):
        read(ledger, "SELECT value FROM meta WHERE key = 'summary'")


def test_more_rows_than_any_result_has_are_refused(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "MOST_ROWS", 100_000)
    with pytest.raises(ForeignLedger, match="a result has more than 100,000 rows"):
        read(ledger, ENDLESS)


# --- what is written is what is read ----------------------------------------------------------------------------------

NUMBERS = st.one_of(
    st.floats(),
    st.sampled_from([1e30, -1e30, math.nextafter(1e30, math.inf), 1e31, -1e31, 1.7e308, math.inf, -math.inf, math.nan]),
)
INTEGERS = st.one_of(
    st.integers(-(1 << 70), 1 << 70),
    st.sampled_from([1 << 60, (1 << 60) + 1, -(1 << 60) - 1, 10_000_000, 10_000_001, 1 << 63, -1, 0]),
)
TEXTS = st.one_of(
    st.text(), st.sampled_from(["a\x1b[31mb", "c\nd", "\x00", "\x7f", "\x9f", "\ud800", "e" * 101, "é😀", ""])
)


class OwnRow(NamedTuple):
    round: int
    client: int
    number: int
    share: float
    rate: float | None
    word: str


OWN = MethodTable("own", OwnRow)


def commit_of(row: RoundRow, **more: Any) -> Commit:
    return Commit(row, VisitColumns.of([visit_row(0, 0, 3, 0.0, 1.0, 2.0, 3.0)]), **more)


PLAIN = RoundRow(
    0, 0.0, 1.0, 1, 0.5, None, 1.0, 5, 5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0, 0.0, 3, "compute", "ab",
)  # fmt: skip
COMMITS = {
    "logged": lambda integer, number, text: commit_of(PLAIN, logged=[LoggedRow(0, integer, text, number)]),
    "evaluations": lambda integer, number, text: commit_of(
        PLAIN, evaluations=[EvaluationRow(0, 3, text, number, integer)]
    ),
    "own": lambda integer, number, text: commit_of(PLAIN, method_rows=[OwnRow(0, 3, integer, number, number, text)]),
    "rounds": lambda integer, number, text: commit_of(
        PLAIN._replace(test_loss=number, joules=number, bytes_up=integer, critical=integer, bottleneck=text)
    ),
    "visits": lambda integer, number, text: Commit(
        PLAIN,
        VisitColumns.of(
            [visit_row(0, 0, 3, 0.0, 1.0, 2.0, 3.0)._replace(loss=number, device=text, samples=integer, joules=number)]
        ),
    ),
}


@pytest.mark.parametrize("table", every(2, COMMITS))
@given(integer=INTEGERS, number=NUMBERS, text=TEXTS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_readers_take_whatever_a_ledger_takes(
    table: str, tmp_path: Path, integer: int, number: float, text: str
) -> None:
    path = tmp_path / f"{uuid.uuid4().hex}.sqlite"
    made = Ledger(path, "genesis", OWN)
    try:
        made.commit(COMMITS[table](integer, number, text))
    except RunFailed as error:
        assert re.match(rf"table {table}|round 1 cannot be recorded: |round 1: client -?\d+ logs ", str(error))
        made.commit(commit_of(PLAIN))  # nothing of it is there
    made.finish({"stopped_by": "rounds", "rounds": 1})
    made.close()
    check(path)
    assert len(read(path, "SELECT * FROM rounds")) == 1


@pytest.mark.parametrize(
    ("commit", "said"),
    [
        (
            COMMITS["logged"](3, 1e31, "big"),
            "round 1: client 3 logs 'big': 1e+31 is beyond 1e+30, the most that a run records",
        ),
        (
            COMMITS["logged"](None, 1.0, "c\nd"),
            "round 1: the server's side logs 'c\\nd': a name has 1 to 100 characters, and no control characters",
        ),
        (
            COMMITS["evaluations"](1, 0.5, "a\x1bb"),
            "table evaluations, client 3, metric a\x1bb, column metric: 'a\\x1bb' is beyond what a run records",
        ),
        (
            COMMITS["own"](1, math.nan, ""),
            "round 1 cannot be recorded: Out of range float values are not JSON compliant",
        ),
    ],
)
def test_a_value_that_no_reader_takes_is_refused_when_it_is_written(commit: Commit, said: str, tmp_path: Path) -> None:
    with contextlib.closing(Ledger(tmp_path / "ledger.sqlite", "genesis", OWN)) as made:
        with pytest.raises(RunFailed) as caught:
            made.commit(commit)
        assert str(caught.value).startswith(said)
        assert made.rounds() == []
