"""Files that are whole or absent: written beside their place, flushed to the disk, renamed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save


def write_bytes(path: Path, content: bytes) -> None:
    """Raises OSError if the disk refuses; then nothing is left at ``path`` that was not there before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(path.suffix + ".part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """UTF-8 text."""
    write_bytes(path, text.encode())


def write_vectors(path: Path, named: Mapping[str, NDArray[np.generic]]) -> None:
    """A safetensors file of named arrays."""
    write_bytes(path, save(dict(named)))
