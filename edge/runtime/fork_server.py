"""The fork server: ``edge.runtime.fork_server MODULE...`` (`edge.protocol.interpreter`) imports the modules once and
forks a worker per request.

One JSON object per line. Requests on stdin:

    {"spawn": NAME, "argv": [...], "log": PATH}    a worker, its output appended to the log
    {"end": [NAME, ...]}                           SIGTERM now, SIGKILL after 2 s
    {"folder": PATH}                               to be removed when the coordinator is gone, if it still exists

Answers on stdout, in the order of events:

    {"spawned": NAME, "pid": PID}
    {"failed": NAME, "reason": TEXT}               the system would not fork, or not open the log
    {"exited": NAME, "status": CODE}               minus the signal's number if a signal ended it

At the end of stdin, which the kernel brings about however the coordinator dies, it ends all workers and itself. Should
the fork server be killed, the kernel kills its workers (PR_SET_PDEATHSIG). Thus no ending leaves a worker behind. What
a worker's code has started ends with the worker, too (`edge.runtime.descendants`), unless the fork server was killed.

What workers print goes into their logs through the fork server, which bounds it (`edge.runtime.bounded_log`).

Why not multiprocessing's fork server: it imports the user's ``__main__`` again in each child, speaks pickle, and leaves
its children running when the coordinator is killed.
"""

from __future__ import annotations

import contextlib
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
from typing import NoReturn

from edge.protocol.config import Job, prepare_from_json
from edge.runtime import descendants, worker
from edge.runtime.bounded_log import BoundedLog
from edge.runtime.log import log_error, log_to

GRACE_SECONDS = 2.0
"""From SIGTERM to SIGKILL."""
_STDIN, _STDOUT, _STDERR = 0, 1, 2


class ForkServer:
    """The workers that are alive, and those that are ending."""

    def __init__(self, wakeup: int) -> None:
        self._wakeup = wakeup
        self._living: dict[str, int] = {}  # name -> pid
        self._ending: dict[str, float] = {}  # name -> monotonic second of its SIGKILL
        self._logs: dict[str, BoundedLog] = {}
        self._poll = select.poll()  # which takes descriptors beyond 1,023, too
        self._poll.register(wakeup, select.POLLIN)
        self._poll.register(_STDIN, select.POLLIN)
        self._folders: list[Path] = []
        self._pid = os.getpid()
        self._own = descendants.children()  # of modules that were imported

    def serve(self) -> None:
        """Handle requests until stdin ends and no worker is alive."""
        pending, is_open = b"", True
        while is_open or self._living:
            timeout = max(0.0, min(self._ending.values()) - time.monotonic()) if self._ending else None
            readable = dict(self._poll.poll(None if timeout is None else 1000 * timeout))
            if self._wakeup in readable:
                os.read(self._wakeup, 4096)
            for log in self._logs.values():
                if log.output in readable and not log.copy() and readable[log.output] & select.POLLHUP:
                    self._poll.unregister(log.output)  # closed by whoever has printed
            if _STDIN in readable:
                received = os.read(_STDIN, 1 << 16)
                *lines, pending = (pending + received).split(b"\n")
                for request in map(json.loads, lines):
                    if "end" in request:
                        self._end(request["end"])
                    elif "folder" in request:
                        self._folders.append(Path(request["folder"]))
                    else:
                        self._spawn(request["spawn"], request["argv"], Path(request["log"]))
                if not received:
                    is_open = False
                    self._poll.unregister(_STDIN)
                    self._end(list(self._living))
            for name, deadline in self._ending.items():
                if deadline <= time.monotonic():
                    os.kill(self._living[name], signal.SIGKILL)
            for name, pid in list(self._living.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    del self._living[name]
                    self._ending.pop(name, None)
                    descendants.end_children(others=[*self._living.values(), *self._own])
                    log = self._logs.pop(name)
                    with contextlib.suppress(KeyError):
                        self._poll.unregister(log.output)
                    log.close()
                    _answer({"exited": name, "status": os.waitstatus_to_exitcode(status)})
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _spawn(self, name: str, argv: list[str], log: Path) -> None:
        try:
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            _answer({"failed": name, "reason": f"{log}: {error.strerror}"})
            return
        printed = output = -1
        try:
            printed, output = os.pipe()
            pid = os.fork()
            if pid == 0:
                _run_worker(argv, file, output, self._pid)
        except OSError as error:
            for descriptor in (file, printed):
                if descriptor >= 0:
                    os.close(descriptor)
            _answer({"failed": name, "reason": f"fork: {error.strerror}"})
            return
        finally:
            if output >= 0:
                os.close(output)
        self._logs[name] = BoundedLog(printed, file)
        self._poll.register(printed, select.POLLIN)
        self._living[name] = pid
        _answer({"spawned": name, "pid": pid})

    def _end(self, names: list[str]) -> None:
        for name in names:
            if name in self._living and name not in self._ending:
                os.kill(self._living[name], signal.SIGTERM)
                self._ending[name] = time.monotonic() + GRACE_SECONDS


def _answer(answer: dict[str, object]) -> None:
    # stdin ends as well when the coordinator does, and workers are ended then
    with contextlib.suppress(BrokenPipeError):
        os.write(_STDOUT, json.dumps(answer).encode() + b"\n")


def _run_worker(argv: list[str], log: int, output: int, parent: int) -> NoReturn:
    """Run a worker in the forked process, to its end; ``log``, ``output``: its log, and a pipe to it."""
    status = 1
    try:
        descendants.end_with_parent(parent)
        descendants.adopt()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, _STDIN)
        os.dup2(output, _STDOUT)
        os.dup2(output, _STDERR)
        log_to(log)
        status = worker.main(argv)
    except BaseException:
        log_error()
    finally:
        # not sys.exit, which would run the exit handlers of the fork server
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(status)


def main(modules: list[str]) -> None:
    """Import the modules, then serve."""
    for module in modules:
        importlib.import_module(module)
    prepare_from_json(Job)
    wakeup, signalled = os.pipe()
    os.set_blocking(wakeup, False)
    os.set_blocking(signalled, False)
    signal.signal(signal.SIGCHLD, lambda signum, frame: None)
    signal.set_wakeup_fd(signalled)
    gc.freeze()  # keeps objects out of the children's collections, so that their pages stay shared
    descendants.adopt()
    ForkServer(wakeup).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
    # To take torch apart would keep the coordinator waiting for a fifth of a second; there is nothing to be saved.
    sys.stderr.flush()
    os._exit(0)
