"""Files and folders that are whole or absent: written under another name, then renamed. And locks on folders.

No link is ever followed. A link in a file's place is replaced when the file is written, and is an error when it is
read; so are devices and pipes. The folder of a file must be there: one that was moved is never made anew at its old
place.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from filelock import lock_descriptor
from numpy.typing import NDArray
from safetensors.numpy import save

MODE = 0o644
BRIEF_PAUSES_SECONDS = (0.01, 0.05)
"""Between tries to lock a folder: `is_locked` of another process may hold it for an instant"""


def write_bytes(path: Path, content: bytes, writer: str = "") -> None:
    """Write a file and flush it to the disk. OSError names ``path``, and then leaves nothing that was not there before.

    ``writer`` keeps the temporary names of processes apart that may write the same file at the same time.
    """
    part = path.with_name(f"{path.name}{writer}.part")
    try:
        part.unlink(missing_ok=True)  # left by a process that was killed; or a link
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, MODE), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:  # an error of `write` names no file
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):  # a read-only disk refuses this even where there is no such file
            part.unlink()


def write_text(path: Path, text: str) -> None:
    """UTF-8 text."""
    write_bytes(path, text.encode())


def write_vectors(path: Path, named: Mapping[str, NDArray[np.generic]], writer: str = "") -> None:
    """A safetensors file of named arrays."""
    write_bytes(path, save(dict(named)), writer)


def write_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Make a new folder with what ``fill(empty folder)`` writes: filled under another name, then renamed. OSError.

    A half filled folder of a process that was killed is removed. So one process fails if two make the same folder.
    """
    prefix = f".{folder.name}.new-"
    for abandoned in folder.parent.glob(f"{glob.escape(prefix)}*"):
        if is_temporary(abandoned, prefix):
            shutil.rmtree(abandoned, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent) as temporary:
        part = Path(temporary) / "new"
        part.mkdir()
        fill(part)
        part.rename(folder)


def opened(path: Path) -> BinaryIO:
    """An ordinary file, open for reading; OSError that names it if it is a link, a device, a pipe or a folder."""
    try:
        # a pipe would have us wait for its writer
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "is a link", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no ordinary file", str(path))
    return os.fdopen(descriptor, "rb")


@contextmanager
def folder_lock(folder: Path, pauses: Sequence[float] = ()) -> Iterator[int]:
    """Hold an exclusive lock on a folder, of which nothing is written; the kernel releases it if the process is killed.

    Yields a descriptor of the folder, wherever it is moved. BlockingIOError if another process holds it, OSError if it
    is no folder or a link. ``pauses``: seconds before further tries.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)  # not inherited by programs started here
    try:
        for pause in (0.0, *pauses):
            time.sleep(pause)
            if lock_descriptor(descriptor, blocking=False):
                break
        else:
            raise BlockingIOError(errno.EWOULDBLOCK, "is locked by another process", str(folder))
        yield descriptor
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Whether another process holds the lock of a folder, which this one takes for an instant. OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        return not lock_descriptor(descriptor, blocking=False)
    finally:
        os.close(descriptor)


def is_temporary(path: Path, prefix: str, suffix: str = "") -> bool:
    """Whether a path is a folder, and no link, of a name that `tempfile` makes of this prefix and suffix."""
    pattern = re.escape(prefix) + "[a-z0-9_]{8}" + re.escape(suffix)
    return re.fullmatch(pattern, path.name) is not None and not path.is_symlink() and path.is_dir()
