"""``fedbr ls``: the runs and run sets below folders, as they are found. Nothing is written or imported.

A folder may come from anyone, and may hold anything: each file is looked at within limits of size and time, and what is
wrong with a folder is its entry's ``problem``. Finished runs are known by their ledgers' summaries alone, so that a
thousand of them are listed in seconds.
"""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from msgspec import Struct, convert
from msgspec.structs import asdict, replace

from coordinator.records import foreign
from coordinator.records.store import read
from coordinator.rounds.budget import EARLY
from costmodel.files import read_bytes
from costmodel.units import format_bytes
from edge.protocol.config import ACCURACY
from edge.protocol.files import is_locked
from scenarios.config.errors import ScenarioError, one_paragraph
from scenarios.report import terminal
from scenarios.report.columns import PERCENT, cells, fitting, widths
from scenarios.report.run_reader import stop_text
from scenarios.run import folder_files, run_records
from scenarios.run.run_folder import LEDGER, SCENARIO
from scenarios.run.score import named_score

RUN = "run"
MARKS = ("study.json", "compare.json")
"""Files that mark the folder of a run set"""
State = Literal["finished", "stopped", "unfinished", "running", "damaged"]
STATES: tuple[State, ...] = ("finished", "stopped", "unfinished", "running", "damaged")
HALF_MADE = re.compile(r"\..+\.new-[a-z0-9_]{8}")
"""Folders that `edge.protocol.files.write_folder` fills"""
MOST_FOLDERS = 10_000
"""Folders that are searched, runs not counted"""
MOST_SECONDS = 2.0
"""For a query of one ledger"""
MOST_SCENARIO_NBYTES, MOST_RECORD_NBYTES, MOST_LOG_NBYTES = 1 << 20, 1 << 24, 1 << 30
"""Of a scenario, of a summary or a run set's result, and of a ledger's write-ahead log, that are read here"""
MOST_METHODS = 3


class ScenarioFacts(Struct, frozen=True):
    """A run as its scenario has it; None where it does not say it."""

    method: str | None = None
    seed: int | None = None


class LedgerFacts(ScenarioFacts, frozen=True):
    """A run as its ledger has it, as far as that goes."""

    rounds: int | None = None
    """Committed ones"""
    accuracy: float | None = None
    """The last that was evaluated, in [0, 1]; None of runs that are judged by another metric"""
    metric: str = ACCURACY
    """By which the run is judged"""
    score: float | None = None
    """Its last value"""
    stopped_by: str | None = None
    """The rule that ended the run, as its summary names it"""


@dataclass(frozen=True)
class RunEntry:
    """A run folder, or that of a run set, with what is known of it."""

    folder: Path
    kind: str
    """``run``; or what made the run set: ``sweep``, ``compare``, ``budget``, .."""
    scenario: str
    """Its name, that of the folder above"""
    state: State
    """``stopped``: by its user or a time limit, so that it can go on; ``unfinished``: killed, or a run set without all
    of its runs; ``running``: a process has locked it"""
    nbytes: int
    """Of all files in it, links not followed"""
    modified: datetime
    method: str | None = None
    seed: int | None = None
    stopped_by: str | None = None
    """The rule that ended the run, as its summary names it"""
    rounds: int | None = None
    """Committed rounds"""
    accuracy: float | None = None
    """The last that was evaluated, in [0, 1]; None of runs that are judged by another metric"""
    metric: str = ACCURACY
    """By which the run is judged"""
    score: float | None = None
    """Its last value"""
    problem: str = ""
    """What is wrong with its files"""
    runs: tuple[RunEntry, ...] = ()
    """Of a run set, the last one newest"""

    @property
    def is_set(self) -> bool:
        return self.kind != RUN

    @property
    def kind_text(self) -> str:
        return "comparison" if self.kind == "compare" else self.kind

    @property
    def methods(self) -> str:
        """The method, or those of the run set's runs."""
        names = list(dict.fromkeys(run.method for run in self.runs if run.method)) or [self.method or "?"]
        return ", ".join(names[:MOST_METHODS]) + (
            f" and {len(names) - MOST_METHODS} more" * (len(names) > MOST_METHODS)
        )

    @property
    def state_text(self) -> str:
        """The state with what ended the run, what is wrong, or how many runs of a run set are in which state."""
        if self.problem:
            return f"{self.state}: {self.problem}"
        if self.is_set:
            counts = Counter(run.state for run in self.runs)
            parts = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
            return f"{self.kind_text}, {len(self.runs)} runs: {parts}" if parts else f"{self.kind_text} without runs"
        if self.stopped_by is None or self.state == "running":
            return self.state
        return stop_text(self.stopped_by) if self.state == "stopped" else f"finished, {stop_text(self.stopped_by)}"

    def to_dict(self) -> dict[str, object]:
        """All of it as JSON has it, with ``bytes`` and ``modified_utc``."""
        values: dict[str, object] = {each.name: getattr(self, each.name) for each in fields(self)}
        values |= {"folder": str(self.folder), "runs": [run.to_dict() for run in self.runs]}
        del values["nbytes"], values["modified"]
        return values | {"bytes": self.nbytes, "modified_utc": self.modified.isoformat(timespec="seconds")}


def entries(folders: Sequence[Path]) -> list[RunEntry]:
    """The runs and run sets that these folders are, or that are below them, each once, the newest last.

    ScenarioError for a folder that is not there, and for more than `MOST_FOLDERS` below it.
    """
    known: dict[Path, RunEntry] = {}
    for folder in folders:
        if not folder.is_dir():
            why = "is a file" if folder.is_file() else "no such folder"
            raise ScenarioError(one_paragraph(f"{folder}: {why}"))
        for entry in _below(folder):
            known.setdefault(entry.folder.resolve(), entry)
    return _in_order(known.values())


def entry(folder: Path) -> RunEntry | None:
    """The run or run set of this folder; None for any other folder."""
    names, files = _content(folder)
    return _entry(folder, names, files)


def half_made(folders: Sequence[Path]) -> list[Path]:
    """Folders below these that processes have left half filled, or fill now."""
    half = []
    for top in folders:
        for place, names, _ in os.walk(top):
            paths = (Path(place, name) for name in names if HALF_MADE.fullmatch(name))
            half += [path for path in paths if not path.is_symlink()]
            names[:] = [name for name in names if not name.startswith(".") and name not in folder_files.FOLDERS]
    return half


def _in_order(several: Iterable[RunEntry]) -> list[RunEntry]:
    return sorted(several, key=lambda each: (each.modified, str(each.folder)))


def _below(top: Path) -> Iterator[RunEntry]:
    searched = 0
    for place, names, files in os.walk(top):
        names[:] = sorted(name for name in names if not name.startswith("."))
        found = _entry(Path(place), names, files)
        if found is not None:
            names.clear()
            yield found
            continue
        searched += 1
        if searched > MOST_FOLDERS:
            raise ScenarioError(
                one_paragraph(f"{top}: more than {MOST_FOLDERS:,} folders are below it; name one nearer to the runs")
            )


def _content(folder: Path) -> tuple[list[str], list[str]]:
    """(folders, other files) in a folder, as os.walk tells them apart; nothing where it cannot be read."""
    return next(((names, files) for _, names, files in os.walk(folder)), ([], []))


def _entry(folder: Path, names: Sequence[str], files: Sequence[str]) -> RunEntry | None:
    mark = next((name for name in MARKS if name in files), None)
    if LEDGER in files or (SCENARIO in files and folder_files.LOGS in names):
        return _run(folder, in_set=False)
    return None if mark is None else _run_set(folder, names, folder / mark)


def _run_set(folder: Path, names: Sequence[str], mark: Path) -> RunEntry | None:
    """None for a file of the mark's name that no run set writes, beside which there are no runs either."""
    kind, problem = "study", ""
    try:
        kind = str(run_records.parsed(read_bytes(mark, MOST_RECORD_NBYTES), run_records.Record)["study"])
    except (OSError, ValueError, KeyError) as error:
        why = "names no study" if isinstance(error, KeyError) else str(error).removeprefix(f"{mark}: ")
        problem = one_paragraph(f"{mark.name}: {why}")
    inside = [folder / name for name in sorted(names) if not (folder / name).is_symlink()]
    contents = ((each, *_content(each)) for each in inside)
    runs = _in_order(
        _run(each, in_set=True)
        for each, below, files in contents
        if LEDGER in files or (SCENARIO in files and folder_files.LOGS in below)
    )
    if problem and not runs:
        return None
    own = sum(_nbytes(folder / name) for name in _content(folder)[1])
    nbytes = (
        own
        + sum(run.nbytes for run in runs)
        + sum(_size(each) for each in inside if each not in {run.folder for run in runs})
    )
    states = {run.state for run in runs}
    state: State = "finished" if states == {"finished"} else "unfinished"
    if "running" in states or has_lock(folder):
        state = "running"
    state = "damaged" if problem else state
    changed = max([_changed([folder / mark.name]), *(run.modified for run in runs)])
    return RunEntry(
        folder, kind, folder.resolve().parent.name, state, nbytes, changed, problem=problem, runs=tuple(runs)
    )


def _run(folder: Path, in_set: bool) -> RunEntry:
    name = folder.resolve().parents[1 if in_set else 0].name
    facts, problem = LedgerFacts(), ""
    try:
        facts = _of_ledger(folder / LEDGER)
    except (OSError, ValueError, sqlite3.Error) as error:
        why = str(error).removeprefix(f"{folder / LEDGER}: ")
        why = f"takes longer than {MOST_SECONDS:g} s to read" if why == "interrupted" else why
        problem = f"{LEDGER}: {why}"
    try:
        file, nbytes = folder / SCENARIO, 0
        with suppress(FileNotFoundError):
            nbytes = file.stat().st_size
        if not MOST_SCENARIO_NBYTES < nbytes <= run_records.MOST_NBYTES:  # one with a name per client is too long
            written = convert(run_records.read_scenario(file)[1], ScenarioFacts)
            method, seed = (facts.method or written.method, written.seed if facts.seed is None else facts.seed)
            facts = replace(facts, method=method, seed=seed)
    except (OSError, ValueError) as error:
        problem = problem or f"{SCENARIO}: {str(error).removeprefix(f'{folder / SCENARIO}: ')}"
    is_early = facts.stopped_by in (None, *EARLY)
    state: State = "finished" if not is_early else "stopped" if facts.stopped_by else "unfinished"
    if problem:
        state = "damaged"
    elif is_early and has_lock(folder):
        state = "running"
    changed = _changed(folder / name for name in (*folder_files.LEDGER, SCENARIO))
    return RunEntry(folder, RUN, name, state, _size(folder), changed, problem=one_paragraph(problem), **asdict(facts))


def _of_ledger(ledger: Path) -> LedgerFacts:
    """The run's facts, as far as they are there."""
    try:
        foreign.check_files(ledger)
        if ledger.with_name(f"{ledger.name}-wal").stat().st_size > MOST_LOG_NBYTES:
            raise ValueError("its write-ahead log is too large to be read for a list")
    except FileNotFoundError:
        pass
    if not ledger.exists():
        return LedgerFacts(rounds=0)
    try:
        query = "SELECT length(value) AS nbytes, value FROM meta WHERE key = 'summary' LIMIT 1"
        for row in read(ledger, query, limit_seconds=MOST_SECONDS):
            if not isinstance(row["value"], str) or row["nbytes"] > MOST_RECORD_NBYTES:
                raise ValueError("its summary is none, or too long")
            return convert(run_records.parsed(row["value"], run_records.SummaryRecord), LedgerFacts)
        last = read(ledger, "SELECT MAX(round) AS last FROM rounds", limit_seconds=MOST_SECONDS)[0]["last"]
        judged = "COALESCE(score, accuracy)"
        query = f"SELECT accuracy, score FROM rounds WHERE {judged} IS NOT NULL ORDER BY round DESC LIMIT 1"
        scores = read(ledger, query, limit_seconds=MOST_SECONDS)
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):  # killed while it was created
            return LedgerFacts(rounds=0)
        raise
    accuracy, score = (scores[0]["accuracy"], scores[0]["score"]) if scores else (None, None)
    if not isinstance(last, int | None) or not all(isinstance(each, float | None) for each in (accuracy, score)):
        raise ValueError("table rounds: holds a value that no run writes")
    metric, score = (ACCURACY, accuracy) if score is None else ("score", score)
    return LedgerFacts(rounds=0 if last is None else last + 1, accuracy=accuracy, metric=metric, score=score)


def has_lock(folder: Path) -> bool:
    """Whether a process has locked the folder; False where that cannot be seen."""
    with suppress(OSError):
        return is_locked(folder)
    return False


def _nbytes(file: Path) -> int:
    with suppress(OSError):
        status = file.lstat()
        return status.st_size if stat.S_ISREG(status.st_mode) else 0
    return 0


def _size(folder: Path) -> int:
    return sum(_nbytes(Path(place, name)) for place, _, files in os.walk(folder) for name in files)


def _changed(files: Iterable[Path]) -> datetime:
    """When the newest of these files was written."""
    times = [0.0]
    for file in files:
        with suppress(OSError):
            times.append(file.lstat().st_mtime)
    return datetime.fromtimestamp(max(times), UTC)


# --- as a table -------------------------------------------------------------------------------------------------------

HEADER = ("folder", "method", "rounds", "accuracy", "size", "age", "state")
DISPENSABLE = ("age", "size", "rounds", "method")
"""Columns that a narrow terminal leaves out, the first one first"""
LEFT = ("folder", "method", "state")
"""Columns of words"""


def _judged(each: RunEntry, accuracy: str) -> str:
    """The accuracy; of runs that are judged by another metric, its name and value."""
    if each.metric == ACCURACY or each.score is None:
        return accuracy
    return f"{each.metric} {named_score(each.metric).text(each.score)}"


def rows(listed: Sequence[RunEntry]) -> list[list[str]]:
    """A row of texts per entry, as `HEADER` names them."""
    accuracies = cells(PERCENT, [each.accuracy for each in listed], missing="")
    return [
        [
            one_paragraph(str(each.folder)),
            one_paragraph(each.methods),
            "" if each.rounds is None else str(each.rounds),
            accuracy,
            format_bytes(each.nbytes),
            age_text(time.time() - each.modified.timestamp()),
            each.state_text,
        ]
        for each, accuracy in zip(listed, map(_judged, listed, accuracies), strict=True)
    ]


def age_text(seconds: float) -> str:
    """``3 h``: whole numbers of the largest unit."""
    for unit, scale in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= scale:
            return f"{seconds // scale:.0f} {unit}"
    return f"{max(0.0, seconds // 1):.0f} s"


def show(listed: Sequence[RunEntry]) -> None:
    """Print the table, of which nothing is cut; on a narrow terminal some columns are left out."""
    console = terminal.console_on(None)
    table = [list(HEADER), *rows(listed)]
    stay = list(range(len(HEADER)))
    if console.is_terminal:
        words = [*([*row[:-1], each.state] for row, each in zip(table[1:], listed, strict=True)), table[0]]
        stay = fitting(widths(words), console.width, terminal.GAP, list(map(HEADER.index, DISPENSABLE)))
    needed = widths(table)
    for number, row in enumerate(table):
        texts = [
            row[index].ljust(needed[index]) if HEADER[index] in LEFT else row[index].rjust(needed[index])
            for index in stay
        ]
        line = (" " * terminal.GAP).join(texts).rstrip()
        console.print(line, style=None if number else "bold", markup=False, highlight=False, soft_wrap=True)
