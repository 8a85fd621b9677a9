"""The folders of runs on the disk: how they are made and locked, and which of their files are written and removed.

A folder may come from another user, or may have been modified. Nothing behind a link is written or removed, and no file
with a name that runs do not use. A run whose folder is moved or removed while it works is ended (`HeldFolder`).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sqlite3
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from coordinator.records import foreign
from coordinator.records.checkpoints import remove_all
from coordinator.records.names import PLACES, VECTORS
from coordinator.records.store import read
from coordinator.rounds.run import RunFailed
from edge.protocol import app_records
from edge.protocol.bounds import CONTROL
from edge.protocol.files import BRIEF_PAUSES_SECONDS, folder_lock, opened, write_bytes, write_folder
from scenarios.config.errors import Argument, ScenarioError
from scenarios.config.fleet_files import ARRAYS, INPUTS
from scenarios.run import input_files, plugin_sources

LOGS = "logs"
FOLDERS = (*PLACES, LOGS, app_records.FOLDER)
MADE = tuple(name for name in FOLDERS if name not in (VECTORS, app_records.FOLDER))
"""Folders that every run has; the server's vectors get theirs with the first of them, and messages those of an app"""
JOURNAL = "ledger.sqlite-journal"
WAL = "ledger.sqlite-wal"
LEDGER = ("ledger.sqlite", WAL, "ledger.sqlite-shm", JOURNAL)
FILES = ("scenario.toml", "environment.json", *LEDGER)
"""Files that are opened in place; all others are replaced whole."""
MEASURED = "measure.json"
"""The file that ``fedbr replay --measure`` writes"""
DESCRIPTION = "description.msgpack"
"""A worker's description of the run: model and data (`edge.protocol.serialization.pack_description`)"""
_OURS = (*FILES, DESCRIPTION, "report.html", "uncertainty.json", MEASURED)
_PASSING = re.compile(
    r"\.probe-[0-9a-f]{8}(\.part)?|(scenario\.toml|environment\.json|description\.msgpack|report\.html|uncertainty\.json|measure\.json)\.part|replies-[a-z0-9_]{8}\.part"
)
_ARRAY = re.compile(r"(train|test)_(x|y|ids)\.npy|meta\.json")
_LOG = re.compile(r"(coordinator|server-app|worker-[0-9]+)\.log")
_MESSAGE = re.compile(app_records.FILE_NAME)
PROBE_NBYTES = 4096
"""Not 0, since a full disk can still create empty files."""
SCRATCH_NAME_NBYTES = len("..new-12345678")
"""Bytes that `write_folder` adds to the name of a run folder while it fills it."""
SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")
"""The end of an SQLite journal that names a super-journal, which SQLite then deletes (its file format, section 3)."""


class HeldFolder:
    """A run folder, or one of several runs, that this process has locked, at the path by which its files are written.

    Whatever is written to the path of a folder that has moved is missing in it, or lies in another run's folder.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        """``descriptor``: of the folder, wherever it is moved."""
        self.path, self._descriptor = path, descriptor
        self._ledger: tuple[Path, os.stat_result] | None = None

    def keep(self, ledger: Path) -> None:
        """From now on the ledger must be this file, which must stay open."""
        self._ledger = ledger, ledger.stat()

    def check(self) -> None:
        """RunFailed if the folder is no longer at its path, or its ledger is another file."""

        def is_at(path: Path, held: os.stat_result) -> bool:
            try:
                return os.path.samestat(path.stat(), held)
            except (FileNotFoundError, NotADirectoryError):
                return False

        held = os.fstat(self._descriptor)
        if not is_at(self.path, held):
            place = Path(f"/proc/self/fd/{self._descriptor}").readlink()
            if is_at(place, held):
                raise RunFailed(f"{self.path} was moved to {place} in mid-run\nrun folder: {place}")
            raise RunFailed(f"{self.path} was removed, or moved to another disk, in mid-run")
        if self._ledger is not None and not is_at(*self._ledger):
            raise RunFailed(f"{self._ledger[0]} was removed or replaced in mid-run\nrun folder: {self.path}")

    def watched(self, stopped: Callable[[], bool]) -> Callable[[], bool]:
        """A stop flag that makes the check, too, since workers and long rounds would not meet it before a commit."""

        def is_stopped() -> bool:
            self.check()
            return stopped()

        return is_stopped


def check_place(place: Path, run_id: str | None, may_exist: bool = False) -> None:
    """ScenarioError if the folder of a run or study cannot be created in ``place``, before any process is started."""
    if run_id is not None and (Path(run_id).name != run_id or not run_id or not run_id.isprintable()):
        rule = ": must be the name of a folder, without slashes and control characters"
        raise ScenarioError(Argument("run_id", repr(run_id)), rule)
    check_name(place)
    with _writing(place):
        place.mkdir(parents=True, exist_ok=True)
        _probe(place)
        longest = os.pathconf(place, "PC_NAME_MAX") - SCRATCH_NAME_NBYTES
    if run_id is None:
        return
    if len(os.fsencode(run_id)) > longest:
        raise ScenarioError(Argument("run_id", repr(run_id)), f": must not be longer than {longest} bytes")
    if not may_exist:
        with _writing(place / run_id):  # even a look-up can fail
            _refuse_existing(place / run_id)


def check_name(place: Path) -> None:
    """ScenarioError for a folder of which no run's record could be read again."""
    if CONTROL.search(str(place)):
        raise ScenarioError(f"{str(place)!a}: a folder for runs must not have control characters in its name")


def check_room(folder: Path) -> None:
    """ScenarioError for a run folder that cannot be written, before any process is started."""
    try:
        _probe(folder)
    except OSError as error:
        raise ScenarioError(f"run folder {folder} cannot be written: {error.strerror}") from None


def _probe(folder: Path) -> None:
    """OSError for a folder in which not even a short file can be written."""
    probe = folder / f".probe-{secrets.token_hex(4)}"
    write_bytes(probe, bytes(PROBE_NBYTES))
    probe.unlink()


def make_folder(place: Path, run_id: str | None, fill: Callable[[Path], None]) -> Path:
    """A new folder in ``place`` for one run, study or comparison, with the files of ``fill``.

    The folder is complete or absent, even if this process is killed.
    """
    check_name(place)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    folder = place / (run_id or f"{stamp}-{secrets.token_hex(2)}")
    _refuse_existing(folder)
    with _writing(folder):
        place.mkdir(parents=True, exist_ok=True)
        write_folder(folder, fill)
    return folder


def _refuse_existing(folder: Path) -> None:
    if not folder.exists():
        return
    has_ended = False
    with contextlib.suppress(sqlite3.Error):
        has_ended = bool(read(folder / LEDGER[0], "SELECT value FROM meta WHERE key = 'summary'"))
    problem = "exists already; choose another "
    if (folder / "scenario.toml").exists() and not has_ended:
        problem = f"holds an unfinished run; to resume it: fedbr resume {folder}, or choose another "
    raise ScenarioError(f"run folder {folder} {problem}", Argument("run_id"))


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ScenarioError(Argument("out"), f": cannot write to {folder}: {error.strerror}") from None


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[HeldFolder]:
    """Lock a run folder until the context or the process ends; ScenarioError if another process has locked it."""
    with contextlib.ExitStack() as lock:
        try:
            descriptor = lock.enter_context(folder_lock(folder.resolve(), BRIEF_PAUSES_SECONDS))
        except BlockingIOError:
            raise ScenarioError(f"run folder {folder}: another process has locked this run") from None
        yield HeldFolder(folder, descriptor)


def check(folder: Path) -> None:
    """ScenarioError for a run folder that no run has created, such as one with links."""
    trees = [folder / name for name in (plugin_sources.FOLDER, INPUTS)]
    inner = (Path(place, name) for tree in trees for place, names, _ in os.walk(tree) for name in names)
    for path in (*(folder / name for name in (*FOLDERS, ARRAYS)), *trees, *inner):
        _refuse_unless(path, stat.S_ISDIR, "is not a folder")
    copies = (Path(place, name) for place, _, names in os.walk(folder / INPUTS) for name in names)
    for path in (*(folder / name for name in (*FILES, DESCRIPTION)), *_of_name(folder / LOGS, _LOG), *copies):
        _refuse_unless(path, stat.S_ISREG, "is not a regular file")
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), opened(folder / JOURNAL) as file:
        file.seek(-min(len(SUPER_JOURNAL), file.seek(0, os.SEEK_END)), os.SEEK_END)
        if file.read() == SUPER_JOURNAL:
            raise ScenarioError(
                f"{folder / JOURNAL} names another journal, which SQLite would delete; no run writes such a file"
            )
    ledger = folder / LEDGER[0]
    try:
        if ledger.exists():
            foreign.check(ledger)
    except foreign.ForeignLedger as error:
        raise ScenarioError(f"{ledger} cannot be read: {error}") from None
    except sqlite3.Error:
        pass  # what is wrong with a damaged one is said where it is read


def _refuse_unless(path: Path, is_expected: Callable[[int], bool], problem: str) -> None:
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not is_expected(mode):
        problem = "is a link" if stat.S_ISLNK(mode) else problem
        raise ScenarioError(f"{path} {problem}: nothing outside of a run folder is written, so the run is not resumed")


def empty(folder: Path) -> None:
    """Remove everything that a run has committed, and create its folders again; unknown files stay. ScenarioError."""
    with _writing(folder):
        for name in LEDGER:
            (folder / name).unlink(missing_ok=True)
        remove_all(folder)
        for path in _of_name(folder / app_records.FOLDER, _MESSAGE):
            path.unlink()
        for name in MADE:
            (folder / name).mkdir(exist_ok=True)


def discard(folder: Path) -> None:
    """Remove a run, and its folder if that empties it; unknown files, and files that cannot be removed, stay."""
    if folder.is_symlink():
        return
    plugin_sources.remove(folder)
    input_files.remove(folder)
    with contextlib.suppress(OSError):
        remove_all(folder)
    places = ((LOGS, _LOG), (ARRAYS, _ARRAY), (app_records.FOLDER, _MESSAGE))
    made = [path for name, pattern in places for path in _of_name(folder / name, pattern)]
    for path in (*made, *(folder / name for name in _OURS), *_of_name(folder, _PASSING)):
        with contextlib.suppress(OSError):
            path.unlink()
    for place in (*(folder / name for name in (*FOLDERS, ARRAYS)), folder):
        with contextlib.suppress(OSError):
            place.rmdir()


def _of_name(folder: Path, pattern: re.Pattern[str]) -> Iterator[Path]:
    if folder.is_dir() and not folder.is_symlink():
        yield from (path for path in list(folder.iterdir()) if pattern.fullmatch(path.name))
