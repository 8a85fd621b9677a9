"""The fork server: ``python -P -m edge.runtime.fork_server MODULE...`` imports the modules once and forks a worker per
request.

One JSON object per line. Requests on stdin:

    {"spawn": NAME, "argv": [...], "log": PATH}    a worker, its output appended to the log
    {"end": [NAME, ...]}                           SIGTERM now, SIGKILL after 2 s
    {"folder": PATH}                               to be removed when the coordinator is gone, if it still exists

Answers on stdout, in the order of events:

    {"spawned": NAME, "pid": PID}
    {"failed": NAME, "reason": TEXT}               the system would not fork, or not open the log
    {"exited": NAME, "status": CODE}               minus the signal's number if a signal ended it

At the end of stdin, which the kernel brings about however the coordinator dies, it ends all workers and itself. Should
the fork server be killed, the kernel kills its workers (PR_SET_PDEATHSIG). Thus no ending leaves a process behind.

Why not multiprocessing's fork server: it imports the user's ``__main__`` again in each child, speaks pickle, and leaves
its children running when the coordinator is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from edge.runtime import worker
from edge.runtime.log import log_error

GRACE_SECONDS = 2.0
"""From SIGTERM to SIGKILL."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_STDIN, _STDOUT, _STDERR = 0, 1, 2


class ForkServer:
    """The workers that live, and those that were told to end."""

    def __init__(self, wakeup: int) -> None:
        self._wakeup = wakeup
        self._living: dict[str, int] = {}  # name -> pid
        self._ending: dict[str, float] = {}  # name -> monotonic second of its SIGKILL
        self._folders: list[Path] = []
        self._pid = os.getpid()

    def serve(self) -> None:
        """Until stdin ends and no worker lives."""
        pending, is_open = b"", True
        while is_open or self._living:
            readable, _, _ = select.select([self._wakeup, *([_STDIN] if is_open else [])], [], [], self._patience())
            if self._wakeup in readable:
                os.read(self._wakeup, 4096)
            if _STDIN in readable:
                received = os.read(_STDIN, 1 << 16)
                *lines, pending = (pending + received).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))
                if not received:
                    is_open = False
                    self._end(list(self._living))
            self._kill_the_late()
            self._reap()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _obey(self, request: dict[str, Any]) -> None:
        if "end" in request:
            self._end(request["end"])
        elif "folder" in request:
            self._folders.append(Path(request["folder"]))
        else:
            self._spawn(request["spawn"], request["argv"], Path(request["log"]))

    def _spawn(self, name: str, argv: list[str], log: Path) -> None:
        try:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            _say({"failed": name, "reason": f"{log}: {error.strerror}"})
            return
        try:
            pid = os.fork()
            if pid == 0:
                _live(argv, output, self._pid)
        except OSError as error:
            _say({"failed": name, "reason": f"fork: {error.strerror}"})
            return
        finally:
            os.close(output)
        self._living[name] = pid
        _say({"spawned": name, "pid": pid})

    def _end(self, names: list[str]) -> None:
        for name in names:
            if name in self._living and name not in self._ending:
                os.kill(self._living[name], signal.SIGTERM)
                self._ending[name] = time.monotonic() + GRACE_SECONDS

    def _kill_the_late(self) -> None:
        for name, deadline in self._ending.items():
            if deadline <= time.monotonic():
                os.kill(self._living[name], signal.SIGKILL)

    def _patience(self) -> float | None:
        return max(0.0, min(self._ending.values()) - time.monotonic()) if self._ending else None

    def _reap(self) -> None:
        for name, pid in list(self._living.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del self._living[name]
                self._ending.pop(name, None)
                _say({"exited": name, "status": os.waitstatus_to_exitcode(status)})


def _say(answer: dict[str, object]) -> None:
    # a coordinator that is gone hears nothing; the end of stdin says so too, and there the workers are ended
    with contextlib.suppress(BrokenPipeError):
        os.write(_STDOUT, json.dumps(answer).encode() + b"\n")


def _live(argv: list[str], output: int, parent: int) -> NoReturn:
    """A worker's whole life, in the forked process; ``output``: its log, an open file."""
    status = 1
    try:
        _die_with(parent)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, _STDIN)
        os.dup2(output, _STDOUT)
        os.dup2(output, _STDERR)
        status = worker.main(argv)
    except BaseException:
        log_error()
    finally:
        # not sys.exit: what the fork server has registered to run at its own exit is not for its children to run
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(status)


def _die_with(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent dies; if it died before we asked, end now."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:
        raise SystemExit("the fork server is gone")


def main(modules: list[str]) -> None:
    """Import, then serve."""
    for module in modules:
        importlib.import_module(module)
    wakeup, signalled = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(signalled, False)
    signal.signal(signal.SIGCHLD, lambda signum, frame: None)
    signal.set_wakeup_fd(signalled)
    gc.freeze()  # what is shared with the children stays out of their collections, so its pages stay shared
    ForkServer(wakeup).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
