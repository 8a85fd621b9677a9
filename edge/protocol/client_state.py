"""What a client keeps between its visits: one safetensors file per (client, visit), named by the coordinator.

A file is whole or absent (`edge.protocol.files`), and neither read nor written through a link.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from edge.protocol import files
from edge.protocol.payload import Payload, Vector

SEPARATOR = "|"


class StateError(OSError):
    """What a client keeps cannot be read or written here: no fault of the client's, and no other worker could.

    ``filename`` names the file, ``strerror`` the reason.
    """

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def read(path: str | None) -> Payload:
    """The kept vectors by slot; empty for a client that has kept nothing yet. Raises `StateError`."""
    kept: Payload = {}
    if path is not None:
        for name, numbers in _loaded(path).items():
            slot, _, key = name.partition(SEPARATOR)
            kept.setdefault(slot, {})[key] = Vector(np.ascontiguousarray(numbers, dtype=np.float32))
    return kept


def _loaded(path: str) -> dict[str, NDArray[np.generic]]:
    try:
        with files.opened(Path(path)):
            return dict(load_file(path))
    except OSError as error:
        raise StateError(error.errno, error.strerror or str(error), path) from error
    except SafetensorError as error:
        raise StateError(errno.EIO, str(error), path) from error


def write(path: str, kept: Payload) -> None:
    """Keep these vectors under ``path``. Raises `StateError` if the disk refuses."""
    named = {f"{slot}{SEPARATOR}{key}": v.data for slot, some in kept.items() for key, v in some.items()}
    try:
        files.write_vectors(Path(path), named, f".{os.getpid()}")  # a visit may be trained twice at the same time
    except OSError as error:
        raise StateError(error.errno, error.strerror, path) from error
