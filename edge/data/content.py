"""Decoded data sets by the hash of their content, which is the same on all machines: found, checked, and hashed.

    CACHE/received/data/HASH/     a set that another machine has sent, or that is arrays; HASH is `Data.sha256`
    RUN/arrays/                   the arrays of a run, with which it can be resumed on any machine

So a machine without a set's files can train on what another has decoded (`edge.data.decoded_cache` has the form).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.data.atomic_cache import build_once
from edge.data.registry import DataError
from edge.protocol.files import opened, write_folder

META = "meta.json"
"""The file that lists a decoded set's arrays and has their hash."""


def array_file(folder: Path, name: str) -> Path:
    """The file of one array of a decoded set."""
    return folder / f"{name}.npy"


def received_folder(cache: Path, kind: str, sha256: str) -> Path:
    """The folder for files of a kind that another machine has sent."""
    return cache / "received" / kind / sha256


def content_sha256(arrays: Mapping[str, NDArray[Any]]) -> str:
    """One hash over the decoded arrays: names, types, shapes and raw little-endian numbers, in order."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def recorded_sha256(folder: Path) -> str | None:
    """The hash that a decoded set says it has; None for a damaged one."""
    try:
        return str(json.loads((folder / META).read_text())["sha256"])
    except (OSError, ValueError, KeyError, TypeError):  # damaged; whoever has its sources will say so
        return None


def check_content(folder: Path, sha256: str) -> None:
    """DataError unless the decoded examples in a folder, which came from elsewhere, have this content."""
    try:
        meta = json.loads((folder / META).read_text())
        if not all(name.isidentifier() for name in meta["arrays"]):
            raise ValueError(f"arrays {meta['arrays']!r:.100}")
        found = content_sha256({name: np.load(array_file(folder, name), mmap_mode="r") for name in meta["arrays"]})
        recorded = meta["sha256"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise DataError(f"{folder}: these are no decoded examples: {error}") from error
    if not found == recorded == sha256:
        raise DataError(f"{folder}: the content has the hash {found}, not {sha256}")


def keep_content(sha256: str, cache: Path, folder: Path) -> None:
    """Have the decoded examples of the cache in a new folder as well, which takes no room on the same disk."""
    received = received_folder(cache, "data", sha256)

    def fill(new: Path) -> None:
        for file in received.iterdir():
            try:
                os.link(file, new / file.name)
            except OSError:  # another disk, or one without hard links
                shutil.copyfile(file, new / file.name)

    if not folder.exists():
        write_folder(folder, fill)


def restore_content(sha256: str, cache: Path, folder: Path) -> None:
    """Have what `keep_content` has kept in the cache again; DataError for examples with another hash."""

    def fill(new: Path) -> None:
        for file in sorted(folder.iterdir()):
            with opened(file) as source, (new / file.name).open("wb") as copy:
                shutil.copyfileobj(source, copy)
        check_content(new, sha256)

    build_once(received_folder(cache, "data", sha256), fill)
