"""What a client keeps between its visits: one safetensors file per (client, visit), named by the coordinator.

A file is written beside its place, flushed to the disk and renamed, so that it is whole or absent.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save

from edge.payload import Payload, Vector

SEPARATOR = "|"


def read(path: str | None) -> Payload:
    """The kept vectors by slot; empty for a client that has kept nothing yet."""
    kept: Payload = {}
    if path is not None:
        for name, numbers in load_file(path).items():
            slot, _, key = name.partition(SEPARATOR)
            kept.setdefault(slot, {})[key] = Vector(np.ascontiguousarray(numbers, dtype=np.float32))
    return kept


def write(path: str, kept: Payload) -> None:
    """Keep these vectors under ``path``. Raises OSError if the disk refuses."""
    named = {f"{slot}{SEPARATOR}{key}": v.data for slot, some in kept.items() for key, v in some.items()}
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(f".{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(save(named))
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
