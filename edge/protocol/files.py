"""Files that are whole or absent: written beside their place, flushed to the disk, renamed. No link is ever followed.

A link in a file's place is replaced when it is written, and is an error when it is read; so are devices and pipes.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

MODE = 0o644


def write_bytes(path: Path, content: bytes, writer: str = "") -> None:
    """Raises OSError that names ``path`` if the disk refuses; then nothing is left that was not there before.

    ``writer`` tells those apart that may write the same file at the same time.
    """
    part = path.with_name(f"{path.name}{writer}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)  # left by one who was killed; or a link that somebody has put there
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, MODE), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:  # which knows no name where it was the writing that failed
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):  # a disk that can only be read refuses this as well, even if there is nothing
            part.unlink()


def write_text(path: Path, text: str) -> None:
    """UTF-8 text."""
    write_bytes(path, text.encode())


def write_vectors(path: Path, named: Mapping[str, NDArray[np.generic]], writer: str = "") -> None:
    """A safetensors file of named arrays."""
    write_bytes(path, save(dict(named)), writer)


def opened(path: Path) -> BinaryIO:
    """An ordinary file, open for reading; OSError that names it if it is a link, a device, a pipe or a folder."""
    return os.fdopen(_ordinary(path, os.O_RDONLY), "rb")


def opened_lock(path: Path) -> int:
    """The descriptor of an ordinary file, made if there is none; what is in it stays. OSError as of `opened`."""
    return _ordinary(path, os.O_RDWR | os.O_CREAT)


def is_temporary(path: Path, prefix: str, suffix: str = "") -> bool:
    """Whether it is a folder, and no link, of a name that `tempfile` makes of these."""
    made = re.escape(prefix) + "[a-z0-9_]{8}" + re.escape(suffix)
    return re.fullmatch(made, path.name) is not None and not path.is_symlink() and path.is_dir()


def _ordinary(path: Path, how: int) -> int:
    try:
        handle = os.open(path, how | os.O_NOFOLLOW | os.O_NONBLOCK, MODE)  # a pipe would have us wait for its writer
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "is a link", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "is no ordinary file", str(path))
    return handle
