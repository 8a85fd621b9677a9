"""Temporary folders that are gone when their owners are, even if all processes are killed at once.

Whoever makes one holds a lock on it, which the kernel lets go of however its process ends; and whoever makes the next
removes those that nobody holds. The lock is not inherited by programs that are started, and the only process of the
product that forks without starting one is the fork server, which makes no such folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from edge.protocol.files import is_temporary

PREFIX, SUFFIX = "fedbr-", ".scratch"
YOUNG_SECONDS = 60.0
"""Since it was last changed: one that is just being made is not locked yet."""


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A new folder in the temporary folder, which only this user may read. OSError if none can be made."""
    _collect(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(SUFFIX, PREFIX))
    try:
        with _held(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _collect(where: Path) -> None:
    """Remove what owners that are dead have left."""
    with contextlib.suppress(OSError):
        for folder in list(where.glob(f"{PREFIX}*{SUFFIX}")):
            with contextlib.suppress(OSError):
                if _is_left(folder):
                    with _held(folder):
                        shutil.rmtree(folder, ignore_errors=True)


def _is_left(folder: Path) -> bool:
    """Whether it is one of ours that may be nobody's."""
    found = folder.lstat()
    is_own = found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == stat.S_IRWXU
    is_old = time.time() - found.st_mtime > YOUNG_SECONDS
    return is_own and is_old and is_temporary(folder, PREFIX, SUFFIX)


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold its lock; BlockingIOError if somebody does."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
