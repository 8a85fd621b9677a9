"""A partition from a JSON file ``{client: [indices]}``: clients "0", "1" ..., indices into the training examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edge.data.partition import Indices, check_parts
from edge.data.registry import PartitionError

MOST_NBYTES = 16_000_000
"""Limit of a file; one with a million examples and a hundred thousand clients is smaller."""


def content(file: Path) -> bytes:
    """The content of the file; PartitionError naming it if it cannot be read or is too long."""
    try:
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise PartitionError(f"data.partition.file: {file} is a device or a pipe, not a file")
        with file.open("rb") as handle:
            raw = handle.read(MOST_NBYTES + 1)  # files of /proc have more bytes than their size says
    except OSError as error:
        raise PartitionError(f"data.partition.file: cannot read {file}: {error.strerror}") from None
    if len(raw) > MOST_NBYTES:
        raise PartitionError(f"data.partition.file: {file} is larger than {MOST_NBYTES:,} bytes")
    return raw


def read_indices(file: Path, clients: int, count: int) -> list[Indices]:
    """The sorted indices of each of ``clients`` clients, in ``0 .. count - 1`` and without duplicates.

    PartitionError naming the file, and the client with an error. Examples without a client are left out.
    """

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        lists: dict[str, Any] = {}
        for key, value in pairs:
            if key in lists:
                raise PartitionError(f"{file}: client {key} appears twice")
            lists[key] = value
        return lists

    try:
        lists = json.loads(content(file), object_pairs_hook=distinct)
    except PartitionError:
        raise
    except (ValueError, RecursionError) as error:
        wanted = 'JSON is wanted, {"0": [3, 14, ..], ..}: the training examples of each client'
        raise PartitionError(f"data.partition.file: cannot read {file}: {wanted} ({error})") from error
    if not isinstance(lists, dict):
        raise PartitionError(f"{file}: must be one JSON object {{client: [indices]}}")
    expected = dict.fromkeys(str(client) for client in range(clients))
    unknown = [client for client in lists if client not in expected]
    if unknown:
        raise PartitionError(f"{file}: client {unknown[0]!r} is not in 0..{clients - 1} (data.clients = {clients})")
    for client in expected:
        if client not in lists:
            raise PartitionError(f"{file}: client {client} is missing (data.clients = {clients})")
        # type() and not isinstance(): true is no index.
        if not isinstance(lists[client], list) or any(type(index) is not int for index in lists[client]):
            raise PartitionError(f"{file}: client {client} must hold a list of whole numbers")
    return check_parts(str(file), [lists[client] for client in expected], count)
