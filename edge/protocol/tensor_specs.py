"""The entries of a header, one for each frame of the message, and the arrays of frames."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from msgspec import Meta, Raw
from msgspec.msgpack import Decoder
from numpy.typing import NDArray

from edge.protocol.messages import VersionBytes
from edge.protocol.payload import VERSION_NBYTES
from edge.protocol.wire import MAX_LENGTH, Buffer, Fixed, WireError, expect, pack_int, packb, unpack_int, unpackb

MAX_DIMENSION = 1 << 40
UNNAMED = bytes(VERSION_NBYTES)
FLOAT32 = np.dtype(np.float32)
INT64 = np.dtype("<i8")
UINT8 = np.dtype(np.uint8)
"""Of frames that a codec has made (`edge.protocol.codecs`)."""
DESCRIPTION = "(description)"
"""The slot of the arrays of a `ModelProfile`."""
HAVE_VERSIONS = ("Train", "Visits", "Evaluate", "Tensors")
"""Messages whose vectors are known by version."""
HAVE_CODECS = ("Update", "Updates")
"""Messages whose vectors may be encoded."""

_Shape = Annotated[tuple[Fixed, ...], Meta(min_length=1, max_length=2)]
_Entry = tuple[str, str, VersionBytes, Literal["<f4", "<f8", "<i8", "|u1"], _Shape, Fixed, Fixed]
_ENTRIES = Decoder(Annotated[tuple[_Entry, ...], Meta(max_length=MAX_LENGTH)])


class Frame(NamedTuple):
    """An array to be sent."""

    slot: str
    key: str
    version: bytes
    array: NDArray[Any]


Sizes = tuple[tuple[str, str, int, str], ...]
"""(slot, key, number of items, type) of each vector."""


@dataclass(frozen=True)
class TensorSpecs:
    """The packed entries of a header, which all messages with the same vectors have in common."""

    packed: bytes = field(repr=False)
    sizes: Sizes
    frames_nbytes: int
    """Bytes of the frames that the entries name."""


def pack_all(frames: Sequence[Frame], checksums: Iterable[int]) -> TensorSpecs:
    """The entries of these frames."""
    packed = [
        pack_tensor_spec(frame.slot, frame.key, frame.version, frame.array.dtype.str, frame.array.shape, checksum)
        for frame, checksum in zip(frames, checksums, strict=False)
    ]
    sizes = tuple([(frame.slot, frame.key, frame.array.size, frame.array.dtype.str) for frame in frames])
    return TensorSpecs(packb(packed), sizes, sum(frame.array.nbytes for frame in frames))


@lru_cache(maxsize=1024)
def pack_tensor_spec(slot: str, key: str, version: bytes, dtype: str, shape: tuple[int, ...], checksum: int) -> Raw:
    """One entry, packed. Cached: all clients of a round get the same vectors, and send vectors of the same shapes."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    return Raw(packb([slot, key, version, dtype, [pack_int(n) for n in shape], pack_int(nbytes), pack_int(checksum)]))


class TensorSpec(NamedTuple):
    """One entry: the description of a frame."""

    slot: str
    key: str
    version: bytes
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int
    checksum: int


@lru_cache(maxsize=256)
def parse_tensor_specs(packed: bytes, name: str) -> tuple[TensorSpec, ...]:
    """The entries of a message of this type. Cached: all updates of a round have the same.

    WireError for sizes that do not belong together, and for an array that messages of this type do not have.
    """
    specs = []
    for slot, key, version, dtype, shape, nbytes, checksum in unpackb(_ENTRIES, packed, f"{name}: entries"):
        what = f"{name}: entry {slot}/{key}"
        dimensions = tuple([unpack_int(n) for n in shape])
        expect(all(0 <= n <= MAX_DIMENSION for n in dimensions), f"{what}: shape", dimensions)
        announced, wanted = unpack_int(nbytes), math.prod(dimensions) * np.dtype(dtype).itemsize
        if announced != wanted:
            raise WireError(f"{what}: {announced} bytes announced, but shape {dimensions} of {dtype} has {wanted}")
        crc = unpack_int(checksum)
        expect(0 <= crc < 1 << 32, f"{what}: checksum", crc)
        if name != "Described" or slot != DESCRIPTION:
            due = (INT64,) if name == "PartialSum" else (FLOAT32, UINT8) if name in HAVE_CODECS else (FLOAT32,)
            is_due = np.dtype(dtype) in due and len(shape) == 1
            expect(is_due, f"{what}: type and shape", (dtype, dimensions))
        expect((name in HAVE_VERSIONS) == (version != UNNAMED), f"{what}: version", version)
        if name == "Tensors":
            expect((slot, key) == ("", version.hex()), f"{what}: version", version.hex())
        specs.append(TensorSpec(slot, key, version, np.dtype(dtype), dimensions, wanted, crc))
    places = {(spec.slot, spec.key) for spec in specs}
    expect(len(places) == len(specs), f"{name}: slot and key sent twice: vectors", len(specs))
    return tuple(specs)


def read(entry: TensorSpec, frame: Buffer, has_checksum: bool = False) -> NDArray[Any]:
    """The array of a frame, a view of it if it is aligned; WireError if the frame does not match its entry.

    ``has_checksum``: whether a checksum of zero is checked, too.
    """
    slot, key, _, dtype, shape, nbytes, checksum = entry
    got = memoryview(frame).nbytes
    if got != nbytes:
        raise WireError(f"entry {slot}/{key}: {nbytes} bytes announced, a frame of {got} came")
    if (checksum or has_checksum) and zlib.crc32(frame) != checksum:
        raise WireError(f"entry {slot}/{key}: the checksum does not fit the frame")
    array = np.frombuffer(frame, dtype).reshape(shape) if got else np.empty(shape, dtype)
    # short frames are parts of libzmq's read buffer, where they may start at any byte
    return array if array.flags.aligned else array.copy()
