"""Many runs in one folder, each going on until it is long enough for what is to be read off it.

Such a folder can be taken up again: runs that are finished stay as they are, others go on where they were broken off.
Only folders that a study made are ever taken up, and within them only its own runs.
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
from scenarios.report.progress import ProgressPoint, Trail, reached, trail

BUDGETS = "budgets"
"""What ended a run that had gone on to all that was asked of it."""
MARK = "study.json"


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study."""

    name: str
    """Of its folder."""
    loaded: Loaded
    needs: Mapping[str, float]
    """How far it has to go, as `progress.reached` reads it; rounds.max and the scenario's budgets may end it first."""


@dataclass(frozen=True)
class Sweep:
    """A folder and the runs that belong into it."""

    kind: str
    """What the folder says of itself, so that no other study takes it up."""
    name: str
    """Of the folder above the run id; all scenarios of ``parts`` bear it, since their runs lie below it."""
    parts: Sequence[PlannedRun]
    run_id: str | None = None


def pending(study: Sweep, out: Path, device: str) -> list[PlannedRun]:
    """The runs that are still to be made; ScenarioError if the folder is not this study's or holds other runs."""
    folder = _known(study, out)
    if folder is None:
        return list(study.parts)
    for place in (folder / part.name for part in study.parts):
        if place.is_symlink():
            raise ScenarioError(f"{place} is a link: a study writes into folders of its own; choose another --run-id")
        run_folder.check(place)
    return [part for part in study.parts if not _is_finished(folder / part.name, part, device)]


def run_all(study: Sweep, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool]) -> dict[str, Any]:
    """Make the runs that are missing; returns ``folder``, ``runs``, and what failed or is missing if anything is.

    ``runs`` are summaries with the run's ``name``; ``stopped_by`` is "budgets" where the run went on as far as it
    should. Where the user stops, the result covers the runs that came so far; `Stopped` if none did. RunFailed if no
    run ended otherwise.
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
                _discard(folder)
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


def lacks(result: Mapping[str, Any]) -> list[str]:
    """A line for a reader of means if some of their runs are not there."""
    return [f"without the runs that are missing: {', '.join(result['missing'])}"] if "missing" in result else []


def failures(failed: Mapping[str, str]) -> str:
    """Which runs failed, and why."""
    return "\n".join(f"{name} failed: {why}" for name, why in failed.items())


def is_interrupted(result: Mapping[str, Any], study: Sweep) -> bool:
    """Whether the user ended it before all runs had ended."""
    runs, failed = result["runs"], result.get("failed", {})
    return len(runs) + len(failed) < len(study.parts) or any(run["stopped_by"] == USER for run in runs)


def _known(study: Sweep, out: Path) -> Path | None:
    """The study's folder, if it is to be taken up again."""
    folder = out / study.name / (study.run_id or "")
    if study.run_id is None or not folder.exists():
        return None
    try:
        kind = json.loads((folder / MARK).read_text(encoding="utf-8"))["study"]
    except (OSError, ValueError, KeyError, TypeError):
        kind = None
    if kind != study.kind:
        raise ScenarioError(f"run folder {folder} exists already and is no {study.kind} study; choose another --run-id")
    return folder


def _new(study: Sweep, host: Host) -> Path:
    check_folder(study.name, host)
    return make_folder(study.name, host, lambda folder: write_text(folder / MARK, json.dumps({"study": study.kind})))


def _discard(folder: Path) -> None:
    """Remove a study's folder if nothing but its mark is in it."""
    if [path.name for path in folder.iterdir()] == [MARK]:
        with contextlib.suppress(OSError):
            (folder / MARK).unlink()
            folder.rmdir()


def _make(
    part: PlannedRun, place: Path, host: Host, launcher: WorkerLauncher, stopped: Callable[[], bool]
) -> dict[str, Any]:
    until = _Until(part.needs, stopped, host.on_round)
    inside = replace(host, run_id=f"{place.parent.name}/{part.name}", on_round=until.heard)
    points = trail(place) if has_rounds(place / "ledger.sqlite") else ()
    if points and not reached(points, part.needs):  # unfinished, or shorter than what is now asked
        until.remember(points)
        loaded = builder.on_device(part.loaded, host.device)
        return _ended(part, place, runner.resume(loaded, inside, place, launcher, until))
    _clear(place)
    return _ended(part, place, runner.run(part.loaded, inside, launcher, until, stop_at_target=False))


def _clear(place: Path) -> None:
    """Remove what a run left that was broken off before its first round; ScenarioError if anything else is there."""
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
    """Asks a run to end when it has gone on as far as it should, or when the user asks."""

    def __init__(
        self, needs: Mapping[str, float], stopped: Callable[[], bool], on_round: Callable[[RoundFinished], None]
    ) -> None:
        self._needs, self._stopped, self._on_round = needs, stopped, on_round
        self._nominal = self._best = 0.0
        self._is_enough = False

    def remember(self, points: Trail) -> None:
        """The run goes on from the last of these."""
        self._nominal, self._best = points[-1].nominal_nbytes, points[-1].best

    def heard(self, progress: RoundFinished) -> None:
        """A round has been committed."""
        row = progress.row
        self._nominal += row.nominal_bytes
        self._best = max(self._best, row.accuracy or 0.0)
        nbytes = progress.bytes_down + progress.bytes_up
        point = ProgressPoint(row.round + 1, row.end_s, nbytes, self._nominal, row.accuracy, self._best)
        self._is_enough = reached((point,), self._needs)
        self._on_round(progress)

    def __call__(self) -> bool:
        return self._is_enough or self._stopped()


def _is_finished(place: Path, part: PlannedRun, device: str) -> bool:
    """Whether a run is there and long enough; ScenarioError if it is one of another scenario."""
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
        before = _flat(renamed(tomllib.loads(file.read_text(encoding="utf-8")), set()))
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{file} cannot be read: {error}; choose another --run-id") from None
    now = _flat(tomllib.loads(text))
    for key in sorted({*before, *now}):
        if before.get(key) != now.get(key):
            was, wanted = ("not set" if value is None else repr(value) for value in (before.get(key), now.get(key)))
            raise ScenarioError(f"{file.parent} was made with {key} {was}, now {wanted}; choose another --run-id")


def _flat(tables: Mapping[str, Any], at: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        flat |= _flat(value, f"{at}{key}.") if isinstance(value, Mapping) else {f"{at}{key}": value}
    return flat
