"""The machine and the user of a run: workers, device, Ctrl-C, time limits, logs. None of it affects a result."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from coordinator.rounds.budget import TIME_LIMIT, USER
from coordinator.rounds.run import RoundFinished
from coordinator.workers.sockets import RemoteAccess
from coordinator.workers.task import Stopped, Workers
from costmodel import units
from edge.protocol.portable import PORTABLE
from scenarios.config.errors import Argument, ScenarioError
from scenarios.run.observer import RunObserver

if TYPE_CHECKING:  # the clock brings SimPy, which not every process needs
    from costmodel.clock import Clock
    from costmodel.fleet.fleet import Fleet
    from edge.protocol.config import Job, ModelProfile
    from scenarios.config.load import Loaded

PACKAGES = ("torch", "torchvision", "numpy", "simpy", "pyzmq", "msgspec", "pydantic", "safetensors", "scikit-learn")
KILLED = 128 + signal.SIGINT


class RealDevices(Protocol):
    """Devices that train the visits of a run, in real time, while workers of this machine evaluate its models."""

    def counted(self, job: Job, profile: ModelProfile, is_stopped: Callable[[], bool]) -> ModelProfile:
        """The profile with the examples of all clients, also where only the devices have them.

        ``job``: for all devices. Stopped as of `join`.
        """
        ...

    def join(
        self, job: Job, profile: ModelProfile, fleet: Fleet, pool: Workers, is_stopped: Callable[[], bool]
    ) -> tuple[Clock, Workers]:
        """The clock that measures visits, and the workers that send them to the devices, once these are there.

        Stopped if the user stops the run before that. ``pool`` does what devices do not.
        """
        ...


@dataclass(frozen=True)
class Host:
    """The user's settings for this machine; never part of the result."""

    out: Path
    workers: int
    device: str
    run_id: str | None = None
    observers: Sequence[RunObserver] = ()
    remote_access: RemoteAccess | None = None
    """The port that remote workers join; None: local workers only."""
    stopped_by: Callable[[], str] = lambda: USER
    """The word for what has set the stop flag."""
    devices: RealDevices | None = None
    """Train the visits; None: workers do, and the clock is virtual."""


def default_workers() -> int:
    """One worker per core that this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


PER_CORE, FEW = 8, 64
"""Worker processes that a machine is asked for at most: so many for each core, and so many on any machine."""


def check_workers(workers: int | None) -> None:
    """ScenarioError for more worker processes than this machine can start without harm to everything else on it."""
    cores = default_workers()
    most = max(PER_CORE * cores, FEW)
    if workers is not None and workers > most:
        has = f"this machine has {cores} core{'s' if cores > 1 else ''} for them"
        raise ScenarioError(
            Argument("workers", str(workers)), f": {has}; choose {most} or fewer, by default one per core"
        )


def choose_device(name: str, runs: Iterable[Loaded] = ()) -> str:
    """``auto`` is a GPU where there is one, unless one of the runs has portable numerics, those of processors.

    ScenarioError for a device that this machine lacks.
    """
    # The device files show whether there is a driver: torch is not imported in this process.
    has_gpu = any(Path("/dev").glob("nvidia[0-9]*"))
    if name == "auto":
        is_portable = any(run.scenario.train.instructions == PORTABLE for run in runs)
        return "cuda" if has_gpu and not is_portable else "cpu"
    if name != "cpu" and not (name == "cuda" or re.fullmatch(r"cuda:[0-9]{1,4}", name)):
        raise ScenarioError(Argument("device", name), ": must be cpu, cuda, cuda:N or auto")
    if name != "cpu" and not has_gpu:
        raise ScenarioError(Argument("device", name), ": this machine has no NVIDIA GPU; use auto or cpu")
    return name


class StopFlag:
    """Set by Ctrl-C and SIGTERM; a second signal exits at once with code 130.

    What is `interruptible` then ends with Stopped. Outside the main thread, the only one with signals, nothing sets it.
    """

    def __init__(self, signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)) -> None:
        self.is_set = False
        self._signals = signals

    def __call__(self) -> bool:
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


class Piece(RunObserver):
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

    def on_round(self, progress: RoundFinished) -> bool:
        """The end of the piece, if a round is committed so late."""
        self._is_over = self._clock() >= self._ends_at
        return self._is_over


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
