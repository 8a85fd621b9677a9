"""A run set: several runs in one folder, each as long as its study needs. Studies, comparisons and papers are run sets.

An interrupted run set is resumed by its run id: finished runs stay as they are, others go on from their last round.
Only folders marked by the same kind of run set are resumed, and within them only the planned runs.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coordinator.records.store import has_rounds
from coordinator.rounds.amounts import BY_KIND, Scope
from coordinator.rounds.budget import EARLY
from coordinator.rounds.run import RoundFinished, RunFailed
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.task import PoolError, Stopped
from edge.protocol.files import write_text
from scenarios.config import fleet_files
from scenarios.config.errors import Argument, ReportError, ScenarioError
from scenarios.config.load import Loaded
from scenarios.run import folder_files, runner
from scenarios.run.folder_files import HeldFolder, run_lock
from scenarios.run.host import Host, choose_device
from scenarios.run.observer import RunObserver
from scenarios.run.progress import TARGET, ProgressPoint, Trail, after, reached
from scenarios.run.run_folder import SCENARIO, RunFolder, resolved_keys
from scenarios.run.run_records import read_json
from scenarios.run.run_summary import RunSummary
from scenarios.run.score import score_of
from scenarios.run.setup import RunInputs, on_device

BUDGETS = "budgets"
"""`stopped_by` of a run that met all its needs."""
MARK = "study.json"
TRACE_LINES = 8
"""Lines of an error that no run should raise"""
MOST_NAMED = 6
"""Runs that a note or warning names"""


@dataclass(frozen=True)
class PlannedRun:
    name: str
    """The name of its folder."""
    loaded: Loaded
    needs: Mapping[str, float]
    """How far it has to go, as `progress.reached` reads it; rounds.max and the scenario's budgets may end it first.
    Empty: to its limit."""
    enough: Mapping[str, float] = field(default_factory=dict)
    """Amounts, or a score, any of which ends it before"""

    @property
    def reads_ledger(self) -> bool:
        """Whether its needs are not in the rows of rounds alone."""
        return any(scope != "clients" for scope in self._scopes)

    def is_done(self, folder: RunFolder) -> bool:
        """Whether the run of a folder is long enough."""
        return self.is_enough(folder.device_trail if "devices" in self._scopes else folder.trail)

    @property
    def _scopes(self) -> set[Scope]:
        return {BY_KIND[kind].scope for kind in (*self.needs, *self.enough) if kind != TARGET}

    def is_enough(self, trail: Trail) -> bool:
        """Whether a run with this progress is."""
        return reached(trail, self.needs, self.enough)


@dataclass(frozen=True)
class RunSet:
    kind: str
    """Written into the folder's mark, so that no other run set resumes it."""
    name: str
    """The folder above the run id, and the name of the scenarios in ``runs``, by which run folders are placed."""
    runs: Sequence[PlannedRun]
    run_id: str | None = None
    mark: str = MARK
    """The file that marks the folder from its creation on, and holds the result at the end."""
    asks: Mapping[str, str] = field(default_factory=dict)
    """The question in words, by name: a folder in which something else was asked is not resumed"""

    def __post_init__(self) -> None:
        """ScenarioError for runs that are judged by different metrics, which no experiment compares."""
        for run in self.runs:
            train, first = run.loaded.scenario.train, self.runs[0].loaded.scenario.train
            if train.score != first.score:
                raise ScenarioError(
                    f"{run.name}: train.loss = {train.loss!r}: its runs are judged by {train.score}, and those of "
                    f"{self.runs[0].name} by {first.score}; name losses with one metric"
                )

    @property
    def marks(self) -> dict[str, Any]:
        """The keys by which its file knows it."""
        return {"study": self.kind} | ({"asks": dict(self.asks)} if self.asks else {})

    def device(self, name: str) -> str:
        """The device of its runs on this machine, as of `choose_device`."""
        return choose_device(name, [run.loaded for run in self.runs])


def folder_of(result: Mapping[str, Any]) -> Path:
    return Path(result["runs"][0]["run_dir"]).parent


def pending(run_set: RunSet, out: Path, device: str) -> list[PlannedRun]:
    """The runs that are not finished; ScenarioError if the folder belongs to another run set or holds other runs."""
    folder_files.check_place(out / run_set.name, run_set.run_id, may_exist=True)
    folder = known_folder(run_set, out)
    if folder is None:
        return list(run_set.runs)
    for path in (folder / run.name for run in run_set.runs):
        if path.is_symlink():
            raise ScenarioError(
                f"{path} is a link: a study writes into folders of its own; choose another ", Argument("run_id")
            )
        folder_files.check(path)
    return [run for run in run_set.runs if not _is_finished(folder / run.name, run, device)]


def warning_lines(result: Mapping[str, Any]) -> list[str]:
    """The warnings of a result of `make_runs`, each once, after the runs that have it."""
    lines, count = [], len(result["runs"])
    for warning in result.get("warnings", []):
        names = warning["runs"]
        runs = ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" * (len(names) > MOST_NAMED))
        lines.append(f"{f'all {count} runs' if len(names) == count > 1 else runs}: {warning['warning']}")
    return lines


def missing_note(missing: Sequence[str]) -> list[str]:
    """A note for tables of means over runs of which some, of these names, are missing."""
    if len(missing) > MOST_NAMED:
        return [f"without {len(missing)} runs that are missing: {missing[0]} .. {missing[-1]}"]
    return [f"without the runs that are missing: {', '.join(missing)}"] if missing else []


def reason(error: Exception) -> str:
    """Why a run failed: the message of an expected error, and where any other one was raised."""
    if isinstance(error, ScenarioError | RunFailed | PoolError):
        return str(error)
    lines = "".join(traceback.format_exception(error)).splitlines()
    return "\n    ".join([f"{type(error).__name__}: {error}", *lines[-TRACE_LINES:-1]])


def failures(failed: Mapping[str, str]) -> str:
    return "\n".join(f"{name} failed: {reason}" for name, reason in failed.items())


def is_interrupted(result: Mapping[str, Any], run_set: RunSet) -> bool:
    """Whether the run set was stopped before all runs had ended."""
    runs, failed = result["runs"], {**result.get("failed", {}), **result.get("diverged", {})}
    return len(runs) + len(failed) < len(run_set.runs) or any(run["stopped_by"] in EARLY for run in runs)


def known_folder(run_set: RunSet, out: Path) -> Path | None:
    """The folder to resume; None if it is to be created. ScenarioError for one that is not marked by this kind."""
    folder = out / run_set.name / (run_set.run_id or "")
    if run_set.run_id is None or not folder.exists():
        return None
    try:
        mark = read_json(folder / run_set.mark)
    except ValueError:
        mark = {}
    if mark.get("study") != run_set.kind:
        raise ScenarioError(
            f"run folder {folder} exists already and is no {run_set.kind} study; choose another ", Argument("run_id")
        )
    before = mark.get("asks")
    for name, now in run_set.asks.items():
        was = before.get(name) if isinstance(before, dict) else None
        if was != now:
            raise ScenarioError(f"{folder}: its {name} were {was}, now {now}; choose another ", Argument("run_id"))
    return folder


@contextlib.contextmanager
def locked(run_set: RunSet, host: Host) -> Iterator[HeldFolder]:
    """The folder of a run set, made if it is not there, and locked; errors as of `pending` before anything is made.

    A folder that holds nothing but its mark after `Stopped` or a ScenarioError is removed.
    """
    pending(run_set, host.out, host.device)
    folder, mark = known_folder(run_set, host.out), json.dumps(run_set.marks)
    if folder is None:
        place = host.out / run_set.name
        folder = folder_files.make_folder(place, run_set.run_id, lambda new: write_text(new / run_set.mark, mark))
    with run_lock(folder) as held:
        try:
            yield held
        except (Stopped, ScenarioError):
            if [path.name for path in folder.iterdir()] == [run_set.mark]:
                with contextlib.suppress(OSError):
                    (folder / run_set.mark).unlink()
                    folder.rmdir()
            raise


class NamedSummary(RunSummary):
    """The summary of a run of a run set."""

    name: str


def make_run(
    run: PlannedRun, path: Path, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool]
) -> NamedSummary:
    """Make one run in its folder ``path``, or go on with it; its summary with its name. Errors as of `runner.run`."""
    before = RunFolder(path) if has_rounds(path / "ledger.sqlite") else None
    is_begun = before is not None and not run.is_done(before)  # unfinished, or shorter than its needs now are
    needs = _Needs(run, path, before.trail[-1] if before is not None and is_begun else None)
    inside = replace(host, run_id=f"{path.parent.name}/{run.name}", observers=(*host.observers, needs))
    if is_begun:
        loaded = on_device(run.loaded, host.device)
        return named_summary(run, path, runner.resume(loaded, inside, path, launcher, stopped))
    folder_files.discard(path)  # the files of a run that ended before its first round
    if path.exists():
        left = next((file for file in sorted(path.rglob("*")) if file.is_symlink() or not file.is_dir()), path)
        raise ScenarioError(
            f"{left} is no file of a run, so {path} cannot be made anew; choose another ", Argument("run_id")
        )
    return named_summary(run, path, runner.run(run.loaded, inside, launcher, stopped, stop_at_target=False))


def named_summary(run: PlannedRun, path: Path, summary: RunSummary) -> NamedSummary:
    """The summary of a run in the folder ``path``, with its name; `BUDGETS` ended it if it has met its needs."""
    stopped_by = summary["stopped_by"]
    if stopped_by in EARLY and run.is_done(RunFolder(path)):
        stopped_by = BUDGETS
    return {"name": run.name, **summary, "run_dir": str(path), "stopped_by": stopped_by}


class _Needs(RunObserver):
    """Ends a run that has met its needs; those that take the whole ledger are looked at after evaluations."""

    def __init__(self, run: PlannedRun, folder: Path, last: ProgressPoint | None) -> None:
        self._run, self._folder, self._last = run, folder, last

    def on_round(self, progress: RoundFinished) -> bool:
        if self._run.reads_ledger:  # the round is committed
            return progress.row.judged is not None and self._run.is_done(RunFolder(self._folder))
        better = score_of(self._run.loaded.scenario.train).better
        self._last = after(self._last, progress.row, better=better)
        return self._run.is_enough(Trail([self._last]))


def _is_finished(path: Path, run: PlannedRun, device: str) -> bool:
    """Whether a run is there and long enough; ScenarioError if it has another scenario, or its modules have changed."""
    if not (path / SCENARIO).is_file():
        return False
    recorded = RunFolder(path)
    try:
        before = recorded.keys()
    except ReportError as error:
        raise ScenarioError(f"{error}; choose another ", Argument("run_id")) from None
    now = resolved_keys(on_device(run.loaded, device).scenario)
    differing = {key for key in {*before, *now} if before.get(key) != now.get(key)}
    if differing & {*fleet_files.KEYS}:
        differing -= _same_files(recorded, run.loaded)
    if now.get(fleet_files.DATA_FILE) is not None and "data.name" not in differing:  # which says the content
        differing.discard(fleet_files.DATA_FILE)
    for key in sorted(differing, key=lambda key: (key.count("."), key)):  # seed before what follows it
        if (
            key in (*fleet_files.KEYS, fleet_files.DATA_FILE)
            and before.get(key) is not None
            and now.get(key) is not None
        ):
            problem = f"{path} was made with another content of {key} than {now[key]!r} has; choose another "
            raise ScenarioError(problem, Argument("run_id"))
        was, wanted = ("not set" if value is None else repr(value) for value in (before.get(key), now.get(key)))
        raise ScenarioError(f"{path} was made with {key} {was}, now {wanted}; choose another ", Argument("run_id"))
    if change := recorded.source_change():
        raise ScenarioError(f"{path} was made with other modules: {change}; choose another ", Argument("run_id"))
    try:
        ended = recorded.summary
        return ended is not None and (ended["stopped_by"] not in EARLY or run.is_done(recorded))
    except sqlite3.Error:  # a damaged ledger is refused when the run is made
        return False


def _same_files(recorded: RunFolder, loaded: Loaded) -> set[str]:
    """Keys that name a file with the content that it had when the run was made, wherever it is."""
    try:
        before = recorded.environment.files
    except ReportError as error:
        raise ScenarioError(f"{error}; choose another ", Argument("run_id")) from None
    return {key for key, sha256 in RunInputs(loaded).file_hashes.items() if before.get(key) == sha256}
