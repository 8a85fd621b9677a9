"""The encoding of headers and envelopes: msgpack of typed structs. Never a socket, never a message's meaning.

No type that is decoded has an untyped part: ten bytes can announce a list of 2^32 items, and a megabyte can hold a
million empty lists, 56 bytes each. An unknown or missing field, a number out of its range and a name that stands twice
in a map are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from sys import float_info
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from msgspec import Meta, Raw
from msgspec.msgpack import Decoder, Encoder, Ext

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview

MAX_HEADER_NBYTES = 1 << 20
"""Longest header, and longest envelope."""
MAX_LENGTH = 4096
"""Items of a list or map of a header, and so the most vectors of one message."""
MAX_INT = (1 << 63) - 1

Int = Annotated[int, Meta(ge=-MAX_INT - 1, le=MAX_INT)]
Count = Annotated[int, Meta(ge=0, le=MAX_INT)]
Positive = Annotated[int, Meta(ge=1, le=MAX_INT)]
Finite = Annotated[float, Meta(ge=-float_info.max, le=float_info.max)]
FiniteSize = Annotated[float, Meta(ge=0, le=float_info.max)]
"""A finite number that is not negative."""
Fraction = Annotated[float, Meta(ge=0, le=1)]
MOST_LETTERS = 300
"""Of a name or note that travels"""
ShortText = Annotated[str, Meta(max_length=MOST_LETTERS)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]

REAL = 0
"""Type of the msgpack extension for a float of a charged message; an integer is the same number of bytes."""
Fixed = Annotated[bytes, Meta(min_length=8, max_length=8)]
"""An integer of a charged message: its length does not depend on its value."""
FixedNumbers = Annotated[dict[str, Fixed | Ext], Meta(max_length=MAX_LENGTH)]
FixedFields = Annotated[dict[str, Fixed | Ext | FixedNumbers], Meta(max_length=16)]
"""The fields of a charged message: numbers, and numbers by name."""


class WireError(ValueError):
    """A message that does not follow the protocol; the text has the reason."""


def expect(fits: bool, what: str, value: object) -> None:
    """WireError that shows the beginning of the value, unless ``fits``."""
    if not fits:
        raise WireError(f"{what}: {repr(value)[:100]} does not fit")


def printable(text: str, most: int) -> str:
    """At most ``most`` characters of a text from another machine, on one line and without control characters."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[:most])


_encoder = Encoder(enc_hook=lambda numbers: numbers.tolist())  # of numpy


def packb(value: object) -> bytes:
    return _encoder.encode(value)


def pack_as(decoder: Decoder[T], value: object, what: str) -> bytes:
    """The only bytes that `unpackb` takes for a value: an integer becomes a float where the type has one."""
    return packb(_decoded(decoder, packb(value), what))


def unpackb(decoder: Decoder[T], raw: Buffer | Raw, what: str) -> T:
    """The value of these bytes; WireError if they have none of this type, or not in the form that `packb` gives it."""
    view = memoryview(raw)
    if view.nbytes > MAX_HEADER_NBYTES:
        raise WireError(f"{what}: {view.nbytes} bytes where at most {MAX_HEADER_NBYTES} are allowed")
    value = _decoded(decoder, view, what)
    expect(packb(value) == view, f"{what}: other bytes than those of", value)
    return value


def _decoded(decoder: Decoder[T], raw: Buffer, what: str) -> T:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"{what}: {error}") from error


def convert(plain: object, kind: type[T], what: str) -> T:
    """The record of this type with these fields; WireError if they are not its fields."""
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise WireError(f"{what}: {error}") from error


def pack_int(value: int) -> bytes:
    """8 bytes, big-endian, whatever the value."""
    return struct.pack(">q", value)


def unpack_int(packed: bytes) -> int:
    """The inverse of `pack_int`."""
    return int.from_bytes(packed, "big", signed=True)


def fixed(value: Any) -> object:
    """A number, or numbers by name, in ten bytes each once they are packed."""
    if isinstance(value, Mapping):
        return {name: fixed(number) for name, number in value.items()}
    return pack_int(int(value)) if isinstance(value, int | np.integer) else Ext(REAL, struct.pack(">d", value))


def unfixed(value: Any, what: str) -> object:
    """The inverse of `fixed`. WireError for an extension that is no float."""
    if isinstance(value, Mapping):
        return {name: unfixed(number, f"{what}: {name}") for name, number in value.items()}
    if isinstance(value, bytes):
        return unpack_int(value)
    expect(value.code == REAL and len(value.data) == 8, f"{what}: extension", (value.code, len(value.data)))
    return float(struct.unpack(">d", value.data)[0])
