"""The entries of a header, one for each frame of the message, and the arrays of frames."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge.protocol.limits import Buffer, packb, packed_list, unpackb
from edge.protocol.message_fields import DESCRIPTION, as_list, is_version, pack_int, unpack_int, unpack_text
from edge.protocol.messages import WireError, expect, reject
from edge.protocol.payload import VERSION_NBYTES

MAX_DIMENSION = 1 << 40
MAX_CACHED_NBYTES = 1 << 16
"""Longer lists of entries are not cached."""
UNNAMED = bytes(VERSION_NBYTES)
FLOAT32 = np.dtype(np.float32)
INT64 = np.dtype("<i8")


class Frame(NamedTuple):
    """An array to be sent."""

    slot: str
    key: str
    version: bytes
    array: NDArray[Any]


Sizes = tuple[tuple[str, str, int], ...]
"""(slot, key, number of float32 values) of each vector."""


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
    sizes = tuple([(frame.slot, frame.key, frame.array.size) for frame in frames])
    return TensorSpecs(packed_list(packed), sizes, sum(frame.array.nbytes for frame in frames))


@lru_cache(maxsize=4096)
def pack_tensor_spec(slot: str, key: str, version: bytes, dtype: str, shape: tuple[int, ...], checksum: int) -> bytes:
    """One entry, packed. Cached: all clients of a round get the same vectors, and send vectors of the same shapes."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    return packb([slot, key, version, dtype, [pack_int(n) for n in shape], pack_int(nbytes), pack_int(checksum)])


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
    """The entries of a message of this type. Cached: all updates of a round have the same."""
    unpacked = unpackb(packed)
    if not isinstance(unpacked, list):
        reject(f"{name}: entries", unpacked)
    entries = tuple(map(_parse_entry, unpacked))
    places: set[tuple[str, str]] = set()
    for entry in entries:
        _check_kind(entry, name)
        place = (entry.slot, entry.key)
        if place in places:
            reject("slot and key sent twice", place)
        places.add(place)
    return entries


def _check_kind(entry: TensorSpec, name: str) -> None:
    """WireError if messages of this type have no such array, or name it in another way."""
    slot, key, version, dtype, shape, _, _ = entry
    if name != "described" or slot != DESCRIPTION:
        wanted = INT64 if name == "sums" else FLOAT32
        if dtype != wanted or len(shape) != 1:
            reject(f"{name}: vector {slot}/{key}", (dtype, shape))
    goes_down = name in ("train", "visits", "evaluate", "blocks")
    expect(goes_down == (version != UNNAMED), f"{name}: version of {slot}/{key}", version)
    if name == "blocks":
        expect((slot, key) == ("", version.hex()), f"{name}: version {version.hex()} sent as", (slot, key))


def _parse_entry(entry: object) -> TensorSpec:
    slot, key, version, dtype, shape, nbytes, checksum = as_list(entry, 7, "entry")
    slot, key = unpack_text(slot, "entry: slot"), unpack_text(key, "entry: key")
    what = f"entry {slot}/{key}"
    expect(is_version(version), f"{what}: version", version)
    expect(dtype in ("<f4", "<f8", "<i8"), f"{what}: dtype", dtype)
    expect(isinstance(shape, list) and len(shape) in (1, 2), f"{what}: shape", shape)
    dimensions = tuple(unpack_int(n, f"{what}: shape") for n in shape)
    expect(all(0 <= n <= MAX_DIMENSION for n in dimensions), f"{what}: shape", dimensions)
    announced, wanted = unpack_int(nbytes, f"{what}: nbytes"), math.prod(dimensions) * np.dtype(dtype).itemsize
    if announced != wanted:
        raise WireError(f"{what}: {announced} bytes announced, but shape {dimensions} of {dtype} has {wanted}")
    crc = unpack_int(checksum, f"{what}: checksum")
    expect(0 <= crc < 1 << 32, f"{what}: checksum", crc)
    return TensorSpec(slot, key, version, np.dtype(dtype), dimensions, wanted, crc)


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
