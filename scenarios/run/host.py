"""The machine and the user of a run: workers, device, folders, Ctrl-C. None of it affects a result."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import secrets
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from coordinator.records.schema import HostEvent
from coordinator.records.store import read
from coordinator.rounds.budget import TIME_LIMIT, USER
from coordinator.rounds.run import RoundFinished
from coordinator.workers.sockets import RemoteAccess
from coordinator.workers.task import Stopped
from costmodel import units
from edge.protocol.files import BRIEF_PAUSES_SECONDS, folder_lock, write_bytes, write_folder, write_text
from scenarios.config.load import Loaded, ScenarioError
from scenarios.config.quantities import scenario_text
from scenarios.run import run_folder
from scenarios.run.run_folder import HeldFolder

PACKAGES = ("torch", "torchvision", "numpy", "simpy", "pyzmq", "msgpack", "pydantic", "safetensors", "scikit-learn")
KILLED = 128 + signal.SIGINT
PROBE_NBYTES = 4096
"""Not 0, since a full disk can still create empty files."""

SCRATCH_NAME_NBYTES = len("..new-12345678")
"""Bytes that `write_folder` adds to the name of a run folder while it fills it."""


@dataclass(frozen=True)
class Host:
    """The user's settings for this machine; never part of the result."""

    out: Path
    workers: int
    device: str
    run_id: str | None = None
    on_start: Callable[[Path, Loaded], None] = lambda folder, loaded: None
    on_round: Callable[[RoundFinished], None] = lambda progress: None
    remote_access: RemoteAccess | None = None
    """The port that remote workers join; None: local workers only."""
    on_note: Callable[[str], None] = lambda note: None
    """Told once, before training, what the scenario's author should know of its data and method."""
    on_event: Callable[[HostEvent], None] = lambda event: None
    """Told of workers that come and go."""
    stopped_by: Callable[[], str] = lambda: USER
    """The word for what has set the stop flag."""


def default_workers() -> int:
    """One worker per core that this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


def choose_device(name: str) -> str:
    """``auto`` is a GPU where there is one. ScenarioError for a device that this machine lacks."""
    # The device files show whether there is a driver: torch is not imported in this process.
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*"))
    if name == "auto":
        return "cuda" if has_gpu else "cpu"
    if name != "cpu" and not (name == "cuda" or re.fullmatch(r"cuda:[0-9]{1,4}", name)):
        raise ScenarioError(f"--device {name}: must be cpu, cuda, cuda:N or auto")
    if name != "cpu" and not has_gpu:
        raise ScenarioError(f"--device {name}: this machine has no NVIDIA GPU; use auto or cpu")
    return name


class StopFlag:
    """Set by Ctrl-C and SIGTERM; a second signal exits at once with code 130.

    What is `interruptible` then ends with Stopped. Outside the main thread, the only one with signals, nothing sets it.
    """

    def __init__(self, signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)) -> None:
        self.is_set = False
        self._signals = signals

    def __call__(self) -> bool:
        """Whether the user has asked to stop."""
        return self.is_set

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Handle signals, and restore the previous handlers at the end."""
        is_main = threading.current_thread() is threading.main_thread()
        before = {number: signal.signal(number, self._on_signal) for number in self._signals if is_main}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            _computing.is_interruptible = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_set:
            sys.exit(KILLED)
        self.is_set = True
        if _computing.is_interruptible:
            raise Stopped


class _Computing(threading.local):
    """Per thread, since signals are handled in the main thread, whatever others do."""

    is_interruptible = False


_computing = _Computing()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """A body of pure computation, which the first signal of a `StopFlag` ends with Stopped.

    A signal that comes just before is found by whoever asks the flag next. One that comes while an object is finalised
    is lost, and a second one ends the process. Without effect outside the main thread.
    """
    before = _computing.is_interruptible
    try:
        _computing.is_interruptible = True
        yield
    finally:
        _computing.is_interruptible = before


class Piece:
    """The stop flag of a piece of a run or study: set by the user, or at the first round's end after ``seconds``.

    No round is lost at the end of a piece, and each piece has at least one. None: no end but the user's.
    """

    def __init__(
        self, seconds: float | None, stopped: Callable[[], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stopped, self._clock = stopped, clock
        self._ends_at = math.inf if seconds is None else clock() + seconds
        self._is_over = False

    def __call__(self) -> bool:
        """Whether the user has asked to stop, or the piece is over."""
        return self._is_over or self._stopped()

    def stopped_by(self) -> str:
        """The word for what has set it: the end of the piece, or the user."""
        return TIME_LIMIT if self._is_over else USER

    def after(self, on_round: Callable[[RoundFinished], None]) -> Callable[[RoundFinished], None]:
        """``on_round``, and the end of the piece if a round is committed so late."""

        def committed(progress: RoundFinished) -> None:
            on_round(progress)
            self._is_over = self._clock() >= self._ends_at

        return committed


def piece_seconds(text: str | None) -> float | None:
    """The duration that ``--for`` names; ScenarioError for anything else."""
    if text is None:
        return None
    try:
        seconds = units.seconds(text)
    except ValueError as error:
        raise ScenarioError(f"--for: {error}") from None
    if not 0 < seconds < math.inf:
        raise ScenarioError(f"--for {text!r}: must be above 0 and finite")
    return seconds


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """TimeoutError in a body that takes longer; without effect outside the main thread, the only one with signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_alarm(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.1)  # repeated, since an error in a finaliser is lost
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def check_folder(name: str, host: Host, may_exist: bool = False) -> None:
    """ScenarioError for an output folder in which the run folder cannot be created, before any process is started."""
    name_of = Path(host.run_id).name if host.run_id is not None else None
    if host.run_id is not None and (not name_of or name_of != host.run_id or not host.run_id.isprintable()):
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
        with _writing(place / host.run_id):  # even a look-up can fail
            _refuse_existing(place / host.run_id)


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


def make_folder(name: str, host: Host, fill: Callable[[Path], None] = lambda folder: None) -> Path:
    """A new folder for one run, study or comparison, ``<out>/<scenario>/<run id>``, with the files of ``fill``.

    The folder is complete or absent, even if this process is killed.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    folder = host.out / name / (host.run_id or f"{stamp}-{secrets.token_hex(2)}")
    _refuse_existing(folder)
    with _writing(folder):
        (host.out / name).mkdir(parents=True, exist_ok=True)
        write_folder(folder, fill)
    return folder


def create_run_folder(loaded: Loaded, host: Host) -> Path:
    """A new run folder with its empty subfolders and the resolved scenario."""

    def fill(folder: Path) -> None:
        for name in run_folder.MADE:
            (folder / name).mkdir()
        write_text(folder / "scenario.toml", scenario_text(loaded.scenario.model_dump()))

    return make_folder(loaded.name, host, fill)


def reset_run_folder(folder: Path) -> None:
    """Restore the state of `create_run_folder`, for a run that was interrupted before its first round."""
    with _writing(folder):
        run_folder.empty(folder)


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[HeldFolder]:
    """Lock a run folder until the context or the process ends; ScenarioError if another process has locked it."""
    with contextlib.ExitStack() as lock:
        try:
            descriptor = lock.enter_context(folder_lock(folder.resolve(), BRIEF_PAUSES_SECONDS))
        except BlockingIOError:
            raise ScenarioError(f"run folder {folder}: another process has locked this run") from None
        yield HeldFolder(folder, descriptor)


def _refuse_existing(folder: Path) -> None:
    if not folder.exists():
        return
    if (folder / "scenario.toml").exists() and not _has_ended(folder / "ledger.sqlite"):
        raise ScenarioError(
            f"run folder {folder} holds an unfinished run; to resume it: fedbr resume {folder}, or choose another "
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
    """Write the product's log messages to a file only; logging raises OSError if the disk is full."""
    logger = logging.getLogger("fedbr")
    handler = _LogFile(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        with contextlib.suppress(OSError):  # logging has raised it before
            handler.close()


class _LogFile(logging.FileHandler):
    """A log file that raises OSError, where logging would print a traceback over the user's table."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, self.baseFilename)
        super().handleError(record)
