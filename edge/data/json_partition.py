"""A partition from a JSON file ``{client: [indices]}``: clients "0", "1" ..., indices into the training examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from edge.data.partition import Indices
from edge.data.registry import PartitionError

MOST_NBYTES = 16_000_000
"""Of a file; one that deals out a million examples to a hundred thousand clients is smaller."""


def read_indices(file: Path, clients: int, count: int) -> list[Indices]:
    """The indices of each of ``clients`` clients, sorted, each in ``0 .. count - 1`` and held once.

    PartitionError naming the file, and the client where one is at fault. Examples that nobody holds are left out.
    """
    shares = [_indices(file, client, indices, count) for client, indices in enumerate(_named(file, clients))]
    holder = np.full(count, -1, dtype=np.int64)
    for client, share in enumerate(shares):
        taken = share[holder[share] >= 0]
        if taken.size:
            raise PartitionError(f"{file}: client {client} and client {holder[taken[0]]} both hold example {taken[0]}")
        holder[share] = client
    return shares


def content(file: Path) -> bytes:
    """What the file holds; PartitionError naming it if it cannot be read, or is longer than any partition."""
    try:
        with file.open("rb") as handle:
            raw = handle.read(MOST_NBYTES + 1)  # a file of the system may hold more than it says
    except OSError as error:
        raise PartitionError(f"data.partition.file: cannot read {file}: {error.strerror}") from None
    if len(raw) > MOST_NBYTES:
        raise PartitionError(f"data.partition.file: {file} is larger than {MOST_NBYTES:,} bytes")
    return raw


def _named(file: Path, clients: int) -> list[Any]:
    """What the file says of client 0, 1, ... in order."""
    try:
        named = json.loads(content(file), object_pairs_hook=lambda pairs: _unique(file, pairs))
    except PartitionError:
        raise
    except (ValueError, RecursionError) as error:
        raise PartitionError(f"data.partition.file: cannot read {file}: {error}") from error
    if not isinstance(named, dict):
        raise PartitionError(f"{file}: must be one JSON object {{client: [indices]}}")
    expected = dict.fromkeys(str(client) for client in range(clients))
    unknown = [client for client in named if client not in expected]
    if unknown:
        raise PartitionError(f"{file}: client {unknown[0]!r} is not in 0..{clients - 1} (data.clients = {clients})")
    for client in expected:
        if client not in named:
            raise PartitionError(f"{file}: client {client} is missing (data.clients = {clients})")
    return [named[client] for client in expected]


def _unique(file: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for key, value in pairs:
        if key in named:
            raise PartitionError(f"{file}: client {key} appears twice")
        named[key] = value
    return named


def _indices(file: Path, client: int, indices: Any, count: int) -> Indices:
    # type() and not isinstance(): true is no index.
    if not isinstance(indices, list) or any(type(index) is not int for index in indices):
        raise PartitionError(f"{file}: client {client} must hold a list of whole numbers")
    for index in indices:
        if not 0 <= index < count:
            raise PartitionError(f"{file}: client {client} holds example {index}, the data has 0..{count - 1}")
    share = np.sort(np.array(indices, dtype=np.int64))
    twice = share[1:][share[1:] == share[:-1]]
    if twice.size:
        raise PartitionError(f"{file}: client {client} holds example {twice[0]} twice")
    return share
