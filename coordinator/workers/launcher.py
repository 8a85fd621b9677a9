"""The process that starts and ends workers, as the coordinator holds it (`edge.runtime.fork_server` is inside). Never a
socket."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from coordinator.workers.task import PoolError

END_SECONDS = 3.0
"""How long workers may take to be ended; `edge.runtime.fork_server` kills after 2."""
ANSWER_SECONDS = 20.0
"""How long it may take to start or end a worker, before it must be thought stuck."""
LOAD_SECONDS = 300.0
"""How long it may take to load what it preloads: torch, perhaps over a network."""
RESTARTS = 3
"""How often it is started again in one run, if it ends or is stuck."""
WANTED_FILES = 1 << 16
LOG_LINES = 8

MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""Environment of workers, where the user's own does not say otherwise: glibc keeps what was freed for what is allocated
next. A training step frees all that the last one allocated, and pays for fresh pages if the system took it back: a
tenth of its time for resnet18. The peak stays the same."""
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Environment of workers, whatever the user's own says. A library with threads of its own must not be forked; workers
set their number of threads themselves."""


class WorkerLauncher:
    """The fork server (`edge.runtime.fork_server`) as a context; several pools may use it in turn.

    ``preload`` names the modules that are imported before the first fork. Should it end, the kernel ends its workers
    with it; it is started again, a few times, and what it was last asked is asked again.
    """

    def __init__(self, preload: Sequence[str] = ("edge.training.trainer",)) -> None:
        self._preload = preload
        self._pending = b""
        self._asked: dict[str, float] = {}
        """worker -> when its start or its end was asked for, if that has not been answered"""
        self._living: set[str] = set()
        self._folders: list[str] = []
        self._is_loaded = False
        self._restarts_left = RESTARTS
        self._hears: int | None = None
        """Where answers come in: one descriptor, whichever process is at its other end"""

    def __enter__(self) -> Self:
        _raise_file_limit()
        self._complaints: IO[bytes] = tempfile.TemporaryFile()
        self._start()
        return self

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "edge.runtime.fork_server", *self._preload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env=environment(),
            start_new_session=True,  # a terminal's Ctrl-C is for the coordinator alone
        )
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            if self._hears is None:
                self._hears = os.dup(answers.fileno())
            else:
                os.dup2(answers.fileno(), self._hears, inheritable=False)
        os.set_blocking(self._hears, False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._complaints.close()
        os.close(self.fileno())
        self._hears = None

    def _stop(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # and the kernel kills its workers
            self._process.wait()

    def fileno(self) -> int:
        """Readable when there are answers."""
        assert self._hears is not None
        return self._hears

    def spawn(self, name: str, argv: list[str], log: Path) -> None:
        """Ask for a worker."""
        self._asked[name] = time.monotonic()
        self._ask({"spawn": name, "argv": argv, "log": str(log)})

    def end(self, names: list[str]) -> None:
        """Ask for the end of workers; those that have ended are passed over."""
        for name in self._living.intersection(names):
            self._asked.setdefault(name, time.monotonic())
        self._ask({"end": names})

    def adopt(self, folder: Path) -> None:
        """Serve a pool: have its folder removed should the coordinator be killed."""
        self._restarts_left = RESTARTS
        self._folders.append(str(folder))
        self._ask({"folder": str(folder)})

    def answers(self) -> list[dict[str, Any]]:
        """What has been answered since the last call. A launcher that has ended is started again.

        The workers that it had, or was to start, are then ``exited`` and ``lost``. PoolError if it ends too often.
        """
        try:
            received = os.read(self.fileno(), 1 << 16)
        except BlockingIOError:
            return []
        if not received:
            return self._again()
        *lines, self._pending = (self._pending + received).split(b"\n")
        answers: list[dict[str, Any]] = [json.loads(line) for line in lines]
        for answer in answers:
            self._note(answer)
        return answers

    def _note(self, answer: dict[str, Any]) -> None:
        if not self._is_loaded:
            self._is_loaded = True
            self._asked = dict.fromkeys(self._asked, time.monotonic())
        if "spawned" in answer:
            self._living.add(answer["spawned"])
            del self._asked[answer["spawned"]]
        else:
            name = answer.get("exited") or answer["failed"]
            self._living.discard(name)
            self._asked.pop(name, None)

    def _again(self) -> list[dict[str, Any]]:
        """Start it again; what has become of its workers. PoolError if it has been started often enough."""
        status = self._process.wait()
        end = f"the process that starts workers {how_ended(status)}"
        is_broken = status >= 0 and not self._is_loaded  # as by an import that fails: it would again
        if is_broken or not self._restarts_left:
            self._complaints.seek(0)
            raise PoolError(f"{end}{quote(self._complaints.read())}")
        self._restarts_left -= 1
        names = sorted(self._living | self._asked.keys())
        lost = [{"exited": name, "status": -signal.SIGKILL, "lost": end} for name in names]
        self._living.clear()
        self._asked.clear()
        self._pending, self._is_loaded = b"", False
        self._stop()
        self._start()
        self._folders = [folder for folder in self._folders if Path(folder).exists()]
        for folder in self._folders:
            self._ask({"folder": folder})
        return lost

    def check(self) -> None:
        """End it if it has not done for too long what it was asked, as a process that is stopped.

        PoolError if it cannot be started again.
        """
        limit = ANSWER_SECONDS if self._is_loaded else LOAD_SECONDS
        whom = min(self._asked, key=self._asked.__getitem__, default=None)
        if whom is not None and time.monotonic() - self._asked[whom] > limit:
            stuck = f"the process that starts workers (pid {self._process.pid})"
            if not self._restarts_left or not self._is_loaded:
                raise PoolError(f"{stuck} has not answered for {limit:g} s, about {whom}")
            self._process.kill()  # it ends, which is heard of next

    def _ask(self, request: dict[str, object]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # that it has ended is heard of by `answers`
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()


def environment() -> dict[str, str]:
    """The environment of a worker that this process starts, or becomes."""
    path = [entry or str(Path.cwd()) for entry in sys.path]
    return MALLOC | os.environ | THREADS | {"PYTHONPATH": os.pathsep.join(path)}


def how_ended(status: int) -> str:
    """An exit status in words; negative is minus a signal's number."""
    return f"ended with exit code {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"


def quote(text: bytes) -> str:
    """The last lines, indented below an error's own line."""
    lines = text.decode(errors="replace").splitlines()[-LOG_LINES:]
    return "".join(f"\n    {line}" for line in lines)


def _raise_file_limit() -> None:
    """Each worker is a file; at the limit libzmq would spin without an error (pyzmq issue 1642)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
