"""Folders and files of the cache that are complete or absent, whoever builds them and whenever they are killed.

A lock lets one process work while the others wait: sixty-four workers must not decode the same set sixty-four times.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edge.data.registry import DataError
from edge.protocol import files


class CacheError(DataError):
    """The cache cannot be written; the text names the place and the reason."""


def build_once(final: Path, fill: Callable[[Path], None]) -> Path:
    """``final``, made by ``fill(empty folder)`` if it is not there yet.

    The folder is filled under another name and renamed, so that it is never seen half made.
    CacheError if the cache cannot be written.
    """
    if not final.exists():
        _once(final, lambda: _build(final, fill))
    return final


def text_once(final: Path, make: Callable[[], str]) -> str:
    """The text of a small file, which is written if it is not there yet.

    It is made anew each time where the cache cannot be written; the log of the worker says so.
    """
    if not final.exists():
        try:
            _once(final, lambda: files.write_text(final, make()))
        except CacheError as error:
            warn_cache_unusable(error)
            return make()
    return final.read_text()


def warn_cache_unusable(error: CacheError) -> None:
    """Tell in the log of the worker why something takes longer than it need."""
    with suppress(OSError):  # that disk may be full as well
        print(f"{error}; going on without it", file=sys.stderr, flush=True)


def _once(final: Path, work: Callable[[], None]) -> None:
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with _alone(final.with_name(f".{final.name}.lock")):
            if not final.exists():
                work()
    except OSError as error:
        raise CacheError(f"cannot write to the cache {final}: {error.strerror or error}") from error


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock file, which is removed again; the kernel frees it if its holder is killed."""
    while True:
        handle = _opened(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not _lies_at(handle, path):  # whom we have waited for has removed it
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(handle)


def _opened(lock: Path) -> int:
    try:
        return files.opened_lock(lock)
    except OSError as error:
        raise OSError(error.errno, f"{lock.name}: {error.strerror}") from None


def _lies_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


def _build(final: Path, fill: Callable[[Path], None]) -> None:
    prefix = f".{final.name}-"
    for left in final.parent.glob(f"{glob.escape(prefix)}*"):
        if files.is_temporary(left, prefix):  # we hold the lock, so whoever began this one is dead
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=final.parent, prefix=prefix) as folder:
        part = Path(folder) / "new"
        part.mkdir()
        fill(part)
        part.rename(final)
