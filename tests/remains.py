"""What a process may leave behind when it has ended, however it did: processes, files, locks.

``python -m tests.remains PID MARK`` waits for the end of a process of tests, and kills what that has left running.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from edge.protocol.files import folder_lock

MARK = "FEDBR_TEST_MARK"
SUITE_MARK = "FEDBR_TEST_SUITE"
SECONDS = 6.0
"""Workers whose coordinator was killed have 2 s to end by themselves."""
SHARED = Path("/dev/shm")
_WATCHERS: list[subprocess.Popen[bytes]] = []
"""Kept, since they run until this process has ended."""


class Watch:
    """Tells a process and all that it starts by a mark, and gives them a temporary folder.

    It is in the environment that they were executed with, or their name if they were forked (`tests.warm`).
    """

    def __init__(self) -> None:
        self.mark = secrets.token_hex(7)  # as long as a process's name may be
        self.temporary = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))  # a socket's path must be short
        self._shared = set(SHARED.iterdir())

    @property
    def environment(self) -> dict[str, str]:
        """With which a process is to be started."""
        return os.environ | {MARK: self.mark, "TMPDIR": str(self.temporary)}

    def processes(self) -> list[psutil.Process]:
        return marked(MARK, self.mark)

    def remains(self) -> list[str]:
        """What is left, in words; waits for a while until it is nothing."""
        limit = time.monotonic() + SECONDS
        while (left := self._left()) and time.monotonic() < limit:
            time.sleep(0.05)
        return left

    def _left(self) -> list[str]:
        processes = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):  # it has ended since
                processes.append(f"process {' '.join(process.cmdline())}")
        try:
            files = [f"file {path}" for path in sorted(self.temporary.rglob("*"))]
        except FileNotFoundError:  # a folder was removed while it was listed
            return self._left()
        shared = [f"shared memory {path}" for path in sorted(set(SHARED.iterdir()) - self._shared) if not _in_use(path)]
        return processes + files + shared

    def close(self) -> None:
        for process in self.processes():
            process.kill()
        shutil.rmtree(self.temporary)


def marked(variable: str, mark: str) -> list[psutil.Process]:
    """Running processes that were executed with this mark in their environment, or have it as their name."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            is_marked = mark in (process.environ().get(variable), process.name())
            if is_marked and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


def kill_at_the_end() -> None:
    """What this process of tests starts is killed a while after its own end, however it ends.

    A limit of time in native code, SIGKILL and a lack of memory leave no fixture the time to end coordinators, workers
    and node agents. Processes of a suite with several of them have a mark each.
    """
    environment = {name: value for name, value in os.environ.items() if name != SUITE_MARK}
    mark = os.environ[SUITE_MARK] = secrets.token_hex(8)
    command = [sys.executable, "-m", "tests.remains", str(os.getpid()), mark]
    root = Path(__file__).parents[1]
    watcher = subprocess.Popen(command, env=environment, cwd=root, start_new_session=True)
    watcher.returncode = 0  # nobody waits for it, which Python would warn of
    _WATCHERS.append(watcher)


def _main(pid: int, mark: str) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait()
    limit = time.monotonic() + SECONDS
    while (left := marked(SUITE_MARK, mark)) and time.monotonic() < limit:
        time.sleep(0.05)
    for process in left:
        with contextlib.suppress(psutil.Error):
            print(f"left by the tests, and killed: {process.pid} {' '.join(process.cmdline())}", file=sys.stderr)
            process.kill()


def _in_use(path: Path) -> bool:
    """Whether a process has it mapped, or locked: then it is that of another test, since ours have ended."""
    if path.is_dir():
        try:
            with folder_lock(path):
                return False
        except (BlockingIOError, FileNotFoundError):
            return True
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if str(path) in maps.read_text():
                return True
    return False


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2])
