"""``fedbr ls --rm``: runs and caches are removed; what a user would miss is refused, or shown before.

Only files that runs, run sets and their reports write are removed, by their names and never through a link. Whatever
else is in a folder stays, and is said. Nothing here asks: who calls has shown what goes.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from coordinator.records.checkpoints import remove_all
from coordinator.records.names import PLACES, is_valid
from coordinator.records.store import NEWEST_FILES, Ledger, read
from edge.data import decoded_cache
from edge.data.partitioning import VERSION as PARTITION_VERSION
from scenarios.config.cache import cache_folder
from scenarios.config.errors import ScenarioError, one_paragraph
from scenarios.run import folder_files
from scenarios.run.folder_files import run_lock
from scenarios.run.run_folder import ENVIRONMENT, LEDGER
from scenarios.run.run_records import read_json
from scenarios.studies.run_list import MARKS, RunEntry, entries, entry, half_made, has_lock

TABLES = r"(rounds|rounds-evaluations|rounds-logged)\.(csv|parquet)|runs\.html"
"""Files that ``fedbr report`` writes beside its page"""
TRIAL = "details|calibrated|skew|bandit|map"
OF_SETS = re.compile(
    rf"({TABLES}|report\.html|sweep\.(md|tex|csv)|(pairs|runs|table|curves|map-grid)\.csv"
    rf"|({TRIAL})(-targets)?\.csv|({TRIAL})\.(html|json))(\.part)?"
)
"""Files of run sets beside their mark, finished or in part"""
BESIDE_REPORTS = re.compile(TABLES)
FIGURES = "figures"
OLD_SECONDS = 86_400.0
"""Half-made folders that are younger may be made at this moment"""


def removable(folders: Sequence[Path]) -> list[RunEntry]:
    """The runs and run sets of these folders, each once; ScenarioError if one must not be removed.

    That is a link, a folder that is no run or run set, and one with a run that is running.
    """
    known: dict[Path, RunEntry] = {}
    for folder in folders:
        found = None if folder.is_symlink() or not folder.is_dir() else entry(folder)
        if found is None:
            why = "is a link" if folder.is_symlink() else "is no run, and no folder of a run set"
            raise ScenarioError(
                one_paragraph(f"{folder}: {why if folder.exists() or folder.is_symlink() else 'no such folder'}")
            )
        running = [each for each in (*found.runs, found) if each.state == "running" or has_lock(each.folder)]
        if running:
            raise ScenarioError(one_paragraph(f"{running[0].folder}: is running; stop it first"))
        known.setdefault(folder.resolve(), found)
    return list(known.values())


def remove(found: RunEntry) -> list[Path]:
    """Remove a run or run set; returns what stays since no run writes it. ScenarioError if it has begun to run."""
    with run_lock(found.folder):
        for run in found.runs:
            with run_lock(run.folder):
                _unlink(run.folder, BESIDE_REPORTS)
                folder_files.discard(run.folder)
        if found.is_set:
            if not (figures := found.folder / FIGURES).is_symlink():
                _unlink(figures, re.compile(r"[\w-]+\.svg(\.part)?"))
                with suppress(OSError):
                    figures.rmdir()
            _unlink(found.folder, OF_SETS)
            for mark in MARKS:  # last, so that a removal which is interrupted can be repeated
                with suppress(OSError):
                    (found.folder / mark).unlink()
            with suppress(OSError):
                found.folder.rmdir()
        else:
            _unlink(found.folder, BESIDE_REPORTS)
            folder_files.discard(found.folder)
    if not found.folder.exists():
        return []
    left = [path for path in sorted(found.folder.rglob("*")) if path.is_symlink() or not path.is_dir()]
    return left or [found.folder]


def _unlink(folder: Path, names: re.Pattern[str]) -> None:
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if names.fullmatch(path.name) and (path.is_symlink() or not path.is_dir()):
            with suppress(OSError):
                path.unlink()


# --- what no result needs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Waste:
    """Something that no result needs."""

    path: Path
    why: str
    nbytes: int
    remove: Callable[[], object]
    """OSError, and ScenarioError if it is in use by now"""


def waste(folders: Sequence[Path], checkpoints: bool = False) -> list[Waste]:
    """What no result needs: in these folders, and of the decoded data in the user's cache.

    Runs that ended before their first round and run sets without a run, folders that were left half made, and decoded
    data of which neither today's files nor a run in these folders are the source. ``checkpoints``: also what
    ``checkpoints.keep`` has kept of runs that have ended. ScenarioError as of `run_list.entries`.
    """
    listed = entries(folders)
    runs = [run for top in listed for run in (top.runs if top.is_set else (top,))]
    found = [
        Waste(each.folder, "without a committed round", each.nbytes, partial(_remove_if_empty, each.folder))
        for each in runs
        if each.state == "unfinished" and not each.rounds
    ]
    found += [
        Waste(top.folder, f"{top.kind_text} without a run", top.nbytes, partial(_remove_if_empty, top.folder))
        for top in listed
        if top.is_set and not top.runs and top.state == "unfinished"
    ]
    found += [_tree(folder, "left half made") for folder in half_made(folders) if _is_old(folder)]
    found += _of_cache(runs)
    return [*found, *(filter(None, map(_kept_checkpoints, runs)) if checkpoints else ())]


def _remove_if_empty(folder: Path) -> None:
    """Remove a run or run set that still has not committed anything."""
    now = entry(folder)
    if now is None or now.rounds or now.runs:
        raise ScenarioError(f"{folder}: has been gone on with")
    remove(now)


def _is_old(folder: Path) -> bool:
    with suppress(OSError):
        return time.time() - folder.stat().st_mtime > OLD_SECONDS
    return False


def _tree(folder: Path, why: str) -> Waste:
    nbytes = sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
    return Waste(folder, why, nbytes, partial(shutil.rmtree, folder))


def _of_cache(runs: Sequence[RunEntry]) -> Iterator[Waste]:
    cache = cache_folder()
    for kind, version in (("data", decoded_cache.VERSION), ("shares", PARTITION_VERSION)):
        place = cache / kind
        for folder in sorted(place.iterdir()) if place.is_dir() else ():
            if folder.is_dir() and not folder.is_symlink() and folder.name != version:
                yield _tree(folder, "of another version of fedbr")
        yield from (_tree(each, "left half made") for each in half_made([cache / kind / version]) if _is_old(each))
    replaced = decoded_cache.replaced(cache)
    used = set()
    for run in runs if replaced else ():
        with suppress(ValueError, KeyError, TypeError):
            used.add(str(read_json(run.folder / ENVIRONMENT)["data"]["sha256"]))
    for folder, sha256 in replaced:
        if sha256 not in used:
            yield _tree(folder, "decoded from files that have been replaced")


def _kept_checkpoints(run: RunEntry) -> Waste | None:
    """What `checkpoints.keep` has kept of a run that has ended, which no report and no resume needs."""
    if run.state not in ("finished", "stopped"):
        return None
    try:
        folder_files.check(run.folder)
        newest = _newest(run.folder)
    except (ScenarioError, sqlite3.Error):  # a run that cannot be resumed is left as it is
        return None
    places = [run.folder / place for place in PLACES if (run.folder / place).is_dir()]
    others = [
        path
        for place in places
        for path in place.iterdir()
        if is_valid(place.name, path.name) and path.name not in newest
    ]
    nbytes = sum(path.lstat().st_size for path in others)

    def keep_newest() -> None:
        with run_lock(run.folder):
            folder_files.check(run.folder)
            with closing(Ledger(run.folder / LEDGER, None)) as ledger:
                ledger.keep_newest()
            remove_all(run.folder, but=_newest(run.folder))

    return Waste(run.folder, "checkpoints beside the newest two", nbytes, keep_newest) if others else None


def _newest(folder: Path) -> set[str]:
    return {str(row["file"]) for row in read(folder / LEDGER, NEWEST_FILES)}
