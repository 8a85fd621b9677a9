"""A sweep: several runs in one folder, each as long as its study needs. Studies, comparisons and papers are sweeps.

An interrupted sweep is resumed by its run id: finished runs stay as they are, others go on from their last round.
Only folders marked by the same kind of sweep are resumed, and within them only the planned runs.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coordinator.records.store import has_rounds, read
from coordinator.rounds.budget import USER
from coordinator.rounds.run import RoundFinished, RunFailed
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.task import PoolError, Stopped
from edge.protocol.files import write_text
from scenarios import builder, run_folder, runner
from scenarios.config.load import Loaded, ScenarioError
from scenarios.config.toml_source import renamed
from scenarios.config.toml_writer import toml_text
from scenarios.host import Host, check_folder, make_folder, run_lock
from scenarios.report.progress import ProgressPoint, after, reached, trail
from scenarios.report.run_reader import flat

BUDGETS = "budgets"
"""`stopped_by` of a run that met all its needs."""
MARK = "study.json"


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep."""

    name: str
    """The name of its folder."""
    loaded: Loaded
    needs: Mapping[str, float]
    """How far it has to go, as `progress.reached` reads it; rounds.max and the scenario's budgets may end it first.
    Empty: to its limit."""


@dataclass(frozen=True)
class Sweep:
    """A folder and the runs planned in it."""

    kind: str
    """Written into the folder's mark, so that no other sweep resumes it."""
    name: str
    """The folder above the run id, and the name of every scenario in ``parts``: runs are placed by that name."""
    parts: Sequence[PlannedRun]
    run_id: str | None = None
    mark: str = MARK
    """The file that marks the folder from its creation on, and holds the result at the end."""


@dataclass(frozen=True)
class Study:
    """A sweep, and how its result is read, written and shown."""

    sweep: Sweep
    read_off: Callable[[Mapping[str, Any]], dict[str, Any]]
    """From what `run_all` returns to the result, which ``--json`` prints."""
    draw: Callable[[Mapping[str, Any], Path], Path]
    """(result, folder) -> the HTML report written there."""
    show: Callable[[Mapping[str, Any], Path], None]
    """Prints the result; the path is the report's, or the folder's where there is no report."""
    write_tables: Callable[[Mapping[str, Any], Path], None] = lambda result, folder: None
    """(result, folder): writes the CSV files."""


def write(study: Study, result: Mapping[str, Any], with_report: bool) -> Path:
    """Write the files of a study beside its run folders; returns the report, or the folder without one."""
    folder = folder_of(result)
    write_text(folder / study.sweep.mark, json.dumps({"study": study.sweep.kind, **result}, indent=1))
    study.write_tables(result, folder)
    return study.draw(result, folder) if with_report else folder


def folder_of(result: Mapping[str, Any]) -> Path:
    """The folder of a sweep, given its result."""
    return Path(result["runs"][0]["run_dir"]).parent


def pending(study: Sweep, out: Path, device: str) -> list[PlannedRun]:
    """The runs that are not finished; ScenarioError if the folder belongs to another sweep or holds other runs."""
    check_folder(study.name, Host(out, 1, device, study.run_id), may_exist=True)
    folder = _known(study, out)
    if folder is None:
        return list(study.parts)
    for place in (folder / part.name for part in study.parts):
        if place.is_symlink():
            raise ScenarioError(f"{place} is a link: a study writes into folders of its own; choose another --run-id")
        run_folder.check(place)
    return [part for part in study.parts if not _is_finished(folder / part.name, part, device)]


def run_all(study: Sweep, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool]) -> dict[str, Any]:
    """Make the runs that are not finished; returns ``folder``, ``runs``, and ``failed`` and ``missing`` if any are.

    ``runs`` are summaries with the run's ``name``; ``stopped_by`` is "budgets" where a run met its needs. A run that
    fails does not end the others; RunFailed if none of them has a summary. If the user stops the sweep, the result
    covers the runs so far; `Stopped` if there are none.
    """
    host = replace(host, run_id=study.run_id)
    pending(study, host.out, host.device)  # or refuse before anything is made
    folder = _known(study, host.out) or _new(study, host)
    with run_lock(folder):
        return _made(study, folder, host, launcher, stopped)


def _made(
    study: Sweep, folder: Path, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool]
) -> dict[str, Any]:
    missing = {part.name for part in pending(study, host.out, host.device)}
    summaries: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for part in study.parts:
        place = folder / part.name
        if part.name not in missing:
            summaries.append(_ended(part, place, _summary(place)))
            continue
        try:
            summaries.append(_make(part, place, host, launcher, stopped))
        except (ScenarioError, Stopped) as error:
            if not (summaries or failed):
                _discard(folder, study.mark)
                raise
            if isinstance(error, Stopped):
                break
            failed[part.name] = str(error)
        except (RunFailed, PoolError) as error:
            failed[part.name] = str(error)
        if stopped():
            break
    if not summaries:
        raise RunFailed(failures(failed))
    ended = {summary["name"] for summary in summaries}
    lacking = {"failed": failed, "missing": [part.name for part in study.parts if part.name not in ended]}
    return {"folder": str(folder), "runs": summaries, **{key: value for key, value in lacking.items() if value}}


def missing_note(result: Mapping[str, Any]) -> list[str]:
    """A note for tables of means over runs of which some are missing."""
    return [f"without the runs that are missing: {', '.join(result['missing'])}"] if "missing" in result else []


def failures(failed: Mapping[str, str]) -> str:
    """The runs that failed, each with its reason."""
    return "\n".join(f"{name} failed: {why}" for name, why in failed.items())


def is_interrupted(result: Mapping[str, Any], study: Sweep) -> bool:
    """Whether the user stopped the sweep before all runs had ended."""
    runs, failed = result["runs"], result.get("failed", {})
    return len(runs) + len(failed) < len(study.parts) or any(run["stopped_by"] == USER for run in runs)


def _known(study: Sweep, out: Path) -> Path | None:
    """The folder to resume; None if it is to be created. ScenarioError for one that is not marked by this kind."""
    folder = out / study.name / (study.run_id or "")
    if study.run_id is None or not folder.exists():
        return None
    try:
        kind = json.loads((folder / study.mark).read_text(encoding="utf-8"))["study"]
    except (OSError, ValueError, KeyError, TypeError):
        kind = None
    if kind != study.kind:
        raise ScenarioError(f"run folder {folder} exists already and is no {study.kind} study; choose another --run-id")
    return folder


def _new(study: Sweep, host: Host) -> Path:
    mark = json.dumps({"study": study.kind})
    return make_folder(study.name, host, lambda folder: write_text(folder / study.mark, mark))


def _discard(folder: Path, mark: str) -> None:
    """Remove a sweep's folder if there is nothing but its mark in it."""
    if [path.name for path in folder.iterdir()] == [mark]:
        with contextlib.suppress(OSError):
            (folder / mark).unlink()
            folder.rmdir()


def _make(
    part: PlannedRun, place: Path, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool]
) -> dict[str, Any]:
    points = trail(place) if has_rounds(place / "ledger.sqlite") else ()
    is_begun = bool(points) and not reached(points, part.needs)  # unfinished, or shorter than its needs now are
    until = _Until(part.needs, points[-1] if is_begun else None, stopped, host.on_round)
    inside = replace(host, run_id=f"{place.parent.name}/{part.name}", on_round=until.on_round)
    if is_begun:
        loaded = builder.on_device(part.loaded, host.device)
        return _ended(part, place, runner.resume(loaded, inside, place, launcher, until))
    _clear(place)
    return _ended(part, place, runner.run(part.loaded, inside, launcher, until, stop_at_target=False))


def _clear(place: Path) -> None:
    """Remove the files of a run that ended before its first round; ScenarioError if anything else is there."""
    run_folder.discard(place)
    if place.exists():
        left = next((path for path in sorted(place.rglob("*")) if path.is_symlink() or not path.is_dir()), place)
        raise ScenarioError(f"{left} is no file of a run, so {place} cannot be made anew; choose another --run-id")


def _ended(part: PlannedRun, place: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    stopped_by = summary["stopped_by"]
    if stopped_by == USER and reached(trail(place), part.needs):
        stopped_by = BUDGETS
    return {"name": part.name, **summary, "run_dir": str(place), "stopped_by": stopped_by}


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


def _is_finished(place: Path, part: PlannedRun, device: str) -> bool:
    """Whether a run is there and long enough; ScenarioError if it has another scenario."""
    file = place / "scenario.toml"
    if not file.is_file():
        return False
    _refuse_other(file, toml_text(builder.on_device(part.loaded, device).scenario.model_dump()))
    try:
        stopped_by = _summary(place)["stopped_by"]
        return bool(stopped_by != USER) or reached(trail(place), part.needs)
    except (sqlite3.Error, IndexError):  # there is no ledger yet, or no summary in it
        return False


def _summary(place: Path) -> dict[str, Any]:
    rows = read(place / "ledger.sqlite", "SELECT value FROM meta WHERE key = 'summary'")
    return dict(json.loads(rows[0]["value"]))


def _refuse_other(file: Path, text: str) -> None:
    try:
        before = flat(renamed(tomllib.loads(file.read_text(encoding="utf-8")), set()))
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{file} cannot be read: {error}; choose another --run-id") from None
    now = flat(tomllib.loads(text))
    for key in sorted({*before, *now}):
        if before.get(key) != now.get(key):
            was, wanted = ("not set" if value is None else repr(value) for value in (before.get(key), now.get(key)))
            raise ScenarioError(f"{file.parent} was made with {key} {was}, now {wanted}; choose another --run-id")
