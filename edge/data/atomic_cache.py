"""Folders and files of the cache that are whole or absent, whenever the processes that build them are killed.

A lock lets one process work while the others wait: sixty-four workers must not decode the same data set sixty-four
times.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from edge.data.registry import DataError
from edge.protocol import files


class CacheError(DataError):
    """The cache cannot be written; the text names the path and the reason."""


def build_once(final: Path, fill: Callable[[Path], None]) -> Path:
    """``final``, made by ``fill(empty folder)`` if it is not there yet.

    The folder is filled under another name and renamed, so that it is never seen half made.
    CacheError if the cache cannot be written.
    """
    if not final.exists():
        _once(final, lambda: files.write_folder(final, fill))
    return final


def text_once(final: Path, make: Callable[[], str]) -> str:
    """The text of a small file, which is written if it is not there yet.

    Where the cache cannot be written, the text is made again by each caller, and the log of the worker says so.
    """
    if not final.exists():
        try:
            _once(final, lambda: files.write_text(final, make()))
        except CacheError as error:
            warn_cache_unusable(error)
            return make()
    return final.read_text()


def warn_cache_unusable(error: CacheError) -> None:
    """Say in the log of the worker why its start takes longer than with a cache."""
    with suppress(OSError):  # the log's disk may be full as well
        print(f"{error}; going on without it", file=sys.stderr, flush=True)


def _once(final: Path, work: Callable[[], None]) -> None:
    """Work under a lock file, which is removed afterwards; the kernel releases it if its process is killed."""
    path = final.with_name(f".{final.name}.lock")
    lock = FileLock(path, fallback_to_soft=False)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except OSError as error:
            raise OSError(error.errno, f"{path.name}: {error.strerror}") from None
        try:
            if not final.exists():
                work()
        finally:
            path.unlink(missing_ok=True)  # a process that waits for it sees that it has no name, and makes a new one
            lock.release()
    except OSError as error:
        raise CacheError(f"cannot write to the cache {final}: {error.strerror or error}") from error
