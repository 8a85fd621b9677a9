"""The table of message types: which fields each has, and how a field is packed and read."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge.protocol import config
from edge.protocol.config import Job
from edge.protocol.limits import packed_real, real
from edge.protocol.messages import (
    Cancel,
    Capacity,
    ClientState,
    Describe,
    Described,
    Error,
    Evaluate,
    FetchFile,
    FetchPartial,
    FilePart,
    Hello,
    MappedTensors,
    PartialSum,
    Ping,
    Pong,
    Score,
    Shutdown,
    Tensors,
    Train,
    Update,
    Updates,
    Visits,
    Welcome,
    WireError,
    expect,
    reject,
)
from edge.protocol.payload import VERSION_NBYTES, Layout

PROTOCOL = 8
MAX_COMPLAINT = 500
"""Characters of what is wrong with a record."""


class _Codec(NamedTuple):
    pack: Callable[[Any], object]
    unpack: Callable[[object, str], Any]


def is_version(value: object) -> bool:
    """Whether it can name a version of a vector."""
    return isinstance(value, bytes) and len(value) == VERSION_NBYTES


def as_list(value: object, length: int, what: str) -> list[Any]:
    """A list of this length; WireError for anything else, as for all that read here."""
    if not isinstance(value, list) or len(value) != length:
        reject(f"{what}, a list of {length}", value)
    return value


def pack_int(value: int) -> bytes:
    """8 bytes, big-endian, whatever the value."""
    return struct.pack(">q", value)


def unpack_int(value: object, what: str) -> int:
    if not isinstance(value, bytes) or len(value) != 8:
        reject(what, value)
    return int(struct.unpack(">q", value)[0])


def _pack_float(value: float) -> bytes:
    return struct.pack(">d", value)


def _unpack_float(value: object, what: str) -> float:
    if not isinstance(value, bytes) or len(value) != 8:
        reject(what, value)
    return float(struct.unpack(">d", value)[0])


def _pack_number(value: int | float) -> object:
    """Integers and floats stay what they are, and take as many bytes."""
    return real(_pack_float(value)) if isinstance(value, float) else pack_int(value)


def _unpack_number(value: object, what: str) -> int | float:
    packed = packed_real(value)
    return unpack_int(value, what) if packed is None else _unpack_float(packed, what)


def _unpack_sum(value: object, what: str) -> tuple[float, int]:
    total, count = as_list(value, 2, what)
    return _unpack_float(total, what), unpack_int(count, what)


def _column(dtype: str) -> _Codec:
    """Of a column: one number per visit, 8 bytes each, little-endian."""

    def unpack(value: object, what: str) -> NDArray[Any]:
        if not isinstance(value, bytes) or len(value) % 8:
            reject(what, value)
        return np.frombuffer(value, dtype)

    return _Codec(lambda column: np.ascontiguousarray(column, dtype).tobytes(), unpack)


def _pack_number_column(column: NDArray[Any]) -> object:
    return [column.dtype.kind, (_FLOAT_COLUMN if column.dtype.kind == "f" else _INT_COLUMN).pack(column)]


def _unpack_number_column(value: object, what: str) -> NDArray[Any]:
    kind, packed = as_list(value, 2, what)
    expect(kind in ("i", "f"), f"{what}: kind", kind)
    column: NDArray[Any] = (_FLOAT_COLUMN if kind == "f" else _INT_COLUMN).unpack(packed, what)
    return column


def _columns(column: _Codec) -> _Codec:
    """Of columns by name."""
    return _Codec(
        lambda named: {name: column.pack(values) for name, values in named.items()}, _unpack_named(column.unpack)
    )


def _unpack_names(value: object, what: str) -> list[str | None]:
    if not isinstance(value, list) or not all(name is None or isinstance(name, str) for name in value):
        reject(what, value)
    return value


def unpack_text(value: object, what: str) -> str:
    """A text as it came."""
    if not isinstance(value, str):
        reject(what, value)
    return value


def _unpack_bytes(value: object, what: str) -> bytes:
    if not isinstance(value, bytes):
        reject(what, value)
    return value


def _unpack_flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        reject(what, value)
    return value


def _unpack_named(unpack: Callable[[object, str], Any]) -> Callable[[object, str], dict[str, Any]]:
    def unpack_all(value: object, what: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            reject(what, value)
        return {unpack_text(name, what): unpack(item, f"{what}: {name}") for name, item in value.items()}

    return unpack_all


def _unpack_record(kind: Any) -> Callable[[object, str], Any]:
    def unpack(value: object, what: str) -> Any:
        try:
            return config.parse(kind, value)
        except ValueError as error:  # pydantic's
            raise WireError(f"{what}: {str(error)[:MAX_COMPLAINT]}") from error

    return unpack


_unpack_blocks = _unpack_record(list[tuple[str, int, int, list[tuple[str, int, int]]]])


def _unpack_layout(value: object, what: str) -> Layout:
    layout = Layout.parse(_unpack_blocks(value, what))
    for block in layout.blocks:
        for part in block.parts:
            expect(min(part.params, part.buffers) >= 0, f"{what}: {block.name}", (part.params, part.buffers))
        totals = sum(part.params for part in block.parts), sum(part.buffers for part in block.parts)
        expect(totals == (block.params, block.buffers), f"{what}: {block.name}: layers", totals)
    keys = [part.key for block in layout.blocks for part in block.parts]
    expect(len(set(layout.names)) == len(layout), f"{what}: a block twice", list(layout.names))
    expect(len(set(keys)) == len(keys), f"{what}: a layer twice", keys)
    return layout


def _same(value: Any) -> Any:
    return value


_INT = _Codec(pack_int, unpack_int)
_FLOAT = _Codec(_pack_float, _unpack_float)
_INTS = _Codec(lambda named: {name: pack_int(value) for name, value in named.items()}, _unpack_named(unpack_int))
_NUMBERS = _Codec(
    lambda named: {name: _pack_number(value) for name, value in named.items()}, _unpack_named(_unpack_number)
)
_FLOATS = _Codec(
    lambda named: {name: _pack_float(value) for name, value in named.items()}, _unpack_named(_unpack_float)
)
_SUMS = _Codec(
    lambda named: {name: [_pack_float(total), pack_int(count)] for name, (total, count) in named.items()},
    _unpack_named(_unpack_sum),
)
_INT_COLUMN, _FLOAT_COLUMN = _column("<i8"), _column("<f8")
_FLOAT_COLUMNS = _columns(_FLOAT_COLUMN)
_NUMBER_COLUMNS = _columns(_Codec(_pack_number_column, _unpack_number_column))
_NAMES = _Codec(list, _unpack_names)
_TEXT = _Codec(_same, unpack_text)
_BYTES = _Codec(_same, _unpack_bytes)
_FLAG = _Codec(_same, _unpack_flag)
_JOB = _Codec(config.plain, _unpack_record(Job))
_LAYOUT = _Codec(Layout.plain, _unpack_layout)

ARRAYS = {
    "flops": "<f8",
    "activations": "<f8",
    "samples": "<i8",
    "histogram": "<i8",
    "test_samples": "<i8",
    "validation_samples": "<i8",
    "variants": "<f8",
    "operations": "<f8",
    "outputs": "<f8",
    "unit_blocks": "<i8",
    "unit_flops": "<f8",
}
"""The arrays of a `ModelProfile`, which travel as frames of slot `DESCRIPTION`, and their types."""
DESCRIPTION = "(description)"
_DESCRIPTION_FIELDS = {
    "layout": _LAYOUT,
    "family": _TEXT,
    "data_sha256": _TEXT,
    "data_source": _TEXT,
    "classes": _INT,
    "test_count": _INT,
}

TYPES: dict[str, tuple[type, dict[str, _Codec]]] = {
    "hello": (Hello, {"workers": _INT}),
    "capacity": (Capacity, {"workers": _INT}),
    "welcome": (Welcome, {"job": _JOB}),
    "ping": (Ping, {}),
    "pong": (Pong, {}),
    "describe": (Describe, {"data": _FLAG}),
    "described": (Described, _DESCRIPTION_FIELDS),
    "blocks": (Tensors, {}),
    "mapped": (MappedTensors, {"folder": _TEXT, "sizes": _INTS}),
    "kept": (ClientState, {"client": _INT}),
    "train": (Train, {"client": _INT, "round": _INT, "lr": _FLOAT, "choice": _NUMBERS}),
    "visits": (
        Visits,
        {
            "sequences": _INT_COLUMN,
            "clients": _INT_COLUMN,
            "rounds": _INT_COLUMN,
            "lrs": _FLOAT_COLUMN,
            "weights": _FLOAT_COLUMN,
            "state_in": _NAMES,
            "state_out": _NAMES,
            "choice": _NUMBER_COLUMNS,
        },
    ),
    "updates": (
        Updates,
        {
            "sequences": _INT_COLUMN,
            "clients": _INT_COLUMN,
            "rounds": _INT_COLUMN,
            "seconds": _FLOAT_COLUMN,
            "numbers": _FLOAT_COLUMNS,
            "logged": _FLOAT_COLUMNS,
        },
    ),
    "update": (Update, {"client": _INT, "round": _INT, "numbers": _FLOATS}),
    "collect": (FetchPartial, {"round": _INT}),
    "sums": (PartialSum, {"round": _INT, "clients": _INT}),
    "evaluate": (
        Evaluate,
        {"start": _INT, "stop": _INT, "client": _INT, "round": _INT, "lr": _FLOAT, "choice": _NUMBERS, "split": _TEXT},
    ),
    "score": (Score, {"start": _INT, "client": _INT, "values": _SUMS}),
    "cancel": (Cancel, {}),
    "error": (Error, {"kind": _TEXT, "text": _TEXT, "traceback": _TEXT}),
    "bye": (Shutdown, {"why": _TEXT}),
    "fetch": (FetchFile, {"sha256": _TEXT, "offset": _INT}),
    "part": (FilePart, {"sha256": _TEXT, "offset": _INT, "content": _BYTES}),
}
NAMES = {kind: name for name, (kind, _) in TYPES.items()}
