"""A run repeated and compared with its folder round by round: the same scenario must give the same rows and hashes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from msgspec import Struct

from coordinator.records.schema import EVALUATIONS
from coordinator.records.store import evaluations, read
from coordinator.rounds.run import RoundFinished
from coordinator.workers.launcher import WorkerLauncher
from edge.protocol.scratch import scratch
from scenarios.config.load import Loaded, ScenarioError
from scenarios.run import input_files, runner
from scenarios.run.host import Host
from scenarios.run.observer import RunObserver
from scenarios.run.run_folder import RunFolder
from scenarios.run.setup import RunInputs

TABLES = {"rounds": "round", "visits": "visit", "payload_shapes": "rowid"}
"""Tables in the hash chain, beside the method's own -> the order of their rows."""
CHAINED = ("chain", "files")
"""Columns of the table ``rounds`` that hold hashes of the others, and of files."""
Row = Mapping[str, object]


@dataclass(frozen=True)
class Difference:
    """The first difference between two runs."""

    round: int
    table: str
    row: int
    """In the round's rows of that table; 0 is the first."""
    columns: tuple[str, ...]
    """The columns that differ; empty if one of the runs has no such row."""
    before: tuple[object, ...]
    """Their values in the folder."""
    after: tuple[object, ...]
    """Their values in the repeated run."""

    def __str__(self) -> str:
        if not self.columns:
            missing = "the repeated run" if self.before else "the folder"
            return f"round {self.round + 1}: row {self.row} of {self.table} is missing in {missing}"
        pairs = zip(self.columns, self.before, self.after, strict=True)
        values = ", ".join(f"{name} is {after!r} instead of {before!r}" for name, before, after in pairs)
        return f"round {self.round + 1}: {self.table}, row {self.row}: {values}"


class Verification(Struct, frozen=True):
    """The output of ``diff --again --json``."""

    run_dir: str
    rounds: int
    """In the folder"""
    verified: int
    """Rounds from the first on that are the same"""
    same: bool
    difference: str | None
    """In words"""
    machine_change: str
    """Differences of this machine that affect bit-identical results; empty if there are none"""
    source_change: str
    """Likewise, of the user's own modules"""


def verify(
    loaded: Loaded, folder: Path, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool]
) -> Verification:
    """Repeat the rounds of a folder in a temporary folder and compare them.

    ScenarioError for a folder without a round, and for files that have changed; other errors as `runner.run` raises
    them.
    """
    recorded = RunFolder(folder)
    try:
        known = len(recorded.rounds) if recorded.is_begun else 0
    except sqlite3.Error as error:
        raise ScenarioError(f"{recorded.ledger} cannot be read: {error}") from None
    if not known:
        raise ScenarioError(f"{folder}: there is nothing to verify before the first round has been committed")
    inputs = RunInputs(loaded)
    if input_files.change(recorded.environment.files, inputs.named_files):
        raise runner.is_another(inputs, recorded)
    count = _RoundCount(known)
    with scratch() as place:
        launcher.adopt(place)  # the launcher removes it if this process is killed
        elsewhere = replace(host, out=place, run_id="again", observers=(*host.observers, count))
        result = runner.run(loaded, elsewhere, launcher, stopped, recorded.environment.stops_at_target)
        again = Path(result["run_dir"])
        own = loaded.method.objective.records.table
        tables = TABLES | ({} if own is None else {own.name: "rowid"}) | {EVALUATIONS: "rowid"}
        differences = (difference(folder, again, round, tables) for round in range(min(count.rounds, known)))
        first = next(filter(None, differences), None)
        verified = first.round if first else min(count.rounds, known)
    return Verification(
        run_dir=str(folder),
        rounds=known,
        verified=verified,
        same=verified == known,
        difference=None if first is None else str(first),
        machine_change=recorded.environment.machine_change(host.device),
        source_change=recorded.source_change(),
    )


class _RoundCount(RunObserver):
    """Counts rounds, and ends the run after so many."""

    def __init__(self, most: int) -> None:
        self.rounds, self._most = 0, most

    def on_round(self, progress: RoundFinished) -> bool:
        self.rounds += 1
        return self.rounds >= self._most


def difference(folder: Path, again: Path, round: int, tables: Mapping[str, str]) -> Difference | None:
    """The first difference of a round between two run folders: a row, a file or the chain's hash.

    ``tables``: name -> the order of its rows.
    """
    for table, order in tables.items():
        before, after = (_rows(at, table, round, order) for at in (folder, again))
        for index, (old, new) in enumerate(zip_longest(before, after)):
            if old is None or new is None:
                return Difference(round, table, index, (), (old,) if old else (), (new,) if new else ())
            columns = tuple(name for name in old if old[name] != new[name])
            if columns:
                values = (tuple(row[name] for name in columns) for row in (old, new))
                return Difference(round, table, index, columns, *values)
    (was,), (now,) = (_rows(at, "rounds", round, "round", all_columns=True) for at in (folder, again))
    for index, (file, other) in enumerate(zip_longest(_files(was), _files(now))):
        if file != other:
            return Difference(round, "files", index, ("name, sha256",), (file,), (other,))
    same = was["chain"] == now["chain"]
    return None if same else Difference(round, "rounds", 0, ("chain",), (was["chain"],), (now["chain"],))


def _files(row: Row) -> list[object]:
    """The files that were committed with a round: the checkpoint, client states, then the server's vectors."""
    try:
        checkpoint, *others = json.loads(str(row.get("files", "[null, []]")))
        return [checkpoint, *(file for group in others for file in group)]
    except (TypeError, ValueError, RecursionError):  # in a ledger that no run has written
        return [row["files"]]


def _rows(folder: Path, table: str, round: int, order: str, all_columns: bool = False) -> list[Row]:
    path, query = folder / "ledger.sqlite", f"SELECT * FROM {table} WHERE round = ? ORDER BY {order}"
    found = evaluations(path, round) if table == EVALUATIONS else read(path, query, (round,))
    rows = [dict(row) for row in found]
    return [{name: value for name, value in row.items() if all_columns or name not in CHAINED} for row in rows]


def show(result: Verification) -> None:
    if result.same:
        print(f"all {result.rounds} rounds of {result.run_dir} are bit-identical when repeated")
    elif result.difference is None:
        print(f"stopped: the first {result.verified} of {result.rounds} rounds are the same")
    else:
        print(f"the first {result.verified} of {result.rounds} rounds are the same, then {result.difference}")
    if result.machine_change:
        print(f"results may not be bit-identical on this machine: {result.machine_change}")
    if result.source_change:
        print(f"the sources differ from those that the run began with: {result.source_change}")
