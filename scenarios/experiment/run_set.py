"""A run set: several runs in one folder, each as long as its study needs. Studies, comparisons and papers are run sets.

An interrupted run set is resumed by its run id: finished runs stay as they are, others go on from their last round.
Only folders marked by the same kind of run set are resumed, and within them only the planned runs.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coordinator.records.store import has_rounds
from coordinator.rounds.budget import EARLY
from coordinator.rounds.run import RoundFinished, RunFailed
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.task import PoolError, Stopped
from edge.protocol.files import write_text
from scenarios.config.load import Loaded, ScenarioError, load
from scenarios.config.plugin_keys import own_names
from scenarios.config.quantities import scenario_text
from scenarios.config.schema import Scenario
from scenarios.config.toml_source import read as read_toml
from scenarios.report.progress import ProgressPoint, after, reached, trail
from scenarios.report.run_reader import flat, summary
from scenarios.run import builder, run_folder, runner
from scenarios.run.host import Host, check_folder, make_folder, run_lock
from scenarios.run.plugin_sources import not_imported
from scenarios.run.run_folder import HeldFolder
from scenarios.run.run_records import read_json

BUDGETS = "budgets"
"""`stopped_by` of a run that met all its needs."""
MARK = "study.json"
TRACE_LINES = 8
"""Of an error that no run should raise"""
MOST_NAMED = 6
"""Runs that a note or warning names"""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a run_set."""

    name: str
    """The name of its folder."""
    loaded: Loaded
    needs: Mapping[str, float]
    """How far it has to go, as `progress.reached` reads it; rounds.max and the scenario's budgets may end it first.
    Empty: to its limit."""


@dataclass(frozen=True)
class RunSet:
    """A folder and the runs planned in it."""

    kind: str
    """Written into the folder's mark, so that no other run set resumes it."""
    name: str
    """The folder above the run id, and the name of the scenarios in ``runs``, by which run folders are placed."""
    runs: Sequence[PlannedRun]
    run_id: str | None = None
    mark: str = MARK
    """The file that marks the folder from its creation on, and holds the result at the end."""


def folder_of(result: Mapping[str, Any]) -> Path:
    """The folder of a run set, given its result."""
    return Path(result["runs"][0]["run_dir"]).parent


def pending(run_set: RunSet, out: Path, device: str) -> list[PlannedRun]:
    """The runs that are not finished; ScenarioError if the folder belongs to another run set or holds other runs."""
    check_folder(run_set.name, Host(out, 1, device, run_set.run_id), may_exist=True)
    folder = known_folder(run_set, out)
    if folder is None:
        return list(run_set.runs)
    for path in (folder / run.name for run in run_set.runs):
        if path.is_symlink():
            raise ScenarioError(f"{path} is a link: a study writes into folders of its own; choose another --run-id")
        run_folder.check(path)
    return [run for run in run_set.runs if not _is_finished(folder / run.name, run, device)]


def run_all(run_set: RunSet, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool]) -> dict[str, Any]:
    """Make the runs that are not finished; returns ``folder``, ``runs``, ``warnings``, and ``failed`` and ``missing``
    if any are.

    ``runs`` are summaries with the run's ``name``, and ``warnings`` theirs, each with the ``runs`` that have it;
    ``stopped_by`` is "budgets" where a run met its needs. A run that fails does not end the others;
    RunFailed if none of them has a summary, but the first ScenarioError if all of them failed with one. If the user
    stops the run set, the result covers the runs so far; `Stopped` if there are none.
    """
    with locked(run_set, host) as held:
        return _run_missing(run_set, held.path, host, launcher, held.watched(stopped))


@contextlib.contextmanager
def locked(run_set: RunSet, host: Host) -> Iterator[HeldFolder]:
    """The folder of a run set, made if it is not there, and locked; errors as of `pending` before anything is made."""
    host = replace(host, run_id=run_set.run_id)
    pending(run_set, host.out, host.device)
    folder = known_folder(run_set, host.out) or _new(run_set, host)
    with run_lock(folder) as held:
        yield held


def _run_missing(
    run_set: RunSet, folder: Path, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool]
) -> dict[str, Any]:
    ended, missing = ended_before(run_set, folder, host)
    failed: dict[str, str] = {}
    users_errors: dict[str, str] = {}
    for run in missing:
        try:
            ended[run.name] = make_run(run, folder / run.name, host, launcher, stopped)
        except Stopped:
            break
        except Exception as error:  # in a run of its own: the others need not know
            failed[run.name] = reason(error)
            if isinstance(error, ScenarioError):
                users_errors[run.name] = str(error)
        if stopped():
            break
    if not ended:
        refuse_nothing(failed, users_errors, folder, run_set.mark)
    return collected(run_set, folder, ended, failed)


def refuse_nothing(failed: Mapping[str, str], users_errors: Mapping[str, str], folder: Path, mark: str) -> None:
    """Where no run has ended: Stopped if none failed, the user's error if that is why all of them failed.

    ``users_errors``: those of ``failed`` that the user's input caused. The folder is then removed; other failures are
    the run set's.
    """
    if not failed:
        discard(folder, mark)
        raise Stopped
    if users_errors.keys() == failed.keys():
        discard(folder, mark)
        raise ScenarioError(next(iter(users_errors.values())))


def ended_before(run_set: RunSet, folder: Path, host: Host) -> tuple[dict[str, dict[str, Any]], list[PlannedRun]]:
    """The summaries by name of the runs that are finished, and the runs that are not."""
    missing = pending(run_set, host.out, host.device)
    names = {run.name for run in missing}
    there = [run for run in run_set.runs if run.name not in names]
    return {run.name: _ended(run, folder / run.name, summary(folder / run.name) or {}) for run in there}, missing


def collected(
    run_set: RunSet, folder: Path, ended: Mapping[str, dict[str, Any]], failed: Mapping[str, str]
) -> dict[str, Any]:
    """What `run_all` returns; RunFailed if no run has ended."""
    if not ended:
        raise RunFailed(failures(failed))
    runs = [ended[run.name] for run in run_set.runs if run.name in ended]
    notes = {"failed": failed, "missing": [run.name for run in run_set.runs if run.name not in ended]}
    told = {"folder": str(folder), "runs": runs, "warnings": _warnings(runs)}
    return told | {key: value for key, value in notes.items() if value}


def _warnings(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each warning of the runs, with the names of those that have it."""
    names: dict[str, list[str]] = {}
    for run in runs:
        for warning in run.get("warnings", []):
            names.setdefault(warning, []).append(run["name"])
    return [{"warning": warning, "runs": those} for warning, those in names.items()]


def warning_lines(result: Mapping[str, Any]) -> list[str]:
    """The warnings of a result of `run_all`, each once, after the runs that have it."""
    return [f"{_named(each['runs'], len(result['runs']))}: {each['warning']}" for each in result.get("warnings", [])]


def _named(names: Sequence[str], count: int) -> str:
    """Some of so many runs, by their names."""
    if count > 1 and len(names) == count:
        return f"all {count} runs"
    others = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(names[:MOST_NAMED])}{others}"


def missing_note(result: Mapping[str, Any]) -> list[str]:
    """A note for tables of means over runs of which some are missing."""
    missing = result.get("missing", [])
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
    """The runs that failed, each with its reason."""
    return "\n".join(f"{name} failed: {why}" for name, why in failed.items())


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
        kind = read_json(folder / run_set.mark)["study"]
    except (ValueError, KeyError):
        kind = None
    if kind != run_set.kind:
        raise ScenarioError(
            f"run folder {folder} exists already and is no {run_set.kind} study; choose another --run-id"
        )
    return folder


def _new(run_set: RunSet, host: Host) -> Path:
    mark = json.dumps({"study": run_set.kind})
    return make_folder(run_set.name, host, lambda folder: write_text(folder / run_set.mark, mark))


def discard(folder: Path, mark: str) -> None:
    """Remove a run set's folder if there is nothing but its mark in it."""
    if [path.name for path in folder.iterdir()] == [mark]:
        with contextlib.suppress(OSError):
            (folder / mark).unlink()
            folder.rmdir()


def make_run(
    run: PlannedRun, path: Path, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool]
) -> dict[str, Any]:
    """Make one run in its folder ``path``, or go on with it; its summary with its name. Errors as of `runner.run`."""
    points = trail(path) if has_rounds(path / "ledger.sqlite") else ()
    is_begun = bool(points) and not reached(points, run.needs)  # unfinished, or shorter than its needs now are
    until = _Until(run.needs, points[-1] if is_begun else None, stopped, host.on_round)
    inside = replace(host, run_id=f"{path.parent.name}/{run.name}", on_round=until.on_round)
    if is_begun:
        loaded = builder.on_device(run.loaded, host.device)
        return _ended(run, path, runner.resume(loaded, inside, path, launcher, until))
    _clear(path)
    return _ended(run, path, runner.run(run.loaded, inside, launcher, until, stop_at_target=False))


def _clear(path: Path) -> None:
    """Remove the files of a run that ended before its first round; ScenarioError if anything else is there."""
    run_folder.discard(path)
    if path.exists():
        left = next((file for file in sorted(path.rglob("*")) if file.is_symlink() or not file.is_dir()), path)
        raise ScenarioError(f"{left} is no file of a run, so {path} cannot be made anew; choose another --run-id")


def _ended(run: PlannedRun, path: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    stopped_by = summary["stopped_by"]
    if stopped_by in EARLY and reached(trail(path), run.needs):
        stopped_by = BUDGETS
    return {"name": run.name, **summary, "run_dir": str(path), "stopped_by": stopped_by}


class _Until:
    """The stop flag of a run: set when the run has met its needs, or by the user."""

    def __init__(
        self,
        needs: Mapping[str, float],
        last: ProgressPoint | None,
        stopped: Callable[[], bool],
        on_round: Callable[[RoundFinished], None],
    ) -> None:
        self._needs, self._last, self._stopped, self._on_round = needs, last, stopped, on_round
        self._is_enough = False

    def on_round(self, finished: RoundFinished) -> None:
        """A round has been committed."""
        self._last = after(self._last, finished.row)
        self._is_enough = reached((self._last,), self._needs)
        self._on_round(finished)

    def __call__(self) -> bool:
        return self._is_enough or self._stopped()


def _is_finished(path: Path, run: PlannedRun, device: str) -> bool:
    """Whether a run is there and long enough; ScenarioError if it has another scenario."""
    file = path / "scenario.toml"
    if not file.is_file():
        return False
    _refuse_other(file, scenario_text(builder.on_device(run.loaded, device).scenario.model_dump()))
    try:
        ended = summary(path)
        return ended is not None and (ended["stopped_by"] not in EARLY or reached(trail(path), run.needs))
    except sqlite3.Error:  # there is no ledger yet
        return False


def resolved_keys(scenario: Scenario) -> dict[str, Any]:
    """Key -> value of a scenario, as its file in a run folder has them."""
    return flat(tomllib.loads(scenario_text(scenario.model_dump())))


def recorded_keys(file: Path) -> dict[str, Any]:
    """Key -> value of a run's ``scenario.toml``, with the defaults of keys that were added since it was made.

    One with plug-ins of the user's own, which are not imported for this, as it stands. ScenarioError for a file that
    cannot be read.
    """
    try:
        tables = read_toml(file, set())
        if own_names(tables):
            return flat(tables)
        with not_imported():
            return resolved_keys(load(str(file)).scenario)
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{file} cannot be read: {error}; choose another --run-id") from None


def _refuse_other(file: Path, text: str) -> None:
    before = recorded_keys(file)
    now = flat(tomllib.loads(text))
    for key in sorted({*before, *now}, key=lambda key: (key.count("."), key)):  # seed before what follows it
        if before.get(key) != now.get(key):
            was, wanted = ("not set" if value is None else repr(value) for value in (before.get(key), now.get(key)))
            raise ScenarioError(f"{file.parent} was made with {key} {was}, now {wanted}; choose another --run-id")
