"""msgpack within limits: what every header and envelope is packed with, and read with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgpack

from edge.messages import WireError, refuse

MAX_HEADER_NBYTES = 16 << 20
MAX_ITEMS = 1 << 16
MAX_TEXT = 1 << 20
LIMITS = {
    "max_str_len": MAX_TEXT,
    "max_bin_len": MAX_TEXT,
    "max_array_len": MAX_ITEMS,
    "max_map_len": MAX_ITEMS,
    "max_ext_len": 0,
}
UNPACK_ERRORS = (ValueError, TypeError, msgpack.UnpackException)

Buffer = bytes | bytearray | memoryview


def packb(value: object) -> bytes:
    """As msgpack."""
    return cast(bytes, msgpack.packb(value))


def packed_list(packed_items: Sequence[bytes]) -> bytes:
    """The list of items that are packed already."""
    return cast(bytes, msgpack.Packer().pack_array_header(len(packed_items))) + b"".join(packed_items)


def split(header: Buffer) -> tuple[Any, Any, Any, Any, bytes]:
    """The five items of a header; the last of them, the list of entries, is still packed."""
    _check_length(header)
    unpacker = msgpack.Unpacker(max_buffer_size=MAX_HEADER_NBYTES, **LIMITS)
    try:
        unpacker.feed(header)
        length = unpacker.read_array_header()
        items = [unpacker.unpack() for _ in range(min(length, 4))]
    except UNPACK_ERRORS as error:
        raise _not_msgpack(error) from error
    if length != 5:
        refuse("header: length of the list", length)
    protocol, name, run_id, fields = items
    return protocol, name, run_id, fields, bytes(memoryview(header)[unpacker.tell() :])


def unpackb(raw: Buffer) -> object:
    """What was packed; WireError if nothing was, or too much."""
    _check_length(raw)
    try:
        return msgpack.unpackb(raw, **LIMITS)
    except UNPACK_ERRORS as error:
        raise _not_msgpack(error) from error


def _check_length(raw: Buffer) -> None:
    nbytes = memoryview(raw).nbytes
    if nbytes > MAX_HEADER_NBYTES:
        raise WireError(f"{nbytes} bytes where at most {MAX_HEADER_NBYTES} are allowed")


def _not_msgpack(error: Exception) -> WireError:
    return WireError(f"not a msgpack message: {type(error).__name__} {error}")
