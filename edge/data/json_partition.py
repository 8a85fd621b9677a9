"""A partition from a JSON file: each client's examples by their place, ``{client: [indices]}``.

A client may also have an object, ``{"train": [..], "validation": [..], "test": [..]}``: places in the training set, in
the training set, and in the test set. Clients are "0", "1" .., or have names; then they are in the file's order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge.data.partition import Indices, check_parts
from edge.data.registry import PartitionError
from edge.protocol.home import expanded
from edge.protocol.spelling import nearest

PARTS = ("train", "validation", "test")
SHOWN = 3
"""Clients of a file that an error names"""
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


def parts_beside(file: str) -> list[str]:
    """The parts that a file has beside training examples, without a look at them; none of one that cannot be read."""
    try:
        raw = content(expanded(file))
    except (PartitionError, RuntimeError):
        return []
    return [part for part in PARTS[1:] if f'"{part}"'.encode() in raw]


def named_clients(file: Path) -> tuple[str, ...]:
    """The names of clients 0, 1, .. of a file; empty if they have none. PartitionError as of `read_parts`."""
    names = tuple(_by_name(file))
    return () if all(name.isdigit() for name in names) else names


def read_parts(file: Path, clients: int, train: int, test: int) -> dict[str, list[Indices]]:
    """The sorted indices of each of ``clients`` clients by part, one of `PARTS`; of ``train`` and ``test`` examples.

    Parts that the file does not name are missing. No example is in two of a set's parts, or in one twice; examples
    without a client are left out. PartitionError naming the file, and the client with an error.
    """
    lists = _by_name(file)
    names = _names(file, lists, clients)
    parts: dict[str, list[Any]] = {}
    for place, name in enumerate(names):
        own = lists[name]
        of_client = own if isinstance(own, dict) else {"train": own}
        for part, indices in of_client.items():
            if part not in PARTS:
                raise PartitionError(f"{file}: client {name}: {part!r} is no part; {nearest(part, PARTS)}")
            # type() and not isinstance(): true is no index.
            if not isinstance(indices, list) or any(type(index) is not int for index in indices):
                raise PartitionError(f"{file}: client {name} must hold a list of whole numbers{_of(part)}")
            parts.setdefault(part, [[] for _ in names])[place] = indices
    both = [*parts.get("train", []), *parts.get("validation", [])]
    checked = check_parts(str(file), both, train, [*names, *(f"{name} (validation)" for name in names)])
    result = {part: checked[number * len(names) :][: len(names)] for number, part in enumerate(PARTS[:2])}
    result["test"] = check_parts(f"{file}, test", parts.get("test", []), test, names)
    return {part: indices for part, indices in result.items() if indices}


def _of(part: str) -> str:
    return "" if part == "train" else f" ({part})"


def _by_name(file: Path) -> dict[str, Any]:
    """Client -> what the file has of it, in its order."""

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
    return lists


def _names(file: Path, lists: Mapping[str, Any], clients: int) -> list[str]:
    """The clients of a file, which are numbered from 0 or have names."""
    if all(name.isdigit() for name in lists):
        expected = dict.fromkeys(str(client) for client in range(clients))
        for client in lists:
            if client not in expected:
                raise PartitionError(f"{file}: client {client!r} is not in 0..{clients - 1} (data.clients = {clients})")
        for client in expected:
            if client not in lists:
                raise PartitionError(f"{file}: client {client} is missing (data.clients = {clients})")
        return list(expected)
    if len(lists) != clients:
        first = ", ".join(list(lists)[:SHOWN])
        raise PartitionError(f"{file}: has {len(lists)} clients ({first}, ..), not data.clients = {clients}")
    return list(lists)
