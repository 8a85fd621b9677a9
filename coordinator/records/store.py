"""Who spent how many seconds, bytes, FLOPs and joules on what: one SQLite file per run, one transaction per round.

A round is committed whole: its rows, the model's checkpoint, the server's state and where each client's kept state
lies. Tables ``rounds``, ``visits``, ``transfers``, ``choices``, ``states``, ``checkpoints`` and ``meta`` hold virtual
facts, equal for any number of workers; ``host_rounds`` and ``host_events`` hold what this machine did.

The hash chain runs over (previous hash, the round's virtual rows, among them the model's hash, and the hashes of the
files that were committed with it) and starts from the resolved scenario and the data's hash. It can be computed again
from what is stored (`coordinator.records.audit`).
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints


class RoundRow(NamedTuple):
    """One committed round. Times are virtual and absolute; amounts are of the visits that ended in it."""

    round: int
    start_s: float
    end_s: float
    participants: int
    """Training visits that counted."""
    accuracy: float | None
    """On the test set after this round; None where it was not evaluated."""
    test_loss: float | None
    train_loss: float | None
    """Mean over visits of their mean local cross-entropy."""
    bytes_down: int
    bytes_up: int
    nominal_bytes: float
    flops: float
    nominal_flops: float
    joules: float
    busy_s: float
    """Seconds of all visits together."""
    wasted_s: float
    """Of these, seconds of visits that did not count; likewise bytes and joules."""
    wasted_bytes: int
    wasted_joules: float
    critical: int | None
    """The client that the round waited for last; None if nobody was waited for."""
    bottleneck: str
    """What that client's visit, or the wait for it, took most of: one of `BOTTLENECKS`; '' if there is none."""
    model_sha256: str


OWN_LINK, SERVER_LINK, COMPUTE, WAITING = "own link", "server link", "compute", "waiting"
BOTTLENECKS = (OWN_LINK, SERVER_LINK, COMPUTE, WAITING)
TRAIN, NO_OP, DOWNLOAD_ONLY, UPDATE_REJECTED, FAILED = "train", "zeroed", "listen", "refused", "failed"
TRAINED = (TRAIN, NO_OP)
"""Kinds of visit whose updates counted."""
FAULTY = (NO_OP, UPDATE_REJECTED, FAILED)
"""Kinds of visit whose updates could not be used as they were."""
COUNTED = (*TRAINED, DOWNLOAD_ONLY)
"""Kinds of visit that were not in vain."""


class VisitRow(NamedTuple):
    """One visit of one client, in the round in which it ended."""

    visit: int
    """Number of the visit in the order of the beginnings."""
    round: int
    client: int
    device: str
    network: str
    kind: str
    """``train``, ``zeroed`` (its update could not be used, and counted as no change), or ``listen`` for a download
    only. Those that did not count: ``late`` (for the round's rule), ``lost`` (the client left, crashed or ran out of
    power), ``cut`` (the run ended), ``refused`` (its update could not be used), ``failed`` (no worker could train
    it)."""
    staleness: int
    """Server steps between the beginning of the visit and its use; 0 in synchronous rounds."""
    start_s: float
    down_end_s: float
    compute_end_s: float
    up_end_s: float
    shared_s: float
    """Lost because others used the same links."""
    paused_s: float
    """In which the client was away."""
    bytes_down: int
    bytes_up: int
    nominal_bytes: float
    flops: float
    nominal_flops: float
    joules: float
    samples: int
    """Examples trained on, an example counted each time; what was planned where the visit did not count."""
    steps: int
    loss: float | None


class TransferRow(NamedTuple):
    """The bytes of one block in one direction of one visit.

    Slot '' and key 'header' for the header; slot '' and key 'cut' for all that a visit sent until it was broken off.
    """

    visit: int
    round: int
    client: int
    direction: str
    slot: str
    key: str
    nbytes: int


class ChoiceRow(NamedTuple):
    """What the server chose for one visit, and what it learned from it (GMBS, Eq. 5-7)."""

    round: int
    client: int
    alpha: int
    full: int
    value: float
    """V of the chosen alpha at dispatch (Eq. 7)."""
    deviation: float
    loss_drop: float
    compute_share: float
    """Normalised compute time t'_{k,c}."""
    communication_share: float
    """Normalised communication time t'_{k,b}."""
    reward: float


class HostEvent(NamedTuple):
    """Something that happened to this machine's processes; never part of the result."""

    kind: str
    """worker_started, worker_joined, worker_memory, worker_retired, worker_died, task_failed, task_repeated,
    task_given_up, late_reply, message_refused, listening, checkpoint_damaged, machine_changed"""
    worker: str
    """Its number; '' when no worker of ours is known to be concerned."""
    detail: str
    wall_seconds: float
    """Unix time."""


@dataclass(frozen=True)
class Commit:
    """All that one round changes."""

    row: RoundRow
    visits: Sequence[VisitRow] = ()
    transfers: Sequence[TransferRow] = ()
    choices: Sequence[ChoiceRow] = ()
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
    """What the chain runs over: the row of the round, and those of its visits, transfers and choices"""
    files: str
    """As of `committed_files`"""
    chain: str


Row = TypeVar("Row", RoundRow, VisitRow, ChoiceRow)
_TYPES = {int: "INTEGER", float: "REAL", str: "TEXT", float | None: "REAL", int | None: "INTEGER"}


def _create(table: str, kind: type[NamedTuple], extra: str = "") -> str:
    columns = ", ".join(f"{name} {_TYPES[of]}" for name, of in get_type_hints(kind).items())
    return f"CREATE TABLE {table} ({columns}{extra})"


SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT)",
    _create("rounds", RoundRow, ", chain TEXT, files TEXT, PRIMARY KEY (round)"),
    _create("visits", VisitRow, ", PRIMARY KEY (visit)"),
    _create("transfers", TransferRow),
    _create("choices", ChoiceRow),
    "CREATE TABLE states (client INTEGER, round INTEGER, file TEXT, sha256 TEXT, PRIMARY KEY (client, round))",
    "CREATE TABLE checkpoints (round INTEGER PRIMARY KEY, file TEXT, sha256 TEXT)",
    "CREATE TABLE host_rounds (round INTEGER PRIMARY KEY, wall_s REAL)",
    "CREATE TABLE host_events (kind TEXT, worker TEXT, detail TEXT, wall_s REAL)",
)
TRUST_NOTHING = "PRAGMA trusted_schema=OFF"
"""A ledger may come from others: what is in its schema may not do more than read and write its own tables."""
FILES = "SELECT file FROM states UNION SELECT file FROM checkpoints"
KEPT_CHECKPOINTS = 2
"""The newest, and one to go back to if that is damaged."""


class Ledger:
    """The ledger of one run, open for writing by one process."""

    def __init__(self, path: Path, genesis: str | None) -> None:
        """Create the ledger; ``initial_hash`` is the first hash of the chain. None: take up one that is there."""
        self.path = path
        self._db = sqlite3.connect(path, isolation_level=None)
        try:
            self._open(genesis)
        except BaseException:
            self._db.close()
            raise
        self.genesis = self._genesis()
        self.chain = self._last_chain()

    def _open(self, genesis: str | None) -> None:
        self._db.execute(TRUST_NOTHING)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        if genesis is not None:
            with self._transaction():
                for statement in SCHEMA:
                    self._db.execute(statement)
                self._set("genesis", genesis)

    def commit(self, done: Commit) -> list[str]:
        """Commit one round; returns the names of files that nothing refers to any more, to be deleted."""
        files = committed_files(done)
        chain = next_hash(self.chain, canonical(done), files)
        with self._transaction():
            self._insert("rounds", [(*done.row, chain, files)])
            for table, rows in (("visits", done.visits), ("transfers", done.transfers), ("choices", done.choices)):
                self._insert(table, rows)
            self._insert("states", [(client, done.row.round, *file) for client, file in done.states.items()])
            self._insert("checkpoints", [(done.row.round, *done.checkpoint)])
            obsolete = self._drop_checkpoints()
            self._insert("host_rounds", [(done.row.round, done.wall_seconds)])
            if done.stopped_by is not None:
                self._set("stopped_by", json.dumps([done.row.round, done.stopped_by]))
        self.chain = chain
        return obsolete

    def rounds(self) -> list[RoundRow]:
        """All rounds, in their order."""
        return self._rows(RoundRow, "rounds", "round")

    def visits(self) -> list[VisitRow]:
        """All visits, in the order of their beginnings."""
        return self._rows(VisitRow, "visits", "visit")

    def choices(self) -> list[ChoiceRow]:
        """All choices, in the order in which they were learned from."""
        return self._rows(ChoiceRow, "choices", "rowid")

    def stored(self) -> Iterator[Stored]:
        """The rounds one after the other, each table read once; last, one without a chain if rows belong to no round.

        The values are as they are stored, whatever these are.
        """
        tables = [
            _ByRound(self._scan("visits", VisitRow, "round, visit"), VisitRow),
            _ByRound(self._scan("transfers", TransferRow, "rowid"), TransferRow),
            _ByRound(self._scan("choices", ChoiceRow, "rowid"), ChoiceRow),
        ]
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
        return self._files(FILES)

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
            for table in ("rounds", "visits", "transfers", "choices", "states", "checkpoints", "host_rounds"):
                self._db.execute(f"DELETE FROM {table} WHERE round > ?", (round,))
            self._db.execute("DELETE FROM meta WHERE key = 'summary'")
        self.chain = self._last_chain()
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
        replaced = self._files(f"SELECT file FROM states WHERE EXISTS ({later})")
        self._db.execute(f"DELETE FROM states WHERE EXISTS ({later})")
        old = self._files(f"SELECT file FROM checkpoints WHERE round NOT IN ({newest})")
        self._db.execute(f"DELETE FROM checkpoints WHERE round NOT IN ({newest})")
        return sorted(old | replaced - self._files("SELECT file FROM states"))  # clients may share a file

    def _last_chain(self) -> str:
        last = self._db.execute("SELECT chain FROM rounds ORDER BY round DESC LIMIT 1").fetchone()
        return str(last[0]) if last else self.genesis

    def _genesis(self) -> str:
        return str(self._db.execute("SELECT value FROM meta WHERE key = 'genesis'").fetchone()[0])

    def _rows(self, kind: type[Row], table: str, order: str) -> list[Row]:
        return [kind(*row) for row in self._scan(table, kind, order)]

    def _scan(self, table: str, kind: type[NamedTuple], order: str, more: str = "") -> sqlite3.Cursor:
        return self._db.execute(f"SELECT {', '.join(kind._fields)}{more} FROM {table} ORDER BY {order}")

    def _files(self, query: str) -> set[str]:
        return {str(row[0]) for row in self._db.execute(query)}

    def _transaction(self) -> _Transaction:
        return _Transaction(self._db)


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


def canonical(done: Commit) -> list[tuple[Any, ...]]:
    """The rows that the chain runs over, in the order and with the values that they are read back with."""
    visits = sorted(done.visits, key=lambda row: row.visit)  # as the table is: its order of insertion is not stored
    rows: list[NamedTuple] = [done.row, *visits, *done.transfers, *done.choices]
    return [_as_stored(row) for row in rows]


_STORED: Mapping[str, Callable[[Any], Any]] = {"INTEGER": int, "REAL": lambda value: float(value) + 0.0, "TEXT": str}
"""How a value is read back: 2 as 2.0 and -0.0 as 0.0 from a column of floats."""


def _as_stored(row: NamedTuple) -> tuple[Any, ...]:
    return tuple(None if v is None else as_is(v) for v, as_is in zip(row, _columns(type(row)), strict=True))


@cache
def _columns(kind: type[Any]) -> tuple[Callable[[Any], Any], ...]:
    return tuple(_STORED[_TYPES[of]] for of in get_type_hints(kind).values())


def committed_files(done: Commit) -> str:
    """The files that are committed with a round: [[name, sha256] of the checkpoint, [[client, name, sha256], ...]]."""
    return _json([done.checkpoint, sorted((client, *file) for client, file in done.states.items())])


def next_hash(previous: str, rows: Sequence[Sequence[Any]], files: str) -> str:
    """The next hash of the chain: over the previous one, the round's rows and its files, all as they are stored.

    ValueError or TypeError for values that no run commits.
    """
    return hashlib.sha256(f"{previous}\n{_json(rows)}\n{files}".encode()).hexdigest()


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def initial_hash(scenario: Mapping[str, Any], data_sha256: str) -> str:
    """The chain's first hash, from the resolved scenario and the data."""
    text = json.dumps(scenario, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(f"{text}\n{data_sha256}".encode()).hexdigest()


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
