"""Ledgers from anywhere: files that are none, other objects than tables, and values that no run writes are refused.

`coordinator.records.store` looks at the files and at the schema of every ledger that it opens; `check` reads all rows.
SQLite reads in a thread of its own: it would not return to the main thread before its end, and only there are signals
handled.
"""

from __future__ import annotations

import json
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import cache, lru_cache
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from coordinator.records.schema import (
    AGGREGATORS,
    BOTTLENECKS,
    CONDITIONS,
    EVALUATIONS,
    KINDS,
    LOGGED,
    STEPS,
    TRANSFERS,
    AggregatorRow,
    ConditionsRow,
    EvaluationRow,
    LoggedRow,
    PayloadShapeRow,
    RoundRow,
    StepsRow,
    VisitRow,
)
from edge.protocol.bounds import MOST_CLIENT, MOST_INTEGER, MOST_NUMBER, MOST_VALUE_NBYTES
from edge.protocol.messages import BEFORE, VALIDATION

FILES = ("", "-wal", "-shm", "-journal")
"""Ends of the names of a ledger's files"""
MOST_ROWS = 20_000_000
"""Rows of one result"""
LEAST_ROW_NBYTES = 8
"""A file has no more rows than there is room for of such: SQLite reads one page as often as others name it"""
BATCH = 10_000
T = TypeVar("T")


class ForeignLedger(sqlite3.DatabaseError):
    """A ledger that no run has written; the message says why."""


def interruptible(db: sqlite3.Connection, work: Callable[[], T]) -> T:
    """The result of ``work``, which uses ``db``; what a signal's handler raises, as Ctrl-C does, ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    ended: list[tuple[T | None, BaseException | None]] = []
    is_done = threading.Event()

    def call() -> None:
        try:
            ended.append((work(), None))
        except BaseException as error:
            ended.append((None, error))
        is_done.set()

    thread = threading.Thread(target=call, name="ledger", daemon=True)
    thread.start()
    try:
        is_done.wait()
    except BaseException:
        while not is_done.wait(0.01):  # it may be between two statements
            db.interrupt()
        raise
    thread.join()
    result, error = ended[0]
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # without an error, it is what ``work`` returned


def connect(path: Path) -> sqlite3.Connection:
    """A ledger, opened for reading only; a run may be using it. sqlite3.Error."""
    check_files(path)
    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE_NBYTES)
    return db


def check_files(path: Path) -> None:
    """`ForeignLedger` for a ledger that is no regular file, or beside which SQLite would read one that is not."""
    real = path.resolve()
    for end in FILES:
        file = real.with_name(f"{real.name}{end}")
        with suppress(FileNotFoundError, NotADirectoryError):
            if not stat.S_ISREG(file.stat().st_mode):
                raise ForeignLedger(f"{file.name} is not a regular file")


def check_schema(db: sqlite3.Connection) -> list[str]:
    """The names of the tables. `ForeignLedger` if there is anything else but our view and the tables' own indices.

    From then on, the schema runs no functions with side effects.
    """
    db.execute("PRAGMA trusted_schema=OFF")
    tables = []
    for kind, name, text, page in db.execute("SELECT type, name, sql, rootpage FROM sqlite_master"):
        if kind == "table" and page:
            tables.append(name)
        elif (kind, name, text) != ("view", "transfers", TRANSFERS) and (kind, text) != ("index", None):
            raise ForeignLedger(f"it has the {'virtual ' * (kind == 'table')}{kind} {name!r}, which no run makes")
    return tables


def rows(cursor: sqlite3.Cursor) -> list[Any]:
    """All rows of a result; `ForeignLedger` for more than `MOST_ROWS`."""
    result: list[Any] = []
    while batch := cursor.fetchmany(BATCH):
        result += batch
        if len(result) > MOST_ROWS:
            raise ForeignLedger(f"a result has more than {MOST_ROWS:,} rows")
    return result


# --- all rows ---------------------------------------------------------------------------------------------------------


def check(path: Path) -> None:
    """`ForeignLedger`, naming table and column, for values of types or sizes that no run writes.

    Other errors of SQLite's for a damaged file. A ledger is read once, and again when it has been written. Rows may
    still contradict each other: only `coordinator.records.resume.audit` recomputes the hash chain.
    """
    _check(path.resolve(), _state(path))


def _state(path: Path) -> tuple[Any, ...]:
    """Facts on a ledger's files, which differ if it has been written, or another one has taken its place."""
    files: list[tuple[int, ...]] = []
    for end in FILES[:2]:
        with suppress(OSError):
            stats = path.with_name(f"{path.name}{end}").stat()
            files.append((stats.st_dev, stats.st_ino, stats.st_size, stats.st_mtime_ns))
    return tuple(files)


@lru_cache(maxsize=1024)
def _check(path: Path, state: tuple[tuple[int, ...], ...]) -> None:
    most = sum(size for _, _, size, _ in state) // LEAST_ROW_NBYTES
    with closing(connect(path)) as db:
        try:
            interruptible(db, lambda: _check_all(db, most))
        except sqlite3.DataError as error:  # a value beyond `MOST_VALUE_NBYTES`
            raise ForeignLedger(str(error)) from None


def _check_all(db: sqlite3.Connection, most: int) -> None:
    for table in check_schema(db):
        if table.startswith("sqlite_"):
            continue
        conditions = dict(_conditions(db, table))
        if db.execute(f"SELECT COUNT(*) FROM (SELECT 1 FROM {table} LIMIT ?)", (most + 1,)).fetchone()[0] > most:
            raise ForeignLedger(f"table {table}: more rows than its file can hold")
        columns = ", ".join(conditions.values())
        wrong = db.execute(f"SELECT {columns} FROM {table} WHERE NOT ({' AND '.join(conditions.values())}) LIMIT 1")
        for row in wrong:
            column = next(column for column, is_right in zip(conditions, row, strict=True) if not is_right)
            raise ForeignLedger(f"table {table}: column {column}: holds a value that no run writes")
    _check_rounds(db)


class _File(NamedTuple):
    round: int
    file: str
    sha256: str


class _ClientFile(NamedTuple):
    client: int
    round: int
    file: str
    sha256: str


class _Meta(NamedTuple):
    key: str
    value: str


class _HostRound(NamedTuple):
    round: int
    wall_s: float


class _Event(NamedTuple):
    kind: str
    wall_s: float


ROWS: Mapping[str, type[NamedTuple]] = {
    "meta": _Meta,
    "rounds": RoundRow,
    "visits": VisitRow,
    "payload_shapes": PayloadShapeRow,
    EVALUATIONS: EvaluationRow,
    AGGREGATORS: AggregatorRow,
    CONDITIONS: ConditionsRow,
    LOGGED: LoggedRow,
    STEPS: StepsRow,
    "states": _ClientFile,
    "client_vectors": _ClientFile,
    "checkpoints": _File,
    "host_rounds": _HostRound,
    "host_events": _Event,
}
"""Table -> its columns; tables and columns beyond these have the types that they declare"""
CHOICES: Mapping[str, tuple[str, ...]] = {
    "visits.kind": KINDS,
    "rounds.bottleneck": ("", *BOTTLENECKS),
    "evaluations.kind": (BEFORE, VALIDATION),
}
FREE = (
    *("meta.value", "rounds.files", "visits.down_payload", "visits.up_payload", "payload_shapes.payload"),
    *("host_events.worker", "host_events.detail"),
)
"""Texts that no table shows, or that may have lines"""
_DECLARED: Mapping[str, Any] = {"INTEGER": int | None, "REAL": float | None, "TEXT": str | None}


def guard(db: sqlite3.Connection, table: str) -> None:
    """Have rows refused that `check` would not take, before they are in the table: sqlite3.IntegrityError.

    For the connection that writes; its ledger stays as it is.
    """
    if table.startswith("sqlite_"):
        return
    conditions = [text for _, text in _conditions(db, table, "NEW.")]
    db.execute(
        f"CREATE TEMP TRIGGER guard_{table} AFTER INSERT ON main.{table} WHEN NOT ({' AND '.join(conditions)}) "
        f"BEGIN SELECT RAISE(ABORT, 'a value that no reader takes'); END"
    )


def first_wrong(db: sqlite3.Connection, table: str, rows: Iterable[Sequence[Any]]) -> tuple[Sequence[Any], str] | None:
    """(row, column) of the first value among these that `guard` refuses."""
    names, conditions = zip(*_conditions(db, table), strict=True)
    given = ", ".join(f'? AS "{name}"' for name in names)
    for row in rows:
        results = db.execute(f"SELECT {', '.join(conditions)} FROM (SELECT {given})", row).fetchone()
        wrong = next((name for name, is_right in zip(names, results, strict=True) if not is_right), None)
        if wrong is not None:
            return row, wrong
    return None


def _conditions(db: sqlite3.Connection, table: str, of: str = "") -> Iterator[tuple[str, str]]:
    """(column, SQL that is 1 for the values that a run writes there), in the order of the table's columns.

    ``of``: what stands before the name of a column.
    """
    if not table.isidentifier():
        raise ForeignLedger(f"it has the table {table!r}, which no run makes")
    declared = {}
    for _, column, kind, _, _, _, hidden in db.execute(f"PRAGMA table_xinfo({table})"):
        if hidden or kind not in _DECLARED or not column.isidentifier():
            raise ForeignLedger(f"table {table}: column {column!r} is one that no run makes")
        declared[column] = _DECLARED[kind]
    types = _types(table)
    if missing := types.keys() - declared.keys():
        raise ForeignLedger(f"table {table}: there is no column {min(missing)}")
    for column, kind in {**declared, **types}.items():
        name, kinds = f'{of}"{column}"', get_args(kind) or (kind,)
        if int in kinds:
            most = MOST_CLIENT if column in ("client", "critical") else MOST_INTEGER
            text = f"typeof({name}) = 'integer' AND {name} BETWEEN {-most} AND {most}"
        elif float in kinds:
            text = f"typeof({name}) IN ('real', 'integer') AND {name} BETWEEN {-MOST_NUMBER} AND {MOST_NUMBER}"
        elif f"{table}.{column}" in CHOICES:
            text = f"typeof({name}) = 'text' AND {name} IN {CHOICES[f'{table}.{column}']}"
        elif f"{table}.{column}" in FREE:
            text = f"typeof({name}) = 'text'"
        else:  # texts end at a NUL for GLOB
            control = "*[\x01-\x1f\x7f-\x9f]*"
            text = f"typeof({name}) = 'text' AND {name} NOT GLOB '{control}' AND instr({name}, char(0)) = 0"
        yield column, f"({name} IS NULL OR {text})" if NoneType in kinds else f"({text})"


@cache
def _types(table: str) -> Mapping[str, Any]:
    return get_type_hints(ROWS[table]) if table in ROWS else dict.fromkeys(("round", "client"), int)


def _check_rounds(db: sqlite3.Connection) -> None:
    """`ForeignLedger` for rounds without a number, visits of no round, and a chain without a beginning."""
    tables = check_schema(db)
    if "rounds" in tables:
        count, first, last = db.execute("SELECT COUNT(*), MIN(round), MAX(round) FROM rounds").fetchone()
        if count and (first, last) != (0, count - 1):
            raise ForeignLedger("table rounds: its rounds are not numbered from 0")
    if "meta" in tables:
        meta = dict(rows(db.execute("SELECT key, value FROM meta")))
        if "genesis" not in meta:
            raise ForeignLedger("table meta: it has no beginning of the hash chain")
        with suppress(KeyError):
            try:
                round, rule = json.loads(meta["stopped_by"])
            except (ValueError, TypeError, RecursionError):
                round, rule = None, None
            if not isinstance(round, int) or not isinstance(rule, str):
                raise ForeignLedger("table meta: stopped_by: is no rule")
