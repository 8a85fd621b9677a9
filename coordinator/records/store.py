"""The ledger: one SQLite file per run, one transaction per round.

A round is committed whole: its rows, the model's checkpoint, the server's state and where each client's state lies.
`coordinator.records.schema` has the tables, `coordinator.records.chain` the hash chain over them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from coordinator.records.chain import as_stored, committed_files, next_hash
from coordinator.records.schema import (
    SCHEMA,
    HostEvent,
    MethodTable,
    PayloadShapeRow,
    RoundRow,
    VisitRow,
    create,
    payload_rows,
)
from edge.protocol.payload import Shapes


@dataclass(frozen=True)
class Commit:
    """All that one round changes."""

    row: RoundRow
    visits: Sequence[VisitRow] = ()
    payloads: Mapping[str, Shapes] = field(default_factory=dict)
    """Name -> shapes of all payloads that its visits refer to"""
    method_rows: Sequence[NamedTuple] = ()
    """Of the method's own table"""
    states: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """client -> (file name, sha256 of the file) of what it kept"""
    checkpoint: tuple[str, str] = ("", "")
    """(file name, sha256 of the file)"""
    wall_seconds: float = 0.0
    stopped_by: str | None = None
    """The rule that ends the run with this round"""


@dataclass(frozen=True)
class Stored:
    """One round as a ledger holds it."""

    round: int
    rows: Sequence[Sequence[Any]]
    """What the chain runs over: the row of the round, those of its visits and of the payloads that they were the first
    to bring, and those of the method's own table"""
    files: str
    """As of `committed_files`"""
    chain: str


Row = TypeVar("Row", RoundRow, VisitRow)
BY_ROUND = ("rounds", "visits", "payload_shapes", "states", "checkpoints", "host_rounds")
"""Tables whose rows belong to a round."""
TRUST_NOTHING = "PRAGMA trusted_schema=OFF"
"""A ledger may come from others: what is in its schema may not do more than read and write its own tables."""
FILES = "SELECT file FROM states UNION SELECT file FROM checkpoints"
KEPT_CHECKPOINTS = 2
"""The newest, and one to go back to if that is damaged."""


class Ledger:
    """The ledger of one run, open for writing by one process."""

    def __init__(self, path: Path, genesis: str | None, method_table: MethodTable | None = None) -> None:
        """Create the ledger; ``genesis`` is the first hash of its chain. None: open one that is there."""
        self.path = path
        self._method_table = method_table
        self._db = sqlite3.connect(path, isolation_level=None)
        try:
            self._open(genesis)
        except BaseException:
            self._db.close()
            raise
        self.genesis = self._genesis()
        self.chain = self._last_chain()
        self._payloads: set[str] = self._texts("SELECT DISTINCT payload FROM payload_shapes")

    def _open(self, genesis: str | None) -> None:
        self._db.execute(TRUST_NOTHING)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        if genesis is not None:
            with self._transaction():
                for statement in SCHEMA:
                    self._db.execute(statement)
                if self._method_table is not None:
                    self._db.execute(create(self._method_table.name, self._method_table.row))
                self._set("genesis", genesis)

    def commit(self, done: Commit) -> list[str]:
        """Commit one round; returns the names of files that nothing refers to any more, to be deleted."""
        files = committed_files(done.checkpoint, done.states)
        shapes = self._new_payloads(done)
        visits = sorted(done.visits, key=lambda row: row.visit)  # as they are read back
        chain = next_hash(self.chain, as_stored([done.row, *visits, *shapes, *done.method_rows]), files)
        with self._transaction():
            self._insert("rounds", [(*done.row, chain, files)])
            self._insert("visits", visits)
            self._insert("payload_shapes", shapes)
            if self._method_table is not None:
                self._insert(self._method_table.name, done.method_rows)
            self._insert("states", [(client, done.row.round, *file) for client, file in done.states.items()])
            self._insert("checkpoints", [(done.row.round, *done.checkpoint)])
            obsolete = self._drop_checkpoints()
            self._insert("host_rounds", [(done.row.round, done.wall_seconds)])
            if done.stopped_by is not None:
                self._set("stopped_by", json.dumps([done.row.round, done.stopped_by]))
        self.chain = chain
        self._payloads.update(row.payload for row in shapes)
        return obsolete

    def _new_payloads(self, done: Commit) -> list[PayloadShapeRow]:
        """Rows of the shapes that no committed visit had, in the order of the visits."""
        new = {name: shapes for name, shapes in done.payloads.items() if name not in self._payloads}
        return [row for name, shapes in new.items() for row in payload_rows(name, done.row.round, shapes)]

    def rounds(self) -> list[RoundRow]:
        """All rounds, in their order."""
        return self._rows(RoundRow, "rounds", "round")

    def visits(self) -> list[VisitRow]:
        """All visits, in the order of their beginnings."""
        return self._rows(VisitRow, "visits", "visit")

    def method_rows(self) -> list[Any]:
        """All rows of the method's own table, in the order in which they were written; none without one."""
        table = self._method_table
        return [] if table is None else [table.row(*row) for row in self._scan(table.name, table.row, "rowid")]

    def stored(self) -> Iterator[Stored]:
        """The rounds one after the other, each table read once; last, one without a chain if rows belong to no round.

        The values are as they are stored, whatever these are.
        """
        tables = [
            _ByRound(self._scan("visits", VisitRow, "round, visit"), VisitRow),
            _ByRound(self._scan("payload_shapes", PayloadShapeRow, "rowid"), PayloadShapeRow),
        ]
        if (own := self._method_table) is not None:
            tables.append(_ByRound(self._scan(own.name, own.row, "rowid"), own.row))
        for *row, files, chain in self._scan("rounds", RoundRow, "round", ", files, chain"):
            yield Stored(row[0], [row, *(each for table in tables for each in table.take(row[0]))], files, chain)
        for table in tables:
            if table.ahead is not None:
                yield Stored(table.ahead, [], "", "")

    def checkpoints(self) -> list[tuple[int, str, str]]:
        """(round, file name, sha256) of those that are kept, newest first."""
        return list(self._db.execute("SELECT round, file, sha256 FROM checkpoints ORDER BY round DESC"))

    def kept(self, round: int) -> dict[int, tuple[str, str]]:
        """client -> (file name, sha256) of what it had kept at the end of ``round``, one whose checkpoint is kept."""
        query = "SELECT client, file, sha256 FROM states WHERE round <= ? ORDER BY client, round"
        return {client: (file, digest) for client, file, digest in self._db.execute(query, (round,))}

    def stopped_by(self, round: int) -> str | None:
        """The rule that ended the run with this round."""
        row = self._db.execute("SELECT value FROM meta WHERE key = 'stopped_by'").fetchone()
        number, rule = json.loads(row[0]) if row else (None, None)
        return rule if number == round else None

    def wall_seconds(self) -> float:
        """That all rounds have taken so far."""
        return float(self._db.execute("SELECT TOTAL(wall_s) FROM host_rounds").fetchone()[0])

    def files(self) -> set[str]:
        """Names of all files that the run may still need."""
        return self._texts(FILES)

    def named(self) -> list[tuple[str, object]]:
        """(table, name of a file) of all rows that name one, whatever they hold."""
        query = "SELECT 'states', file FROM states UNION SELECT 'checkpoints', file FROM checkpoints"
        return [(table, name) for table, name in self._db.execute(query)]

    def go_back(self, round: int) -> list[str]:
        """Forget what was committed after ``round``, as if it had not been; returns the names of files to be deleted.

        Only rounds of which a checkpoint is kept can be gone back to, since what clients kept before is deleted.
        """
        before = self.files()
        with self._transaction():
            for table in (*BY_ROUND, *([] if self._method_table is None else [self._method_table.name])):
                self._db.execute(f"DELETE FROM {table} WHERE round > ?", (round,))
            self._db.execute("DELETE FROM meta WHERE key = 'summary'")
        self.chain = self._last_chain()
        self._payloads = self._texts("SELECT DISTINCT payload FROM payload_shapes")
        return sorted(before - self.files())

    def event(self, event: HostEvent) -> None:
        """Record a host event at once."""
        with self._transaction():
            self._insert("host_events", [event])

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Record how the run ended."""
        with self._transaction():
            self._set("summary", json.dumps(summary))

    def close(self) -> None:
        """Fold the write-ahead log into the file and close it; readers then leave no files beside it.

        If the disk refuses, the log stays beside it: nothing that is committed is lost.
        """
        with suppress(sqlite3.Error):
            self._db.execute("PRAGMA journal_mode=DELETE")
        self._db.close()

    def _set(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            self._db.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def _drop_checkpoints(self) -> list[str]:
        """Of all but the newest checkpoints, and of what clients have replaced by the oldest of these."""
        newest = f"SELECT round FROM checkpoints ORDER BY round DESC LIMIT {KEPT_CHECKPOINTS}"
        oldest = f"SELECT MIN(round) FROM ({newest})"
        later = (
            "SELECT 1 FROM states AS later WHERE later.client = states.client "
            f"AND later.round > states.round AND later.round <= ({oldest})"
        )
        replaced = self._texts(f"SELECT file FROM states WHERE EXISTS ({later})")
        self._db.execute(f"DELETE FROM states WHERE EXISTS ({later})")
        old = self._texts(f"SELECT file FROM checkpoints WHERE round NOT IN ({newest})")
        self._db.execute(f"DELETE FROM checkpoints WHERE round NOT IN ({newest})")
        return sorted(old | replaced - self._texts("SELECT file FROM states"))  # clients may share a file

    def _last_chain(self) -> str:
        last = self._db.execute("SELECT chain FROM rounds ORDER BY round DESC LIMIT 1").fetchone()
        return str(last[0]) if last else self.genesis

    def _genesis(self) -> str:
        return str(self._db.execute("SELECT value FROM meta WHERE key = 'genesis'").fetchone()[0])

    def _rows(self, kind: type[Row], table: str, order: str) -> list[Row]:
        return [kind(*row) for row in self._scan(table, kind, order)]

    def _scan(self, table: str, kind: type[NamedTuple], order: str, more: str = "") -> sqlite3.Cursor:
        return self._db.execute(f"SELECT {', '.join(map(_quoted, kind._fields))}{more} FROM {table} ORDER BY {order}")

    def _texts(self, query: str) -> set[str]:
        return {str(row[0]) for row in self._db.execute(query)}

    def _transaction(self) -> _Transaction:
        return _Transaction(self._db)


def _quoted(name: str) -> str:
    return f'"{name}"'


class _Transaction:
    """BEGIN IMMEDIATE .. COMMIT, rolled back on any exception, also of the commit itself."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db

    def __enter__(self) -> None:
        self.db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.db.execute("COMMIT")
        finally:
            if self.db.in_transaction:  # SQLite rolls back by itself when there is no room
                with suppress(sqlite3.Error):  # what the disk refused at first is what is to be told
                    self.db.execute("ROLLBACK")


class _ByRound:
    """Rows of one table that come in the order of their rounds, taken round by round."""

    def __init__(self, rows: Iterator[tuple[Any, ...]], kind: type[NamedTuple]) -> None:
        self._groups = groupby(rows, itemgetter(kind._fields.index("round")))
        self._rows: Iterator[tuple[Any, ...]]
        self.ahead: Any
        """The round of the next rows; None if there are no more"""
        self._next()

    def take(self, round: int) -> list[tuple[Any, ...]]:
        """The rows of a round; none if others come first."""
        if self.ahead != round:
            return []
        rows = list(self._rows)
        self._next()
        return rows

    def _next(self) -> None:
        self.ahead, self._rows = next(self._groups, (None, iter(())))


def has_rounds(path: Path) -> bool:
    """Whether there is a ledger with a committed round; sqlite3.Error for one that cannot be read."""
    if not path.exists():
        return False
    try:
        return bool(read(path, "SELECT round FROM rounds LIMIT 1"))
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):  # broken off while it was made
            return False
        raise


def read(path: Path, query: str, arguments: Sequence[Any] = ()) -> list[sqlite3.Row]:
    """Rows of a ledger that may be in use by a run, opened read-only."""
    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    try:
        db.execute(TRUST_NOTHING)
        db.row_factory = sqlite3.Row
        return db.execute(query, arguments).fetchall()
    finally:
        db.close()
