"""This machine and its user: workers, device, folders, Ctrl-C. Nothing here is part of a result."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from coordinator.records.store import read
from coordinator.rounds.run import RoundFinished
from coordinator.workers.sockets import RemoteAccess
from edge.protocol.files import folder_lock, write_bytes, write_folder, write_text
from scenarios import run_folder
from scenarios.config.load import Loaded, ScenarioError
from scenarios.config.toml_writer import toml_text

PACKAGES = ("torch", "torchvision", "numpy", "simpy", "pyzmq", "msgpack", "pydantic", "safetensors", "scikit-learn")
KILLED = 128 + signal.SIGINT
PROBE_NBYTES = 4096
"""A disk that is full still takes names of files."""

SCRATCH_NAME_NBYTES = len("..new-12345678")
"""Bytes that the name of a run folder is longer while `write_folder` fills it."""


@dataclass(frozen=True)
class Host:
    """What the user says about this machine; never part of the result."""

    out: Path
    workers: int
    device: str
    run_id: str | None = None
    on_start: Callable[[Path, Loaded], None] = lambda folder, loaded: None
    on_round: Callable[[RoundFinished], None] = lambda progress: None
    remote_access: RemoteAccess | None = None
    """Where workers of other machines may join."""


def default_workers() -> int:
    """One worker per core that this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


def choose_device(asked: str) -> str:
    """``auto`` is a GPU where there is one. ScenarioError for a device that this machine lacks."""
    # Whether there is a driver is asked of the system: torch stays out of this process.
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*"))
    if asked == "auto":
        return "cuda" if has_gpu else "cpu"
    if asked != "cpu" and not (asked == "cuda" or re.fullmatch(r"cuda:[0-9]{1,4}", asked)):
        raise ScenarioError(f"--device {asked}: must be cpu, cuda, cuda:N or auto")
    if asked != "cpu" and not has_gpu:
        raise ScenarioError(f"--device {asked}: this machine has no NVIDIA GPU; leave it at auto or cpu")
    return asked


class StopFlag:
    """Ctrl-C and SIGTERM ask for an end; a second one ends at once with exit code 130."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        """Whether the user asked to stop."""
        return self.asked

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Listen to signals, and put back what listened before."""
        before = {number: signal.signal(number, self._hear) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            sys.exit(KILLED)
        self.asked = True


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """TimeoutError in what takes longer; no limit in another thread than the main one, which signals do not reach."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.1)  # again, since an error in a finaliser is lost
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check_folder(name: str, host: Host, may_exist: bool = False) -> None:
    """Refuse a place that cannot take the run folder, before anything is started."""
    if host.run_id is not None and (Path(host.run_id).name != host.run_id or not host.run_id.isprintable()):
        raise ScenarioError(
            f"--run-id {host.run_id!r}: must be the name of a folder, without slashes and control characters"
        )
    place = host.out / name
    with _writing(place):
        place.mkdir(parents=True, exist_ok=True)
        _probe(place)
        longest = os.pathconf(place, "PC_NAME_MAX") - SCRATCH_NAME_NBYTES
    if host.run_id is not None and len(os.fsencode(host.run_id)) > longest:
        raise ScenarioError(f"--run-id {host.run_id!r}: must not be longer than {longest} bytes")
    if host.run_id is not None and not may_exist:
        with _writing(place / host.run_id):  # the system may refuse even to look it up
            _refuse_existing(place / host.run_id)


def check_room(folder: Path) -> None:
    """Refuse to go on with a run whose folder cannot be written, before anything is started."""
    try:
        _probe(folder)
    except OSError as error:
        raise ScenarioError(f"run folder {folder} cannot be written: {error.strerror}") from None


def _probe(folder: Path) -> None:
    """Raises OSError where not even a short file has room."""
    probe = folder / f".probe-{secrets.token_hex(4)}"
    write_bytes(probe, bytes(PROBE_NBYTES))
    probe.unlink()


def make_folder(name: str, host: Host, fill: Callable[[Path], None] = lambda folder: None) -> Path:
    """A new folder for one run, study or comparison, ``<out>/<scenario>/<run id>``, with what ``fill`` puts into it.

    It is whole or absent: whoever is killed meanwhile can do the same again.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    folder = host.out / name / (host.run_id or f"{stamp}-{secrets.token_hex(2)}")
    _refuse_existing(folder)
    with _writing(folder):
        write_folder(folder, fill)
    return folder


def create_run_folder(loaded: Loaded, host: Host) -> Path:
    """A new run folder with its empty places and the resolved scenario."""

    def fill(folder: Path) -> None:
        for name in run_folder.FOLDERS:
            (folder / name).mkdir()
        write_text(folder / "scenario.toml", toml_text(loaded.scenario.model_dump()))

    return make_folder(loaded.name, host, fill)


def reset_run_folder(folder: Path) -> None:
    """Make a run folder as `create_run_folder` leaves it; for a run that was broken off before its first round."""
    with _writing(folder):
        run_folder.empty(folder)


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Lock a run folder until the context or the process ends; ScenarioError if another process has locked it."""
    with contextlib.ExitStack() as lock:
        try:
            lock.enter_context(folder_lock(folder.resolve()))
        except BlockingIOError:
            raise ScenarioError(f"run folder {folder}: another process is at work on this run") from None
        yield


def _refuse_existing(folder: Path) -> None:
    if not folder.exists():
        return
    if (folder / "scenario.toml").exists() and not _has_ended(folder / "ledger.sqlite"):
        raise ScenarioError(
            f"run folder {folder} holds an unfinished run; to go on with it: fedbr resume {folder}, or choose another "
            "--run-id"
        )
    raise ScenarioError(f"run folder {folder} exists already; choose another --run-id")


def _has_ended(ledger: Path) -> bool:
    try:
        return bool(read(ledger, "SELECT value FROM meta WHERE key = 'summary'"))
    except sqlite3.Error:
        return False


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ScenarioError(f"--out: cannot write to {folder}: {error.strerror}") from None


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Let the product's own log messages go to a file, and nowhere else; OSError from whoever logs, if it is full."""
    logger = logging.getLogger("fedbr")
    handler = _LogFile(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        with contextlib.suppress(OSError):  # whoever logged what is not written has been told
            handler.close()


class _LogFile(logging.FileHandler):
    """Does not print a traceback over the user's table where logging would."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, self.baseFilename)
        super().handleError(record)
