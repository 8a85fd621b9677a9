"""The ledger: one SQLite file per run, one transaction per round.

A transaction holds the round's rows and the names and hashes of its files: the checkpoint, the client states,
and the vectors that the server stores per client.
`coordinator.records.schema` has the tables, `coordinator.records.chain` the hash chain over them.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from coordinator.records import foreign
from coordinator.records.chain import StoredRow, committed_files, next_hash, stored_rows
from coordinator.records.kept_checkpoints import BEST, CheckpointRules
from coordinator.records.schema import (
    AGGREGATORS,
    CHAINED,
    CONDITIONS,
    ENERGY,
    EVALUATIONS,
    FORMAT,
    LOGGED,
    SCHEMA,
    STEPS,
    AggregatorRow,
    EvaluationRow,
    HostEvent,
    Lengths,
    LoggedRow,
    MethodTable,
    PayloadShapeRow,
    RoundRow,
    StepsRow,
    VisitRow,
    create,
    payload_rows,
    payloads_of,
)
from coordinator.records.visit_columns import VisitColumns
from coordinator.rounds.run import RunFailed
from edge.protocol.better import HIGHER, Better
from edge.protocol.bounds import LONGEST_NAME, MOST_VALUE_NBYTES, check_numbers
from edge.protocol.home import abbreviated


@dataclass(frozen=True)
class Commit:
    """All changes of one round."""

    row: RoundRow
    visits: VisitColumns = field(default_factory=VisitColumns.of)
    payloads: Mapping[str, Lengths] = field(default_factory=dict)
    """Name -> lengths of the vectors of all payloads of its visits"""
    method_rows: Sequence[NamedTuple] = ()
    """Rows of the method's own table"""
    evaluations: Sequence[EvaluationRow] = ()
    aggregators: Sequence[AggregatorRow] = ()
    conditions: Sequence[StoredRow] = ()
    """`ConditionsRow`; in no hash"""
    logged: Sequence[LoggedRow] = ()
    """In no hash"""
    states: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """client -> (file name, sha256 of the file) of its state"""
    vectors: Mapping[tuple[int, str], tuple[str, str]] = field(default_factory=dict)
    """(client, slot) -> (file name, sha256 of the file) of vectors that the server stores of it"""
    checkpoint: tuple[str, str] = ("", "")
    """(file name, sha256 of the file); empty for a run that is resumed from other records"""
    wall_seconds: float = 0.0
    stopped_by: str | None = None
    """The rule that ends the run with this round"""
    steps: Sequence[StepsRow] = ()
    """In no hash"""


@dataclass(frozen=True)
class Stored:
    """One round as a ledger holds it."""

    round: int
    rows: Sequence[Sequence[Any]]
    """The rows that the chain hashes: of the round, its visits, new payload shapes, the method's own, its evaluation"""
    files: str
    """JSON, as `committed_files` writes it"""
    chain: str


BY_ROUND = ("rounds", "visits", "payload_shapes", CONDITIONS, "states", "client_vectors", "checkpoints", "host_rounds")
"""Tables whose rows belong to a round"""
FILES = "SELECT file FROM states UNION SELECT file FROM client_vectors UNION SELECT file FROM checkpoints"
SYNCHRONOUS = "FULL"
"""A committed round outlives a power cut, which the default of a write-ahead log does not promise."""
ROUNDING = 1e-9
"""Share of a visit's joules by which their parts may miss them"""
STEPS_BETWEEN_LOOKS = 10
"""Steps of SQLite between two looks at the time; one step may read a value of `foreign.MOST_VALUE_NBYTES`"""
KEPT_CHECKPOINTS = 2
"""The newest, and the one before: in case it is damaged, and for a run that is to go on with other limits"""
_NEWEST = f"SELECT round FROM checkpoints ORDER BY round DESC LIMIT {KEPT_CHECKPOINTS}"
_UNTIL_THEM = f"later.round > mine.round AND later.round <= (SELECT MIN(round) FROM ({_NEWEST}))"
NEWEST_FILES = f"""
    SELECT file FROM checkpoints WHERE round IN ({_NEWEST}) UNION
    SELECT file FROM states AS mine WHERE NOT EXISTS (
        SELECT 1 FROM states AS later WHERE later.client = mine.client AND {_UNTIL_THEM}
    ) UNION
    SELECT file FROM client_vectors AS mine WHERE NOT EXISTS (
        SELECT 1 FROM client_vectors AS later
        WHERE later.client = mine.client AND later.slot = mine.slot AND {_UNTIL_THEM}
    )
"""
"""The files of the newest checkpoints, without those that the scenario keeps beside them"""


class Ledger:
    """The ledger of one run, open for writing by one process."""

    def __init__(
        self,
        path: Path,
        genesis: str | None,
        method_table: MethodTable | None = None,
        rules: CheckpointRules | None = None,
        better: Better = HIGHER,
        check_place: Callable[[], None] = lambda: None,
    ) -> None:
        """Create the ledger; ``genesis`` is the first hash of its chain. None: open an existing one.

        ``rules``: which checkpoints stay beside the newest ones; ``check_place``: RunFailed if the run folder is no
        longer where it was, called before each transaction.
        """
        self.path, self._rules, self._better = path, rules or CheckpointRules(), better
        self.check_place = check_place
        self._method_table = method_table
        foreign.check_files(path)
        self._db = sqlite3.connect(path, isolation_level=None)
        try:
            self._open(genesis)
        except BaseException:
            self._db.close()
            raise
        self.genesis = str(self._db.execute("SELECT value FROM meta WHERE key = 'genesis'").fetchone()[0])
        self.chain = self._last_chain()
        self._payloads: set[str] = self._texts("SELECT DISTINCT payload FROM payload_shapes")

    def _open(self, genesis: str | None) -> None:
        foreign.check_schema(self._db)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(f"PRAGMA synchronous={SYNCHRONOUS}")
        if genesis is not None:
            with self._transaction():
                for statement in SCHEMA:
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {FORMAT}")
                if self._method_table is not None:
                    self._db.execute(create(self._method_table.name, self._method_table.row))
                self._set("genesis", genesis)
        else:
            _check_format(self._db)
        self._db.execute("PRAGMA temp_store = MEMORY")
        self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE_NBYTES)
        for table in foreign.check_schema(self._db):
            foreign.guard(self._db, table)

    def commit(self, commit: Commit) -> list[str]:
        """Commit one round; returns the names of obsolete files, to be deleted.

        RunFailed for values that no reader takes (`edge.protocol.bounds`), naming the client whose they are.
        """
        _check_logged(commit)
        files = committed_files(commit.checkpoint, commit.states, commit.vectors)
        shapes = [
            row
            for name, lengths in commit.payloads.items()
            if name not in self._payloads  # new in this round, in the order of the visits
            for row in payload_rows(name, commit.row.round, lengths)
        ]
        visits = commit.visits.rows()
        kinds: tuple[Sequence[NamedTuple], ...]
        kinds = shapes, commit.method_rows, commit.evaluations, commit.aggregators
        others = [row for rows in kinds for row in stored_rows(rows)]
        chained = [row[:CHAINED] for row in visits]
        with self._transaction():
            self._insert("visits", visits)
            self._insert("payload_shapes", shapes)
            self._insert(CONDITIONS, commit.conditions)
            if self._method_table is not None:
                self._insert(self._method_table.name, commit.method_rows)
            optional: Mapping[str, Sequence[NamedTuple]] = {
                EVALUATIONS: commit.evaluations,
                AGGREGATORS: commit.aggregators,
                LOGGED: commit.logged,
                STEPS: commit.steps,
            }
            for table, rows in optional.items():  # runs without such rows lack the table
                if rows and not self._has(table):
                    self._db.execute(create(table, type(rows[0])))
                    foreign.guard(self._db, table)
                self._insert(table, rows)
            try:
                chain = next_hash(self.chain, [*stored_rows([commit.row]), *chained, *others], files)
            except ValueError as error:  # NaN, infinity, and text that no file holds are no JSON
                row = (*commit.row, "", files)
                problem = f"round {commit.row.round + 1} cannot be recorded: {error}"
                raise RunFailed(_refusal(self._db, "rounds", [row]) or problem) from error
            self._insert("rounds", [(*commit.row, chain, files)])
            self._insert("states", [(client, commit.row.round, *file) for client, file in commit.states.items()])
            self._insert(
                "client_vectors", [(*place, commit.row.round, *file) for place, file in commit.vectors.items()]
            )
            if commit.checkpoint[0]:
                self._insert("checkpoints", [(commit.row.round, *commit.checkpoint)])
            obsolete = self._drop_checkpoints()
            self._insert("host_rounds", [(commit.row.round, commit.wall_seconds)])
            if commit.stopped_by is not None:
                self._set("stopped_by", json.dumps([commit.row.round, commit.stopped_by]))
        self.chain = chain
        self._payloads.update(row.payload for row in shapes)
        return obsolete

    def _has(self, table: str) -> bool:
        return bool(self._db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchall())

    def rounds(self) -> list[RoundRow]:
        """All rounds, in order."""
        return [RoundRow(*row) for row in self._scan("rounds", RoundRow, "round")]

    def visits(self) -> list[VisitRow]:
        """All visits, in the order in which they began."""
        return [VisitRow(*row) for row in self._scan("visits", VisitRow, "visit")]

    def method_rows(self) -> list[Any]:
        """All rows of the method's own table, in the order of writing; empty without such a table."""
        table = self._method_table
        return [] if table is None else [table.row(*row) for row in self._scan(table.name, table.row, "rowid")]

    def evaluations(self, kind: str) -> dict[int, list[EvaluationRow]]:
        """Round -> its values of one kind, in the order of writing."""
        if not self._has(EVALUATIONS):
            return {}
        rows = self._scan(f"{EVALUATIONS} WHERE kind = ?", EvaluationRow, "rowid", values=(kind,))
        return {round: list(map(EvaluationRow._make, group)) for round, group in groupby(rows, itemgetter(0))}

    def payloads(self) -> dict[str, dict[str, dict[str, int]]]:
        """As of `payloads_of`."""
        return payloads_of(map(PayloadShapeRow._make, self._scan("payload_shapes", PayloadShapeRow, "rowid")))

    def stored(self) -> Iterator[Stored]:
        """The rounds in order, with unchecked values; a last one without a chain if rows belong to no round.

        Each table is read once.
        """
        tables = [
            _ByRound((row[:CHAINED] for row in self._scan("visits", VisitRow, "round, visit")), VisitRow),
            _ByRound(self._scan("payload_shapes", PayloadShapeRow, "rowid"), PayloadShapeRow),
        ]
        if (method := self._method_table) is not None:
            tables.append(_ByRound(self._scan(method.name, method.row, "rowid"), method.row))
        optional: tuple[tuple[str, type[NamedTuple]], ...]
        optional = (EVALUATIONS, EvaluationRow), (AGGREGATORS, AggregatorRow)
        for name, kind in optional:
            if self._has(name):
                tables.append(_ByRound(self._scan(name, kind, "rowid"), kind))
        for *row, files, chain in self._scan("rounds", RoundRow, "round", ", files, chain"):
            others = [other for table in tables for other in table.take(row[0])]
            yield Stored(row[0], [row, *others], files, chain)
        for table in tables:
            if table.next_round is not None:
                yield Stored(table.next_round, [], "", "")

    def undivided(self) -> int | None:
        """The first round with a visit whose joules its parts do not add up to; the hash chain has no parts."""
        numbers = " OR ".join(f"typeof({name}) != 'real'" for name in ENERGY)
        differ = f"NOT ABS({' + '.join(ENERGY)} - joules) <= {ROUNDING} * joules"
        (round,) = self._db.execute(f"SELECT MIN(round) FROM visits WHERE {numbers} OR {differ}").fetchone()
        return None if round is None else int(round)

    def checkpoints(self) -> list[tuple[int, str, str]]:
        """(round, file name, sha256) of the stored checkpoints, newest first."""
        return list(self._db.execute("SELECT round, file, sha256 FROM checkpoints ORDER BY round DESC"))

    def client_states(self, round: int) -> dict[int, tuple[str, str]]:
        """client -> (file name, sha256) of its state at the end of ``round``, which must have a stored checkpoint."""
        query = "SELECT client, file, sha256 FROM states WHERE round <= ? ORDER BY client, round"
        return {client: (file, digest) for client, file, digest in self._db.execute(query, (round,))}

    def client_vectors(self, round: int) -> dict[tuple[int, str], tuple[str, str]]:
        """(client, slot) -> (file name, sha256) at the end of ``round``, which must have a stored checkpoint."""
        query = "SELECT client, slot, file, sha256 FROM client_vectors WHERE round <= ? ORDER BY client, slot, round"
        return {(client, slot): (file, digest) for client, slot, file, digest in self._db.execute(query, (round,))}

    def stopped_by(self, round: int) -> str | None:
        """The rule that ended the run with this round, if any."""
        row = self._db.execute("SELECT value FROM meta WHERE key = 'stopped_by'").fetchone()
        number, rule = json.loads(row[0]) if row else (None, None)
        return rule if number == round else None

    def wall_seconds(self) -> float:
        """Wall-clock seconds of all rounds so far."""
        return float(self._db.execute("SELECT TOTAL(wall_s) FROM host_rounds").fetchone()[0])

    def files(self) -> set[str]:
        """Names of all files that the run may still need."""
        return self._texts(FILES)

    def file_names(self) -> list[tuple[str, object]]:
        """(table, file name) of all rows that name a file; values are unchecked."""
        tables = ("states", "client_vectors", "checkpoints")
        query = " UNION ".join(f"SELECT '{table}', file FROM {table}" for table in tables)
        return [(table, name) for table, name in self._db.execute(query)]

    def truncate_after(self, round: int) -> list[str]:
        """Delete all rows of later rounds; returns the names of files to be deleted.

        ``round`` must have a stored checkpoint, since older client states are deleted.
        """
        before = self.files()
        with self._transaction():
            method = [] if self._method_table is None else [self._method_table.name]
            for table in (*BY_ROUND, *method, *filter(self._has, (EVALUATIONS, AGGREGATORS, LOGGED, STEPS))):
                self._db.execute(f"DELETE FROM {table} WHERE round > ?", (round,))
            self._db.execute("DELETE FROM meta WHERE key = 'summary'")
            if self.stopped_by(round) is None:  # it is of a round that is deleted
                self._db.execute("DELETE FROM meta WHERE key = 'stopped_by'")
        self.chain = self._last_chain()
        self._payloads = self._texts("SELECT DISTINCT payload FROM payload_shapes")
        return sorted(before - self.files())

    def keep_newest(self) -> None:
        """Delete the rows of all files but `NEWEST_FILES`; the files themselves are the caller's."""
        with self._transaction():
            for table in ("states", "client_vectors", "checkpoints"):
                self._db.execute(f"DELETE FROM {table} WHERE file NOT IN ({NEWEST_FILES})")

    def event(self, event: HostEvent) -> None:
        """Record a host event at once."""
        with self._transaction():
            self._insert("host_events", [event._replace(detail=abbreviated(event.detail))])

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Record how the run ended."""
        with self._transaction():
            self._set("summary", json.dumps(summary))

    def close(self) -> None:
        """Merge the write-ahead log into the file and close it, so that readers leave no files beside it.

        If the disk fails, the log stays: no commit is lost. So it does in a folder that has moved: SQLite would remove
        the log at the old path, which may be that of another ledger.
        """
        with suppress(sqlite3.Error, RunFailed):
            self.check_place()
            self._db.execute("PRAGMA journal_mode=DELETE")
        self._db.close()

    def _set(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            try:
                self._db.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
            except (sqlite3.IntegrityError, sqlite3.DataError, OverflowError, UnicodeEncodeError) as error:
                refusal = _refusal(self._db, table, rows)
                if refusal is None and isinstance(error, sqlite3.IntegrityError):
                    raise
                raise RunFailed(refusal or f"table {table}: {error}") from error

    def _drop_checkpoints(self) -> list[str]:
        """Delete rows of old checkpoints and of the client states replaced since; returns their files' names."""
        stored, best = [round for round, _, _ in self.checkpoints()], None
        if self._rules.keep == BEST:  # the first round with the highest accuracy
            order = "DESC" if self._better is HIGHER else "ASC"
            judged = "COALESCE(score, accuracy)"
            query = f"SELECT round FROM rounds WHERE {judged} IS NOT NULL ORDER BY {judged} {order}, round LIMIT 1"
            row = self._db.execute(query).fetchone()
            best = None if row is None else int(row[0])
        dropped = set(stored[KEPT_CHECKPOINTS:]) - self._rules.kept(stored, best)
        old = {name for round, name, _ in self.checkpoints() if round in dropped}
        self._db.executemany("DELETE FROM checkpoints WHERE round = ?", [(round,) for round in dropped])
        newest = f"SELECT round FROM checkpoints ORDER BY round DESC LIMIT {KEPT_CHECKPOINTS}"
        oldest = f"SELECT MIN(round) FROM ({newest})"
        replaced = self._drop_replaced("states", "later.client = states.client", oldest)
        same = "later.client = client_vectors.client AND later.slot = client_vectors.slot"
        replaced |= self._drop_replaced("client_vectors", same, oldest)
        return sorted(old | replaced - self._texts("SELECT file FROM states"))  # clients may share a file

    def _drop_replaced(self, table: str, same: str, oldest: str) -> set[str]:
        """Delete rows of files that were replaced until round ``oldest``; returns the files' names.

        Those that a checkpoint before ``oldest`` needs stay.
        """
        later = (
            f"SELECT 1 FROM {table} AS later WHERE {same} AND later.round > {table}.round AND later.round <= ({oldest})"
        )
        until = (
            f"SELECT 1 FROM {table} AS later WHERE {same} AND later.round > {table}.round AND later.round <= kept.round"
        )
        needed = (
            f"SELECT 1 FROM checkpoints AS kept WHERE kept.round < ({oldest}) AND kept.round >= {table}.round "
            f"AND NOT EXISTS ({until})"
        )
        condition = f"EXISTS ({later}) AND NOT EXISTS ({needed})"
        replaced = self._texts(f"SELECT file FROM {table} WHERE {condition}")
        self._db.execute(f"DELETE FROM {table} WHERE {condition}")
        return replaced

    def _last_chain(self) -> str:
        last = self._db.execute("SELECT chain FROM rounds ORDER BY round DESC LIMIT 1").fetchone()
        return str(last[0]) if last else self.genesis

    def _scan(
        self, table: str, kind: type[NamedTuple], order: str, extra: str = "", values: Sequence[Any] = ()
    ) -> sqlite3.Cursor:
        columns = ", ".join(f'"{name}"' for name in kind._fields)
        query = f"SELECT {columns}{extra} FROM {table} ORDER BY {order}"
        return self._db.execute(query, values)

    def _texts(self, query: str) -> set[str]:
        return {str(row[0]) for row in self._db.execute(query)}

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """BEGIN IMMEDIATE .. COMMIT, rolled back on any exception, including one of the commit itself."""
        self.check_place()
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:  # SQLite rolls back by itself if the disk is full
                with suppress(sqlite3.Error):  # the first error is the one to report
                    self._db.execute("ROLLBACK")


def _check_logged(commit: Commit) -> None:
    """RunFailed for names, numbers or so many of them as no reader takes, of one client or the server's side."""
    logged: dict[int | None, dict[str, float]] = {}
    for row in commit.logged:
        logged.setdefault(row.client, {})[row.name] = math.nan if row.value is None else row.value
    for client, numbers in logged.items():
        try:
            check_numbers(numbers)
        except ValueError as error:
            who = "the server's side" if client is None else f"client {client}"
            raise RunFailed(f"round {commit.row.round + 1}: {who} logs {error}") from None


def _refusal(db: sqlite3.Connection, table: str, rows: Sequence[tuple[Any, ...]]) -> str | None:
    """The value among these rows that no reader of the ledger would take, with its client; None if there is none."""
    with suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
        if (place := foreign.first_wrong(db, table, rows)) is None:
            return None
        row, column = place
        values = dict(zip([name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")], row, strict=True))
        of = [f"{name} {values[name]}" for name in ("client", "name", "metric") if values.get(name) is not None]
        shown = ascii(values[column])
        shown = shown if len(shown) <= 2 * LONGEST_NAME else f"{shown[: 2 * LONGEST_NAME]}.."
        return ", ".join([f"table {table}", *of, f"column {column}"]) + f": {shown} is beyond what a run records"
    return None


class _ByRound:
    """Rows of one table, sorted by round and read round by round."""

    def __init__(self, rows: Iterator[tuple[Any, ...]], kind: type[NamedTuple]) -> None:
        self._groups = groupby(rows, itemgetter(kind._fields.index("round")))
        self._rows: Iterator[tuple[Any, ...]]
        self.next_round: Any
        """The round of the next rows; None if there are no more"""
        self._next()

    def take(self, round: int) -> list[tuple[Any, ...]]:
        """The rows of a round; empty if the next rows are of another."""
        if self.next_round != round:
            return []
        rows = list(self._rows)
        self._next()
        return rows

    def _next(self) -> None:
        self.next_round, self._rows = next(self._groups, (None, iter(())))


def _check_format(db: sqlite3.Connection) -> None:
    """sqlite3.DatabaseError for tables of another version; one whose creation was interrupted has none."""
    has_tables = db.execute("SELECT 1 FROM sqlite_master").fetchone() is not None  # first: a run may write both now
    (number,) = db.execute("PRAGMA user_version").fetchone()
    if number != FORMAT and has_tables:
        raise sqlite3.DatabaseError(
            f"its format is {number}, and this version of fedbr knows {FORMAT} alone: use the version that wrote it"
        )


def has_rounds(path: Path) -> bool:
    """Whether the ledger exists and has a committed round; sqlite3.Error if it cannot be read."""
    if not path.exists():
        return False
    try:
        return bool(read(path, "SELECT round FROM rounds LIMIT 1"))
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):  # interrupted while it was created
            return False
        raise


def evaluations(path: Path, round: int | None = None, table: str = EVALUATIONS) -> list[sqlite3.Row]:
    """Rows of the table ``evaluations`` of a ledger, of one round or of all; empty without the table."""
    if not read(path, "SELECT 1 FROM sqlite_master WHERE name = ?", (table,)):
        return []
    return read(path, f"SELECT * FROM {table} WHERE round = ? OR ? IS NULL ORDER BY rowid", (round, round))


def logged(path: Path) -> list[sqlite3.Row]:
    """Rows of the table ``logged`` of a ledger; empty without the table."""
    return evaluations(path, table=LOGGED)


def read(path: Path, query: str, arguments: Sequence[Any] = (), limit_seconds: float = math.inf) -> list[sqlite3.Row]:
    """Rows of a ledger, opened read-only; a run may be using it. `foreign.ForeignLedger` for one that is none.

    sqlite3.OperationalError, "interrupted", if that takes longer than the limit.
    """
    end = time.monotonic() + limit_seconds

    def rows() -> list[sqlite3.Row]:
        if limit_seconds < math.inf:
            db.set_progress_handler(lambda: time.monotonic() > end, STEPS_BETWEEN_LOOKS)
        foreign.check_schema(db)
        _check_format(db)
        db.row_factory = sqlite3.Row
        return foreign.rows(db.execute(query, arguments))

    with closing(foreign.connect(path)) as db:
        return foreign.interruptible(db, rows)
