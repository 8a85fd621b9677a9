"""What a process may leave behind when it has ended, however it did: processes, files, locks."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from pathlib import Path

import psutil

from edge.protocol.files import folder_lock

MARK = "FEDBR_TEST_MARK"
SECONDS = 6.0
"""Workers whose coordinator was killed have 2 s to end by themselves."""
SHARED = Path("/dev/shm")


class Watch:
    """Tells a process and all that it starts by a mark in their environment, and gives them a temporary folder."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(8)
        self.temporary = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))  # a socket's path must be short
        self._shared = set(SHARED.iterdir())

    @property
    def environment(self) -> dict[str, str]:
        """With which a process is to be started."""
        return os.environ | {MARK: self.mark, "TMPDIR": str(self.temporary)}

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

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
