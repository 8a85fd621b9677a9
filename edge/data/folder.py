"""Folders and files of the cache that are complete or absent, whoever builds them and whenever they are killed.

A lock lets one process work while the others wait: sixty-four workers must not decode the same set sixty-four times.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from edge.data.sets import DataError


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
            _once(final, lambda: _write(final, make()))
        except CacheError as error:
            go_on_without(error)
            return make()
    return final.read_text()


def go_on_without(error: CacheError) -> None:
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
        with path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _lies_at(lock, path):  # whom we have waited for has removed it
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _lies_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _build(final: Path, fill: Callable[[Path], None]) -> None:
    prefix = f".{final.name}-"
    for left in final.parent.glob(f"{prefix}*"):
        # We hold the lock, so whoever began this one is dead.
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=final.parent, prefix=prefix) as folder:
        part = Path(folder) / "new"
        part.mkdir()
        fill(part)
        part.rename(final)


def _write(final: Path, text: str) -> None:
    part = final.with_name(f".{final.name}.part")  # whoever began one before us is dead, as in `_build`
    try:
        part.write_text(text)
        part.replace(final)
    finally:
        part.unlink(missing_ok=True)
