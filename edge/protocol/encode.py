"""From a message to its header and frames, and how long they are before the message exists."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from typing import Any

import numpy as np

from edge.protocol.limits import packb, packed_list
from edge.protocol.message_fields import ARRAYS, DESCRIPTION, NAMES, PROTOCOL, TYPES, pack_int
from edge.protocol.messages import Blocks, Described, Evaluate, Kept, Message, Sums, Train, Update
from edge.protocol.payload import ITEM_NBYTES, Payload, Shapes, vectors
from edge.protocol.tensor_specs import INT64, UNNAMED, Entries, Frame, Sizes, pack_all, pack_entry


@dataclass(frozen=True)
class Encoded:
    """A message as it travels."""

    header: bytes
    frames: tuple[memoryview, ...] = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes that are charged for this message."""
        return len(self.header) + sum(frame.nbytes for frame in self.frames)


def encode(message: Message, run_id: str, checksum: bool = False) -> Encoded:
    """The canonical encoding; ``checksum`` fills the CRC-32 of each frame, as `Kept` always does."""
    frames = _frames(message)
    raw = tuple(frame.array.reshape(-1).data.cast("B") for frame in frames)
    entries = pack_all(frames, map(zlib.crc32, raw) if checksum or isinstance(message, Kept) else repeat(0))
    return Encoded(encode_header(message, run_id, entries), raw)


def pack_entries(payload: Payload) -> Entries:
    """The entries of vectors that go down, for many headers."""
    return pack_all(_down(payload), repeat(0))


def encode_header(message: Message, run_id: str, entries: Entries) -> bytes:
    """The header of a message with these entries."""
    name = NAMES[type(message)]
    source: Any = message.description if isinstance(message, Described) else message
    fields = {key: codec.pack(getattr(source, key)) for key, codec in TYPES[name][1].items()}
    header = _header(name, run_id, fields, entries.packed)
    if isinstance(message, Train | Update):
        names = message.choice if isinstance(message, Train) else message.numbers
        assert len(header) + entries.frames_nbytes == _nbytes(name, run_id, tuple(names), entries.sizes)
    return header


def train_nbytes(run_id: str, choice_names: Iterable[str], shapes: Shapes) -> int:
    """Bytes charged for a `Train` that carries these vectors."""
    return _nbytes("train", run_id, tuple(choice_names), _sizes(shapes))


def update_nbytes(run_id: str, number_names: Iterable[str], shapes: Shapes) -> int:
    """Bytes charged for an `Update` that carries these vectors."""
    return _nbytes("update", run_id, tuple(number_names), _sizes(shapes))


def _sizes(shapes: Shapes) -> Sizes:
    return tuple([(slot, key, size) for slot, named in shapes.items() for key, size in named.items()])


_NAMED = {"train": "choice", "update": "numbers"}
"""The field of a charged message that holds numbers by name."""


@lru_cache(maxsize=1024)
def _nbytes(name: str, run_id: str, names: tuple[str, ...], sizes: Sizes) -> int:
    zero = pack_int(0)
    fields: dict[str, object] = dict.fromkeys(TYPES[name][1], zero) | {_NAMED[name]: dict.fromkeys(names, zero)}
    entries = [pack_entry(slot, key, UNNAMED, "<f4", (size,), 0) for slot, key, size in sizes]
    return len(_header(name, run_id, fields, packed_list(entries))) + ITEM_NBYTES * sum(size for _, _, size in sizes)


def _header(name: str, run_id: str, fields: Mapping[str, object], packed_entries: bytes) -> bytes:
    """A list of five."""
    return packed_list([*map(packb, (PROTOCOL, name, run_id, fields)), packed_entries])


def _frames(message: Message) -> list[Frame]:
    if isinstance(message, Train | Evaluate):
        return _down(message.payload)
    if isinstance(message, Blocks):
        return [Frame("", vector.version.hex(), vector.version, vector.data) for vector in message.vectors]
    if isinstance(message, Sums):
        return [
            Frame(slot, key, UNNAMED, np.ascontiguousarray(total, dtype=INT64))
            for slot, named in message.totals.items()
            for key, total in named.items()
        ]
    frames: list[Frame] = []
    if isinstance(message, Described):
        for name, dtype in ARRAYS.items():
            array = np.ascontiguousarray(getattr(message.description, name), dtype=dtype)
            frames.append(Frame(DESCRIPTION, name, UNNAMED, array))
    if isinstance(message, Described | Update | Kept):
        # these are used once: a content hash of it would be computed for nobody
        frames += [Frame(slot, key, UNNAMED, vector.data) for slot, key, vector in vectors(message.payload)]
    return frames


def _down(payload: Payload) -> list[Frame]:
    return [Frame(slot, key, vector.version, vector.data) for slot, key, vector in vectors(payload)]
