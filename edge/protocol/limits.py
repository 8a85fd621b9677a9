"""msgpack within limits: packing and unpacking of every header and envelope.

Ten bytes can announce a list of 2^32 items, and a megabyte can hold a million empty lists, 56 bytes each. So lists and
maps have a maximum length, which msgpack checks before it allocates one, and items are counted while they are unpacked.
The most that a refused message takes is 34 MB: 1,024 lists in each other, which is as deep as msgpack goes, with
`MAX_LENGTH` items announced for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgpack

from edge.protocol.messages import WireError, reject

MAX_HEADER_NBYTES = 1 << 20
MAX_LENGTH = 4096
"""Items of one list or map, and so the most vectors of one message."""
MAX_ITEMS = 1 << 16
"""Items of all lists and maps together; a vector's entry has ten."""
UNPACK_ERRORS = (ValueError, TypeError, msgpack.UnpackException)

REAL, REAL_NBYTES = 0, 8
"""Type and length of the only extension: a float where there may be an integer, which is as long."""

Buffer = bytes | bytearray | memoryview


def packb(value: object) -> bytes:
    return cast(bytes, msgpack.packb(value))


def real(packed: bytes) -> object:
    """The 8 bytes of a float, for `packb`, which packs them to as many bytes as 8 bytes of an integer."""
    return msgpack.ExtType(REAL, packed)


def packed_real(value: object) -> bytes | None:
    """The inverse of `real`; None for any other value."""
    return bytes(value.data) if isinstance(value, msgpack.ExtType) else None


def _real(kind: int, packed: bytes) -> object:
    if kind != REAL or len(packed) != REAL_NBYTES:
        raise ValueError(f"an extension of type {kind} with {len(packed)} bytes")
    return real(packed)


def packed_list(packed_items: Sequence[bytes]) -> bytes:
    """The list of items that are packed already."""
    return cast(bytes, msgpack.Packer().pack_array_header(len(packed_items))) + b"".join(packed_items)


def split(header: Buffer) -> tuple[Any, Any, Any, Any, bytes]:
    """The five items of a header; the last of them, the list of entries, is still packed."""
    _check_length(header)
    unpacker = msgpack.Unpacker(max_buffer_size=MAX_HEADER_NBYTES)
    try:
        unpacker.feed(header)
        length = unpacker.read_array_header()
        if length != 5:
            reject("header: length of the list", length)
        begin = unpacker.tell()
        for _ in range(4):
            unpacker.skip()
    except UNPACK_ERRORS as error:
        raise _not_msgpack(error) from error
    end, whole = unpacker.tell(), bytes(header)
    protocol, name, run_id, fields = cast(list[Any], unpackb(_LIST_OF_4 + whole[begin:end]))
    return protocol, name, run_id, fields, whole[end:]


_LIST_OF_4 = b"\x94"


def unpackb(raw: Buffer) -> object:
    """What was packed; WireError if nothing was, or too much, or a name twice in one map."""
    _check_length(raw)
    items = _ItemCount()
    try:
        return msgpack.unpackb(
            raw,
            list_hook=items.add_list,
            object_pairs_hook=items.add_map,
            max_array_len=min(len(raw), MAX_LENGTH),
            max_map_len=min(len(raw), MAX_LENGTH),
            max_ext_len=REAL_NBYTES,
            ext_hook=_real,
        )
    except UNPACK_ERRORS as error:
        raise _not_msgpack(error) from error


class _ItemCount:
    """Counts lists, maps and their items as each is completed; ValueError beyond `MAX_ITEMS`."""

    def __init__(self) -> None:
        self._items = 0

    def add_list(self, items: list[Any]) -> list[Any]:
        self._add(len(items))
        return items

    def add_map(self, pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        self._add(len(pairs))
        named = dict(pairs)
        if len(named) != len(pairs):
            raise ValueError("a name stands twice in one map")
        return named

    def _add(self, items: int) -> None:
        self._items += 1 + items
        if self._items > MAX_ITEMS:
            raise ValueError(f"more than {MAX_ITEMS} items")


def _check_length(raw: Buffer) -> None:
    nbytes = memoryview(raw).nbytes
    if nbytes > MAX_HEADER_NBYTES:
        raise WireError(f"{nbytes} bytes where at most {MAX_HEADER_NBYTES} are allowed")


def _not_msgpack(error: Exception) -> WireError:
    if isinstance(error, WireError):
        return error
    return WireError(f"not a msgpack message: {type(error).__name__} {error}")
