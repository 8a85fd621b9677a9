"""The hash chain of a ledger: it runs over all that is virtual, round by round.

It starts from the resolved scenario and the data's hash, and runs over (previous hash, the round's virtual rows, among
them the model's hash, and the hashes of the files that were committed with it). It can be computed again from what is
stored (`coordinator.records.audit`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from coordinator.records.schema import column_types

StoredRow = tuple[Any, ...]
"""A row with the values that it is read back with."""


def as_stored(rows: Iterable[NamedTuple]) -> list[StoredRow]:
    """Rows with the values that they are read back with: 2 as 2.0, and -0.0 as 0.0, from a column of floats."""
    return [
        tuple(None if v is None else read(v) for v, read in zip(row, _readers(type(row)), strict=True)) for row in rows
    ]


_READERS: Mapping[str, Callable[[Any], Any]] = {"INTEGER": int, "REAL": lambda value: float(value) + 0.0, "TEXT": str}


@cache
def _readers(row: type[Any]) -> tuple[Callable[[Any], Any], ...]:
    return tuple(_READERS[of] for of in column_types(row).values())


def committed_files(checkpoint: tuple[str, str], states: Mapping[int, tuple[str, str]]) -> str:
    """The files that are committed with a round: [[name, sha256] of the checkpoint, [[client, name, sha256], ...]]."""
    return _json([checkpoint, sorted((client, *file) for client, file in states.items())])


def next_hash(previous: str, rows: Sequence[Sequence[Any]], files: str) -> str:
    """The next hash of the chain: over the previous one, the round's rows and its files, all as they are stored.

    ValueError or TypeError for values that no run commits.
    """
    return hashlib.sha256(f"{previous}\n{_json(rows)}\n{files}".encode()).hexdigest()


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def initial_hash(scenario: Mapping[str, Any], data_sha256: str) -> str:
    """The chain's first hash, from the resolved scenario and the data."""
    text = json.dumps(scenario, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(f"{text}\n{data_sha256}".encode()).hexdigest()
