"""Where the time of a process goes, told from the outside: by the file and function that it is in, again and again.

Two timers of the kernel interrupt the process, one by its CPU time and one by the wall's; each time, what has passed of
either since the last time is charged to the place where the main thread is. So sums are exact, and shares are as fine
as the ticks. A place is the innermost frame that `PLACES` knows; nothing of the product is changed or wrapped.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

import numpy as np

TIMERS = ((signal.ITIMER_PROF, signal.SIGPROF, 0.001), (signal.ITIMER_REAL, signal.SIGALRM, 0.004))
"""Each with its signal, and seconds between two ticks: of CPU time, and of the wall's"""
KINDS = ("data", "train", "visit", "wire", "evaluate", "fold", "ledger", "other", "wait")
"""``visit``: what a visit needs beside batches and steps; ``wait``: for messages. The CPU time of waiting is the
wire's, since libzmq's own thread works meanwhile."""
PLACES: tuple[tuple[str, str, str], ...] = (
    # A part of the file's path, a function ('' is any), what it is for. The first that fits is taken.
    ("zmq/sugar/poll.py", "", "wait"),
    ("zmq/sugar/socket.py", "recv_multipart", "wait"),
    ("edge/runtime/worker.py", "receive", "wait"),
    ("zmq/", "", "wire"),
    ("edge/training/trainer.py", "evaluate", "evaluate"),
    ("edge/training/trainer.py", "_score", "evaluate"),
    ("edge/training/batches.py", "", "data"),
    ("edge/data/", "", "data"),
    ("edge/training/sgd.py", "", "train"),
    ("edge/methods/", "loss", "train"),
    ("edge/training/client_update.py", "loss", "train"),
    ("edge/training/client_update.py", "train", "train"),
    ("edge/training/trainer.py", "", "visit"),
    ("edge/training/client_update.py", "", "visit"),
    ("edge/protocol/client_state.py", "", "visit"),
    ("edge/protocol/files.py", "", "ledger"),
    ("edge/protocol/", "", "wire"),
    ("edge/runtime/worker.py", "", "wire"),
    ("coordinator/workers/", "", "wire"),
    ("coordinator/aggregation/weighted_sum.py", "", "fold"),
    ("coordinator/rounds/reorder_buffer.py", "", "fold"),
    ("coordinator/aggregation/optimizers.py", "", "fold"),
    ("coordinator/aggregation/server.py", "dispatch", "other"),
    ("coordinator/aggregation/server.py", "", "fold"),
    ("coordinator/records/store.py", "", "ledger"),
    ("coordinator/records/checkpoints.py", "", "ledger"),
    ("coordinator/rounds/run.py", "model_sha256", "ledger"),
    ("coordinator/rounds/evaluation.py", "", "evaluate"),
)
"""Where two know a file, its functions come first."""
OUTERMOST = ("evaluate",)
"""Kinds that claim what happens inside them, such as batches of the test set, but not waiting and the wire."""


class Sampler:
    """Seconds by kind, kept in an array that may be shared: (2, kinds), CPU first."""

    def __init__(self, seconds: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
        assert seconds.shape == (2, len(KINDS)), seconds.shape
        self.seconds = seconds
        self._known: dict[tuple[str, str], str | None] = {}
        self._is_busy = False
        self._last = _now()

    def start(self) -> None:
        """Begin to sample this process."""
        self._last = _now()
        for timer, number, tick in TIMERS:
            signal.signal(number, self._tick)
            signal.siginterrupt(number, False)
            signal.setitimer(timer, tick, tick)

    @staticmethod
    def stop() -> None:
        """Sample no more; a process that is left by way of the interpreter's end must, or the timers kill it there."""
        for timer, _, _ in TIMERS:
            signal.setitimer(timer, 0)

    def read(self) -> dict[str, dict[str, float]]:
        """``cpu`` and ``wall`` -> kind -> seconds so far."""
        return by_kind(self.seconds)

    def _tick(self, number: int, frame: FrameType | None) -> None:
        if self._is_busy:  # ticks that pile up on a busy machine must not be handled one inside the other
            return
        self._is_busy = True
        now = _now()
        self.seconds[:, KINDS.index(self._kind(frame))] += now - self._last
        self._last = now
        self._is_busy = False

    def _kind(self, frame: FrameType | None) -> str:
        found = "other"
        while frame is not None:
            kind = self._place(frame)
            if kind is not None and found in ("other", "data", "visit", "train"):
                found = kind if found == "other" or kind in OUTERMOST else found
            frame = frame.f_back
        return found

    def _place(self, frame: FrameType) -> str | None:
        path, function = where = frame.f_code.co_filename, frame.f_code.co_name
        if where not in self._known:
            self._known[where] = next(
                (kind for part, name, kind in PLACES if part in path and name in ("", function)), None
            )
        return self._known[where]


def _now() -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([time.process_time(), time.perf_counter()])


def by_kind(seconds: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> dict[str, dict[str, float]]:
    """An array of `Sampler` as plain numbers."""
    return {
        clock: dict(zip(KINDS, row, strict=True)) for clock, row in zip(("cpu", "wall"), seconds.tolist(), strict=True)
    }


FOLDER_VARIABLE = "FEDBR_BENCHMARK_FOLDER"


def shared_array(folder: Path) -> np.memmap[tuple[int, ...], np.dtype[np.float64]]:
    """A file of this process that others may read while it works."""
    return np.memmap(folder / f"{os.getpid()}.seconds", dtype=np.float64, mode="w+", shape=(2, len(KINDS)))


def sum_of(folder: Path) -> Mapping[str, Mapping[str, float]]:
    """All workers together: ``cpu`` and ``wall`` -> kind -> seconds."""
    total = np.zeros((2, len(KINDS)))
    for path in folder.glob("*.seconds"):
        total += np.fromfile(path, dtype=np.float64).reshape(total.shape)
    return by_kind(total)
