"""``fedbr`` without its cold start: one process has imported what runs need, and forks another for each command line.

Most runs of tests take less time than the imports of the two processes that they start, one of which loads torch. Here
the coordinator is forked from a process with all modules, and its fork server from the coordinator. Beyond that they
are what they always are: processes of their own, with their own environment, current folder and output, which can be
killed. Never for tests of a start, or of the death of a fork server.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self
from unittest.mock import patch

from coordinator.workers.launcher import THREADS
from edge.protocol.interpreter import SEARCHED
from edge.runtime.descendants import end_with_parent
from tests import unflushed
from tests.remains import MARK

ROOT = Path(__file__).parents[1]
FORK_SERVER = "edge.runtime.fork_server"
COMMANDS = ("cli", "run", "experiment", "studies", "report", "papers")
"""Packages of scenarios whose modules are imported."""
IMPORTED = (
    *("tests.brief", "tests.scenarios.meddler", FORK_SERVER, "edge.training.trainer", "edge.data.scikit_learn"),
    *("scenarios.api.caller", "scenarios.api.explained", "scenarios.api.listing"),
    *("rich.progress", "rich.table", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg", "jinja2"),
)
PR_SET_NAME = 15  # linux/prctl.h
LONGEST = 1 << 17
"""Bytes of a request."""


@dataclass(frozen=True)
class Request:
    """A command line, and where it runs."""

    words: list[str]
    meddler: list[str]
    """The words of `tests.scenarios.meddler` before those of the command line, or none."""
    cwd: str
    env: dict[str, str]
    """Folders of its ``PYTHONPATH`` are searched, too."""
    umask: int | None


class WarmProcess:
    """A process that was forked, to be used as `subprocess.Popen`. As a context it is killed in the end."""

    def __init__(self, answers: int) -> None:
        self._answers = os.fdopen(answers, "rb", buffering=0)
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.wait()

    def kill(self) -> None:
        """SIGKILL, if it has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def poll(self) -> int | None:
        """As `wait`, or None if it has not ended."""
        answers = select.poll()  # which takes descriptors beyond 1,023, too
        if self.returncode is None:
            answers.register(self._answers, select.POLLIN)
            if not answers.poll(0):
                return None
        return self.wait()

    def wait(self) -> int:
        """The exit code, or minus the number of a signal that ended it."""
        if self.returncode is None:
            ended = self._answers.readline()  # a limit of time may interrupt it, and `kill` need it again
            self._answers.close()
            self.returncode = int(ended)
        return self.returncode


def start(
    words: Sequence[str],
    output: int = 1,
    errors: int = 2,
    meddler: Sequence[str] = (),
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    umask: int | None = None,
) -> WarmProcess:
    """``fedbr WORD...``; ``output``, ``errors``: descriptors; ``env``: this process's by default."""
    request = Request(list(words), list(meddler), str(cwd), dict(os.environ if env is None else env), umask)
    answers, answered = os.pipe()
    try:
        socket.send_fds(_channel(), [json.dumps(asdict(request)).encode()], [output, errors, answered])
    finally:
        os.close(answered)
    return WarmProcess(answers)


def run(words: Sequence[str], **how: Any) -> subprocess.CompletedProcess[str]:
    """`start`, wait for the end, and read what was written."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        with start(words, output.fileno(), errors.fileno(), **how) as process:
            code = process.wait()
        return subprocess.CompletedProcess(words, code, _text(output), _text(errors))


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode())


@functools.cache
def _channel() -> socket.socket:
    """To the process with all modules, which ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.warm", str(theirs.fileno())],
            env={**os.environ, **THREADS, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


# --- in the process with all modules ----------------------------------------------------------------------------------


def _import_and_load() -> None:
    for imported in IMPORTED:
        importlib.import_module(imported)
    for folder in COMMANDS:
        package = importlib.import_module(f"scenarios.{folder}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    from edge.protocol.config import Job, prepare_from_json
    from scenarios.config.load import load

    prepare_from_json(Job)
    load("digits")


def _next_request(channel: socket.socket) -> Request:
    """Fork for each request; returns in the process that was forked for it. Ends when there are no more."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(channel, LONGEST, 3)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not text:
            os._exit(0)  # at once: an exit by all modules takes seconds where many processes compute
        if os.fork() == 0:
            _fork_and_wait(*descriptors)
            return Request(**json.loads(text))
        for descriptor in descriptors:
            os.close(descriptor)


def _fork_and_wait(output: int, errors: int, answers: int) -> None:
    """Returns in the child, whose pid and exit code the parent tells.

    The child is killed if nobody reads that any more, as when the process of tests was killed itself.
    """
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        end_with_parent(parent)
        os.close(answers)
        _place(output, errors)
        return
    os.close(output)
    os.close(errors)
    ends = select.poll()
    ends.register(os.pidfd_open(pid), select.POLLIN)
    ends.register(answers, 0)  # POLLERR, once its other end is closed
    with suppress(BrokenPipeError):
        os.write(answers, b"%d\n" % pid)
        if answers in dict(ends.poll()):
            os.kill(pid, signal.SIGKILL)
        os.write(answers, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _place(output: int, errors: int) -> None:
    for descriptor, place in ((output, 1), (errors, 2)):
        os.dup2(descriptor, place)
        os.close(descriptor)


def _become_command(request: Request) -> NoReturn:
    """Run the command line, which ends with SystemExit."""
    from scenarios.cli.main import main
    from tests.brief import VARIABLE, brief_figures
    from tests.scenarios.meddler import meddle

    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request.cwd)
    if MARK in request.env:
        ctypes.CDLL(None).prctl(PR_SET_NAME, request.env[MARK].encode(), 0, 0, 0)
    os.environ.clear()
    os.environ.update(request.env)
    tempfile.tempdir = None  # may be another there
    if request.umask is not None:
        os.umask(request.umask)
    sys.path[:0] = [entry for entry in request.env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.argv = ["fedbr", *request.words]
    sys.dont_write_bytecode = True  # sources of tests may change twice in the time that a file's date can tell
    if request.meddler:
        what, named, when, number = request.meddler
        meddle(what, named, when, int(number))
    started, figures = subprocess.Popen, request.env.get(VARIABLE)

    def start(words: Sequence[str], **how: Any) -> Any:
        if FORK_SERVER not in words:
            return started(words, **how)
        return _ForkServer(words[words.index(FORK_SERVER) + 1 :], how["stderr"], how["env"])

    with patch("subprocess.Popen", start), brief_figures(*figures.split()) if figures else nullcontext():
        try:
            main()
        except SystemExit as ended:
            exit_quickly(ended.code)
    raise AssertionError("a command line ends with SystemExit")


def exit_quickly(code: str | int | None) -> NoReturn:
    """As the interpreter ends, but without taking all modules to pieces, which takes longer than most commands."""
    assert not isinstance(code, str)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, and ends those of executors
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = 120  # as of Python
    os._exit(code or 0)


class _ForkServer:
    """A fork server that was forked, where the launcher has one that it executed."""

    def __init__(self, modules: Sequence[str], errors: Any, env: Mapping[str, str]) -> None:
        asked, answered = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _become_fork_server(modules, (asked[0], answered[1], errors.fileno()), env)
        os.close(asked[0])
        os.close(answered[1])
        self.stdin, self.stdout = os.fdopen(asked[1], "wb"), os.fdopen(answered[0], "rb")

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _become_fork_server(modules: Sequence[str], descriptors: Sequence[int], env: Mapping[str, str]) -> NoReturn:
    status = 1
    try:
        for place, descriptor in enumerate(descriptors):
            os.dup2(descriptor, place)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.environ.update(env)
        sys.path[:] = json.loads(env[SEARCHED])
        importlib.import_module(FORK_SERVER).main(list(modules))
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as opened:
        _import_and_load()
        unflushed.leave_to_the_system(setattr)
        gc.collect()
        gc.freeze()
        asked_for = _next_request(opened)
    _become_command(asked_for)
