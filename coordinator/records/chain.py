"""The hash chain of a ledger, over all virtual facts, round by round.

The first hash is of the resolved scenario and the data's hash. Each next one is of the previous hash, the round's
virtual rows, which include the model's hash, and the hashes of the files committed with the round. Of visits it has the
joules, but not their parts (`coordinator.records.schema.CHAINED`). The chain can be recomputed from a ledger
(`coordinator.records.resume`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.records.schema import column_types

StoredRow = tuple[Any, ...]
"""A row with the values that SQLite returns."""
Values = Sequence[Any] | NDArray[Any]
"""(rows,) values of one column"""


def as_stored(row: type[NamedTuple], columns: Iterable[Values]) -> list[list[Any]]:
    """All columns of such rows with the values that SQLite returns: 2 as 2.0, and -0.0 as 0.0, from one of floats."""
    stored = []
    for values, sql_type in zip(columns, column_types(row).values(), strict=True):
        if isinstance(values, np.ndarray):
            stored.append(list((values + 0.0 if sql_type == "REAL" else values).tolist()))
        else:
            read = _READERS[sql_type]
            stored.append([None if value is None else read(value) for value in values])
    return stored


def stored_rows(rows: Sequence[NamedTuple]) -> list[StoredRow]:
    """Rows of one kind with the values that SQLite returns."""
    return list(zip(*as_stored(type(rows[0]), zip(*rows, strict=True)), strict=True)) if rows else []


_READERS: Mapping[str, Callable[[Any], Any]] = {"INTEGER": int, "REAL": lambda value: float(value) + 0.0, "TEXT": str}


File = tuple[str, str]
"""(name, sha256)"""


def committed_files(
    checkpoint: File, states: Mapping[int, File], vectors: Mapping[tuple[int, str], File] = MappingProxyType({})
) -> str:
    """JSON of the files committed with a round: of the checkpoint, of client states, and of the server's vectors.

    [[name, sha256], [[client, name, sha256], ...]]; and [[client, slot, name, sha256], ...] if there are any.
    """
    stored = sorted((*place, *file) for place, file in vectors.items())
    kept = sorted((client, *file) for client, file in states.items())
    return _json([checkpoint, kept, stored] if stored else [checkpoint, kept])


def next_hash(previous: str, rows: Sequence[Sequence[Any]], files: str) -> str:
    """The next hash of the chain, from the stored rows and files of a round.

    ValueError or TypeError for values that no run commits.
    """
    return hashlib.sha256(f"{previous}\n{_json(rows)}\n{files}".encode()).hexdigest()


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def initial_hash(scenario: Mapping[str, Any], data_sha256: str) -> str:
    """The chain's first hash, from the resolved scenario and the data."""
    text = json.dumps(scenario, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(f"{text}\n{data_sha256}".encode()).hexdigest()
