"""Files that are whole or absent: written beside their place, flushed to the disk, renamed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save


def write_bytes(path: Path, content: bytes) -> None:
    """Raises OSError that names ``path`` if the disk refuses; then nothing is left that was not there before."""
    part = path.with_suffix(path.suffix + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
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


def write_vectors(path: Path, named: Mapping[str, NDArray[np.generic]]) -> None:
    """A safetensors file of named arrays."""
    write_bytes(path, save(dict(named)))
