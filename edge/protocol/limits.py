"""msgpack within limits: what every header and envelope is packed with, and read with.

Ten bytes can ask msgpack for a list of 2^32 items, and a megabyte for a million empty lists, 56 bytes each. So what is
read is measured first, without building anything: how deep it nests, how many items it has, and whether there are as
many bytes as it announces. What is too short to hold a bomb is not measured: in n bytes at most n / 3 lists can nest
that announce n items each, 8 n^2 / 3 bytes in all, 0.7 MB for `SHORT_NBYTES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import msgpack

from edge.protocol.messages import WireError, reject

MAX_HEADER_NBYTES = 1 << 20
MAX_ITEMS = 1 << 15
"""In one list of entries, enough for three thousand vectors."""
MAX_DEPTH = 16
SHORT_NBYTES = 512
UNPACK_ERRORS = (ValueError, TypeError, msgpack.UnpackException)

Buffer = bytes | bytearray | memoryview


def packb(value: object) -> bytes:
    return cast(bytes, msgpack.packb(value))


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
    if len(raw) > SHORT_NBYTES:
        _measure(bytes(raw))
    try:
        return msgpack.unpackb(raw, object_pairs_hook=_named_once, max_ext_len=0)
    except UNPACK_ERRORS as error:
        raise _not_msgpack(error) from error


def _named_once(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    named = dict(pairs)
    if len(named) != len(pairs):
        raise ValueError("a name stands twice in one map")
    return named


def _check_length(raw: Buffer) -> None:
    nbytes = memoryview(raw).nbytes
    if nbytes > MAX_HEADER_NBYTES:
        raise WireError(f"{nbytes} bytes where at most {MAX_HEADER_NBYTES} are allowed")


def _not_msgpack(error: Exception) -> WireError:
    if isinstance(error, WireError):
        return error
    return WireError(f"not a msgpack message: {type(error).__name__} {error}")


# --- measuring ----------------------------------------------------------------------------------------------------


class _Token(NamedTuple):
    """What the first byte of an item says."""

    width: int = 0
    """Bytes of the number that follows: of bytes or of items."""
    nbytes: int = 0
    """Bytes that follow, unless a number says so."""
    items: int = 0
    """Items that follow, unless a number says so."""
    items_each: int = 0
    """1 for lists, 2 for maps: what the number counts; 0: bytes."""


def _token(first: int) -> _Token | None:
    """None for what no message may hold: extension types, and 0xc1, which msgpack never uses."""
    if first < 0x80 or first >= 0xE0 or first in (0xC0, 0xC2, 0xC3):
        return _Token()
    if first < 0xA0:
        return _Token(items=(first & 15) * (2 if first < 0x90 else 1))
    if first < 0xC0:
        return _Token(nbytes=first & 31)
    if first in (0xC4, 0xC5, 0xC6):  # bytes
        return _Token(width=1 << first - 0xC4)
    if 0xCA <= first <= 0xD3:  # two kinds of float, eight of integer
        return _Token(nbytes=(4, 8, 1, 2, 4, 8, 1, 2, 4, 8)[first - 0xCA])
    if first in (0xD9, 0xDA, 0xDB):  # text
        return _Token(width=1 << first - 0xD9)
    if first >= 0xDC:
        return _Token(width=2 + 2 * (first & 1), items_each=1 if first < 0xDE else 2)
    return None


_TOKENS = tuple(map(_token, range(256)))


def _measure(raw: bytes) -> None:
    """WireError for what nests too deep, has too many items, or announces more than there is."""
    due, at, count, end = [1], 0, 0, len(raw)  # due: how many items each open list or map still lacks
    while due:
        due[-1] -= 1
        if due[-1] < 0:
            due.pop()
            continue
        token = _TOKENS[raw[at]] if at < end else None
        if token is None:
            raise WireError(f"not a msgpack message: byte {at} of {end} begins no item")
        width, nbytes, items, items_each = token
        at, count = at + 1 + width, count + 1
        if width:
            number = int.from_bytes(raw[at - width : at], "big")
            nbytes, items = (0, number * items_each) if items_each else (number, 0)
        at += nbytes
        if at + items > end:
            raise WireError(f"{nbytes or items} announced, but there are {end} bytes in all")
        if items:
            due.append(items)
        if count > MAX_ITEMS or len(due) > MAX_DEPTH + 1:
            raise WireError(f"more than {MAX_ITEMS} items, or more than {MAX_DEPTH} levels")
