"""The launcher: the coordinator's side of the fork server (`edge.runtime.fork_server`), which starts and ends workers.
Never a socket."""

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
from edge.protocol import interpreter
from edge.protocol.portable import NATIVE, PORTABLE, Instructions, training_environment

END_SECONDS = 3.0
"""Limit for ending workers; `edge.runtime.fork_server` kills after 2."""
ANSWER_SECONDS = 20.0
"""Limit for starting or ending a worker, after which the fork server is stuck."""
LOAD_SECONDS = 300.0
"""Limit for importing the preloaded modules: torch, perhaps over a network."""
RESTARTS = 3
"""Restarts of the fork server in one run, if it ends or is stuck."""
WANTED_FILES = 1 << 16
LOG_LINES = 8

MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""Environment of workers, unless the user's own sets these: glibc reuses freed memory instead of returning it to the
system. A training step frees everything that the last one allocated, and fresh pages would take a tenth of its time for
resnet18. The peak stays the same."""
THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Environment of workers, whatever the user's own has. A library with threads of its own must not be forked; workers
set their number of threads themselves."""


class WorkerLauncher:
    """The fork server (`edge.runtime.fork_server`) as a context; several pools may use it in turn.

    ``preload`` names the modules that are imported before the first fork; ``instructions``: of the first pool, as of
    `use`, without which it would start the fork server twice. If the fork server ends, the kernel ends its workers,
    too; it is started again, a few times.
    """

    def __init__(
        self, preload: Sequence[str] = ("edge.training.trainer",), instructions: Instructions = NATIVE
    ) -> None:
        self._preload = preload
        self._instructions = instructions
        self._has_started = False
        self._pending = b""
        self._requested: dict[str, float] = {}
        """worker -> when its start or its end was requested, if that has not been answered"""
        self._living: set[str] = set()
        self._folders: list[str] = []
        self._is_loaded = False
        self._restarts_left = RESTARTS
        self._answers: int | None = None
        """Descriptor of the answers, the same for every fork server that is started"""

    def __enter__(self) -> Self:
        # each worker is a file; at the limit libzmq would spin without an error (pyzmq issue 1642)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_FILES)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        self._start()
        self._has_started = True
        return self

    def use(self, instructions: Instructions) -> None:
        """Have later workers compute so (`TrainConfig.instructions`); between pools, since it ends all workers.

        Libraries read their switches when they are imported: a fork server that has them otherwise is replaced.
        """
        is_other = environment(instructions) != environment(self._instructions)
        self._instructions = instructions
        if self._has_started and is_other:
            self._process.kill()  # at the end of its stdin it would remove the folders that it was given
            self._process.wait()
            self._start_again()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            interpreter.command("edge.runtime.fork_server", *self._preload),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(self._instructions),
            start_new_session=True,  # a terminal's Ctrl-C goes to the coordinator alone
        )
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            if self._answers is None:
                self._answers = os.dup(answers.fileno())
            else:
                os.dup2(answers.fileno(), self._answers, inheritable=False)
        os.set_blocking(self._answers, False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._errors.close()
        os.close(self.fileno())
        self._answers = None

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
        assert self._answers is not None
        return self._answers

    def spawn(self, name: str, argv: list[str], log: Path) -> None:
        """Request the start of a worker."""
        self._requested[name] = time.monotonic()
        self._send({"spawn": name, "argv": argv, "log": str(log)})

    def end(self, names: list[str]) -> None:
        """Request the end of workers; those that have ended are ignored."""
        for name in self._living.intersection(names):
            self._requested.setdefault(name, time.monotonic())
        self._send({"end": names})

    def adopt(self, folder: Path) -> None:
        """Begin to serve a pool; its folder is removed by the fork server if the coordinator is killed."""
        self._restarts_left = RESTARTS
        self._folders.append(str(folder))
        self._send({"folder": str(folder)})

    def answers(self) -> list[dict[str, Any]]:
        """The answers since the last call. A fork server that has ended is started again.

        The workers that it had, or was to start, are then ``exited`` and ``lost``. PoolError if it ends too often.
        """
        try:
            received = os.read(self.fileno(), 1 << 16)
        except BlockingIOError:
            return []
        if not received:
            return self._restart()
        *lines, self._pending = (self._pending + received).split(b"\n")
        answers: list[dict[str, Any]] = [json.loads(line) for line in lines]
        if answers and not self._is_loaded:
            self._is_loaded = True
            self._requested = dict.fromkeys(self._requested, time.monotonic())
        for answer in answers:
            if "spawned" in answer:
                self._living.add(answer["spawned"])
                del self._requested[answer["spawned"]]
            else:
                name = answer.get("exited") or answer["failed"]
                self._living.discard(name)
                self._requested.pop(name, None)
        return answers

    def _restart(self) -> list[dict[str, Any]]:
        """Start the fork server again; returns the ends of its workers. PoolError if it was restarted too often."""
        status = self._process.wait()
        end = f"the process that starts workers {how_ended(status)}"
        is_broken = status >= 0 and not self._is_loaded  # as by an import that fails, which it would again
        if is_broken or not self._restarts_left:
            self._errors.seek(0)
            raise PoolError(f"{end}{quote(self._errors.read())}")
        self._restarts_left -= 1
        names = sorted(self._living | self._requested.keys())
        lost = [{"exited": name, "status": -signal.SIGKILL, "lost": end} for name in names]
        self._start_again()
        return lost

    def _start_again(self) -> None:
        """Start a fork server in place of one that has ended, with the folders of that one."""
        self._living.clear()
        self._requested.clear()
        self._pending, self._is_loaded = b"", False
        self._stop()
        self._start()
        self._folders = [folder for folder in self._folders if Path(folder).exists()]
        for folder in self._folders:
            self._send({"folder": folder})

    def check(self) -> None:
        """End the fork server if a request has not been answered for too long, as when its process is stopped.

        PoolError if it cannot be started again.
        """
        limit = ANSWER_SECONDS if self._is_loaded else LOAD_SECONDS
        oldest = min(self._requested, key=self._requested.__getitem__, default=None)
        if oldest is not None and time.monotonic() - self._requested[oldest] > limit:
            stuck = f"the process that starts workers (pid {self._process.pid})"
            if not self._restarts_left or not self._is_loaded:
                raise PoolError(f"{stuck} has not answered for {limit:g} s, about {oldest}")
            self._process.kill()  # its end is found by `answers`

    def _send(self, request: dict[str, object]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # its end is found by `answers`
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()


def environment(instructions: Instructions = NATIVE) -> dict[str, str]:
    """The environment of every process that trains: workers that this process starts or becomes, and calibration."""
    own = training_environment(os.environ) if instructions == PORTABLE else dict(os.environ)
    return MALLOC | own | THREADS | interpreter.variables(sys.path)


def how_ended(status: int) -> str:
    """An exit status in words; negative is minus a signal's number."""
    return f"ended with exit code {status}" if status >= 0 else f"was ended by {signal.Signals(-status).name}"


def quote(text: bytes) -> str:
    """The last lines, indented below an error's own line."""
    lines = text.decode(errors="replace").splitlines()[-LOG_LINES:]
    return "".join(f"\n    {line}" for line in lines)
