"""Temporary folders that are removed even if all processes of a run are killed at once.

The process that makes one holds a lock on it, which the kernel releases however the process ends; the next process that
makes one removes those that are not locked. The lock is not inherited by programs that are started, and the only
process of the product that forks without starting one is the fork server, which makes no such folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from edge.protocol.files import folder_lock, is_temporary

PREFIX, SUFFIX = "fedbr-", ".scratch"
YOUNG_SECONDS = 60.0
"""Age since the last change under which a folder is left alone: it may be new and not locked yet."""


@contextlib.contextmanager
def scratch(parent: Path | None = None) -> Iterator[Path]:
    """A new folder in ``parent`` (None: the temporary folder), which only this user may read. OSError."""
    _remove_abandoned(parent or Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(SUFFIX, PREFIX, parent))
    try:
        with folder_lock(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders that `scratch` made for this user in processes that were killed."""
    with contextlib.suppress(OSError):
        for folder in list(parent.glob(f"{PREFIX}*{SUFFIX}")):
            with contextlib.suppress(OSError):
                status = folder.lstat()
                is_own = status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == stat.S_IRWXU
                is_old = time.time() - status.st_mtime > YOUNG_SECONDS
                if is_own and is_old and is_temporary(folder, PREFIX, SUFFIX):
                    with folder_lock(folder):
                        shutil.rmtree(folder, ignore_errors=True)
