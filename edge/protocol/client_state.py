"""Files of client state: one safetensors file per client and visit, named by the coordinator.

A file is whole or absent (`edge.protocol.files`), and neither read nor written through a link.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from edge.protocol import files
from edge.protocol.payload import Payload, Vector, vectors

SEPARATOR = "|"
MISSING = "MissingStateError"
"""The kind of an error by which a node agent requests the state of a client that it should have, and has not."""


class StateError(OSError):
    """Client state cannot be read or written on this machine; no other local worker could, either.

    ``filename`` names the file, ``strerror`` the reason.
    """

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def read(path: str | None) -> Payload:
    """The vectors of a client's state by slot; empty before its first visit (None). Raises `StateError`."""
    state: Payload = {}
    if path is None:
        return state
    try:
        with files.opened(Path(path)):
            named = load_file(path)
    except OSError as error:
        raise StateError(error.errno, error.strerror or str(error), path) from error
    except SafetensorError as error:
        raise StateError(errno.EIO, str(error), path) from error
    for name, numbers in named.items():
        slot, _, key = name.partition(SEPARATOR)
        state.setdefault(slot, {})[key] = Vector(np.ascontiguousarray(numbers, dtype=np.float32))
    return state


def write(path: str, state: Payload) -> None:
    """Write a client's state to ``path``. Raises `StateError` if the disk fails."""
    named = {f"{slot}{SEPARATOR}{key}": vector.data for slot, key, vector in vectors(state)}
    try:
        files.write_vectors(Path(path), named, f".{os.getpid()}")  # a visit may be trained twice at the same time
    except OSError as error:
        raise StateError(error.errno, error.strerror, path) from error
