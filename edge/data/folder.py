"""Folders of the cache that are complete or absent, whoever builds them and whenever they are killed."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from edge.data.sets import DataError


def build_once(final: Path, fill: Callable[[Path], None]) -> Path:
    """``final``, made by ``fill(empty folder)`` if it is not there yet.

    The folder is filled under another name and renamed, so that it is never seen half made. A lock lets one process
    work while the others wait: sixty-four workers must not decode the same set sixty-four times.
    DataError if the cache cannot be written.
    """
    if final.exists():
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with final.with_name(f".{final.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not final.exists():
                _build(final, fill)
    except OSError as error:
        raise DataError(f"cannot write to the cache {final}: {error}") from error
    return final


def write_once(final: Path, text: str) -> None:
    """A small file, whole or absent; DataError if the cache cannot be written."""
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=final.parent, prefix=".new-") as folder:
            part = Path(folder) / final.name
            part.write_text(text)
            part.replace(final)
    except OSError as error:
        raise DataError(f"cannot write to the cache {final}: {error}") from error


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
