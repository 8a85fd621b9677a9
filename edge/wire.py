"""The protocol: message types, their canonical encoding, and their validation. Never a socket, never torch.

On a socket a message is ``[envelope, header, frame...]``, each one part of a multipart message.

*Header* (charged). msgpack of ``[protocol, type, run id, {field: value}, [entry...]]``. Every number is packed in a
form whose length does not depend on its value: integers and floats as 8 bytes, big-endian, in a msgpack ``bin``; so the
length of a header follows from names and shapes alone, and `train_nbytes` and `update_nbytes` give it before a message
exists. One *entry* per frame: ``[slot, key, version, dtype, shape, nbytes, checksum]``; version is the 16 bytes of
`Vector.version` for vectors that go down and zeros for those that go up; checksum is the CRC-32 of the frame, zero when
unused.

*Frames* (charged). The raw little-endian numbers of one vector each, in the order of the entries.

*Envelope* (not charged). What only the transport needs; see `Envelope`.

``train`` and ``evaluate`` travel as envelope + header alone. The frames their entries name travel ahead of them in a
``blocks`` message, each version once per worker, and are found again by version. All other messages bring their frames,
of float32 numbers but for the arrays of ``described`` and for ``sums``, which are int64.

    worker                         coordinator
    hello                     ->
                              <-   welcome (job), ping
    pong (ready for a task)   ->
                              <-   describe | [blocks] train | [blocks] evaluate
    described | update | score | error   ->
                              <-   collect
    sums | error              ->
                              <-   cancel (with a task's sequence): it is not wanted any more
    pong (with the task's sequence: it is not in hand any more)   ->
                              <-   bye

A hello and its welcome bear no run id (`edge.messages.NO_RUN`), since a worker learns from the job which run it serves.

A worker may be sent further tasks before it has answered the first: it has several in hand, does one after another in
the order in which they came, and reads what has come meanwhile after each. A bye ends it at once.

A train whose envelope gives the client a share in the round's mean is answered by an update without vectors: the worker
has added them to its sums of that round (`edge.exact`), which it gives away, and forgets, when a collect asks for them;
it holds those of one round at a time. An update that cannot be added comes whole. A collect belongs to no task, and
waits its turn behind those in hand.

An error of the kind OutOfMemoryError may cost the worker its place: it is ended, and the envelopes of later tasks tell
the others that it has left.

Whatever does not fit (size, type, range, length against frame, run id, missing or extra field) is a `WireError`.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple, cast

import msgpack
import numpy as np
from numpy.typing import NDArray

from edge import config
from edge.config import Description, Job
from edge.messages import (
    Blocks,
    Bye,
    Cancel,
    Collect,
    Describe,
    Described,
    Error,
    Evaluate,
    Hello,
    Message,
    Ping,
    Pong,
    Score,
    Sums,
    Totals,
    Train,
    Update,
    Welcome,
    WireError,
    refuse,
    require,
)
from edge.payload import ITEM_NBYTES, KINDS, VERSION_NBYTES, Layout, Payload, Shapes, Vector, vectors

PROTOCOL = 1
MAX_HEADER_NBYTES = 16 << 20
MAX_ITEMS = 1 << 16
MAX_TEXT = 1 << 20
MAX_DIMENSION = 1 << 40
MAX_KEPT_NBYTES = 1 << 16
"""Longer lists of entries are parsed anew each time."""
LIMITS = {
    "max_str_len": MAX_TEXT,
    "max_bin_len": MAX_TEXT,
    "max_array_len": MAX_ITEMS,
    "max_map_len": MAX_ITEMS,
    "max_ext_len": 0,
}
UNPACK_ERRORS = (ValueError, TypeError, msgpack.UnpackException)
UNNAMED = bytes(VERSION_NBYTES)
FLOAT32 = np.dtype(np.float32)
INT64 = np.dtype("<i8")

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Envelope:
    """What the transport alone needs; not charged to anybody."""

    worker: str
    """The identity of the worker that sends or receives."""
    sequence: int = 0
    """Which task; 0 for messages that belong to none."""
    state_in: str | None = None
    """File of what the client kept from its last visit."""
    state_out: str | None = None
    """File for what it keeps from this one."""
    forget: tuple[bytes, ...] = ()
    """Versions that the worker may drop."""
    wall_seconds: float = 0.0
    """How long the worker took over the task."""
    share: float = 0.0
    """The client's part of the round's mean, 0..1: with which the worker adds its update up. 0: it is sent whole."""
    left: tuple[int, ...] = ()
    """Seats of workers that have left for lack of memory: theirs is shared out among the others (`edge.gpus`)."""
    note: str = ""
    """What the worker has measured of itself, for the record of the run."""

    def pack(self) -> bytes:
        """As one frame."""
        values = [self.worker, self.sequence, self.state_in, self.state_out, list(self.forget)]
        return _packb([*values, self.wall_seconds, self.share, list(self.left), self.note])

    @classmethod
    def parse(cls, raw: Buffer) -> Envelope:
        """Inverse of `pack`."""
        values = _list(_unpackb(raw), 9, "envelope")
        worker, sequence, state_in, state_out, forget, wall_seconds, share, left, note = values
        require(isinstance(worker, str), "envelope: worker", worker)
        require(type(sequence) is int and sequence >= 0, "envelope: sequence", sequence)
        for name, value in (("state_in", state_in), ("state_out", state_out)):
            require(value is None or isinstance(value, str), f"envelope: {name}", value)
        require(isinstance(forget, list) and all(map(_is_version, forget)), "envelope: forget", forget)
        require(isinstance(wall_seconds, float) and wall_seconds >= 0, "envelope: wall_seconds", wall_seconds)
        require(isinstance(share, float) and 0 <= share <= 1, "envelope: share", share)
        require(isinstance(left, list) and all(map(_is_seat, left)), "envelope: left", left)
        require(isinstance(note, str), "envelope: note", note)
        return cls(worker, sequence, state_in, state_out, tuple(forget), wall_seconds, share, tuple(left), note)


# --- fields -------------------------------------------------------------------------------------------------------


def _is_version(value: object) -> bool:
    return isinstance(value, bytes) and len(value) == VERSION_NBYTES


def _is_seat(value: object) -> bool:
    return type(value) is int and value >= 0


def _list(value: object, length: int, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) != length:
        refuse(f"{what}, a list of {length}", value)
    return value


def _pack_int(value: int) -> bytes:
    return struct.pack(">q", value)


def _unpack_int(value: object, what: str) -> int:
    if not isinstance(value, bytes) or len(value) != 8:
        refuse(what, value)
    return int(struct.unpack(">q", value)[0])


def _pack_float(value: float) -> bytes:
    return struct.pack(">d", value)


def _unpack_float(value: object, what: str) -> float:
    if not isinstance(value, bytes) or len(value) != 8:
        refuse(what, value)
    return float(struct.unpack(">d", value)[0])


def _unpack_text(value: object, what: str) -> str:
    if not isinstance(value, str):
        refuse(what, value)
    return value


def _unpack_flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        refuse(what, value)
    return value


def _unpack_named(unpack: Callable[[object, str], Any]) -> Callable[[object, str], dict[str, Any]]:
    def unpack_all(value: object, what: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            refuse(what, value)
        return {_unpack_text(name, what): unpack(item, f"{what}: {name}") for name, item in value.items()}

    return unpack_all


def _unpack_record(kind: type) -> Callable[[object, str], Any]:
    def unpack(value: object, what: str) -> Any:
        try:
            return config.parse(kind, value)
        except ValueError as error:  # pydantic's
            raise WireError(f"{what}: {error}") from error

    return unpack


class _Codec(NamedTuple):
    pack: Callable[[Any], object]
    unpack: Callable[[object, str], Any]


def _same(value: Any) -> Any:
    return value


_INT = _Codec(_pack_int, _unpack_int)
_FLOAT = _Codec(_pack_float, _unpack_float)
_INTS = _Codec(lambda named: {name: _pack_int(value) for name, value in named.items()}, _unpack_named(_unpack_int))
_FLOATS = _Codec(
    lambda named: {name: _pack_float(value) for name, value in named.items()}, _unpack_named(_unpack_float)
)
_TEXT = _Codec(_same, _unpack_text)
_FLAG = _Codec(_same, _unpack_flag)
_JOB = _Codec(config.plain, _unpack_record(Job))
_LAYOUT = _Codec(
    Layout.plain, lambda plain, what: Layout.parse(_unpack_record(list[tuple[str, int, int]])(plain, what))
)

_ARRAYS = {"flops": "<f8", "activations": "<f8", "samples": "<i8", "histogram": "<i8", "test_samples": "<i8"}
"""The arrays of a `Description`, which travel as frames of slot `_DESCRIPTION`, and their types."""
_DESCRIPTION = "(description)"
_DESCRIPTION_FIELDS = {
    "layout": _LAYOUT,
    "family": _TEXT,
    "data_sha256": _TEXT,
    "data_source": _TEXT,
    "classes": _INT,
    "test_count": _INT,
}

_TYPES: dict[str, tuple[type, dict[str, _Codec]]] = {
    "hello": (Hello, {}),
    "welcome": (Welcome, {"job": _JOB}),
    "ping": (Ping, {}),
    "pong": (Pong, {}),
    "describe": (Describe, {"data": _FLAG}),
    "described": (Described, _DESCRIPTION_FIELDS),
    "blocks": (Blocks, {}),
    "train": (Train, {"client": _INT, "round": _INT, "lr": _FLOAT, "choice": _INTS}),
    "update": (Update, {"client": _INT, "round": _INT, "numbers": _FLOATS}),
    "collect": (Collect, {"round": _INT}),
    "sums": (Sums, {"round": _INT, "clients": _INT}),
    "evaluate": (Evaluate, {"start": _INT, "stop": _INT, "client": _INT}),
    "score": (Score, {"start": _INT, "client": _INT, "correct": _INT, "count": _INT, "loss_sum": _FLOAT}),
    "cancel": (Cancel, {}),
    "error": (Error, {"kind": _TEXT, "text": _TEXT}),
    "bye": (Bye, {"why": _TEXT}),
}
_NAMES = {kind: name for name, (kind, _) in _TYPES.items()}


# --- encoding -----------------------------------------------------------------------------------------------------


class _Frame(NamedTuple):
    slot: str
    key: str
    version: bytes
    array: NDArray[Any]


@dataclass(frozen=True)
class Encoded:
    """A message as it travels."""

    header: bytes
    frames: tuple[memoryview, ...] = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes that are charged for this message."""
        return len(self.header) + sum(frame.nbytes for frame in self.frames)


_Sizes = tuple[tuple[str, str, int], ...]
"""(slot, key, number of float32 values) of each vector."""


@dataclass(frozen=True)
class Entries:
    """The list of entries in a header, packed: it is the same for all messages with the same vectors."""

    packed: bytes = field(repr=False)
    sizes: _Sizes
    frames_nbytes: int
    """Bytes of the frames that the entries name."""


def encode(message: Message, run_id: str, checksum: bool = False) -> Encoded:
    """The canonical encoding; ``checksum`` fills the CRC-32 of each frame."""
    frames = _frames(message)
    raw = tuple(frame.array.reshape(-1).data.cast("B") for frame in frames)
    entries = _pack_entries(frames, map(zlib.crc32, raw) if checksum else repeat(0))
    return Encoded(encode_header(message, run_id, entries), raw)


def pack_entries(payload: Payload) -> Entries:
    """The entries of vectors that go down, for many headers."""
    return _pack_entries(_down(payload), repeat(0))


def encode_header(message: Message, run_id: str, entries: Entries) -> bytes:
    """The header of a message with these entries."""
    name = _NAMES[type(message)]
    source: Any = message.description if isinstance(message, Described) else message
    fields = {key: codec.pack(getattr(source, key)) for key, codec in _TYPES[name][1].items()}
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


def _sizes(shapes: Shapes) -> _Sizes:
    return tuple([(slot, key, size) for slot, named in shapes.items() for key, size in named.items()])


_NAMED = {"train": "choice", "update": "numbers"}
"""The field of a charged message that holds numbers by name."""


@lru_cache(maxsize=1024)
def _nbytes(name: str, run_id: str, names: tuple[str, ...], sizes: _Sizes) -> int:
    zero = _pack_int(0)
    fields: dict[str, object] = dict.fromkeys(_TYPES[name][1], zero) | {_NAMED[name]: dict.fromkeys(names, zero)}
    entries = [_entry(slot, key, UNNAMED, "<f4", (size,), 0) for slot, key, size in sizes]
    return len(_header(name, run_id, fields, _packed_list(entries))) + ITEM_NBYTES * sum(size for _, _, size in sizes)


def _header(name: str, run_id: str, fields: Mapping[str, object], packed_entries: bytes) -> bytes:
    """A list of five."""
    return _packed_list([*map(_packb, (PROTOCOL, name, run_id, fields)), packed_entries])


def _packed_list(packed_items: Sequence[bytes]) -> bytes:
    return cast(bytes, msgpack.Packer().pack_array_header(len(packed_items))) + b"".join(packed_items)


def _pack_entries(frames: Sequence[_Frame], checksums: Iterable[int]) -> Entries:
    packed = [
        _entry(frame.slot, frame.key, frame.version, frame.array.dtype.str, frame.array.shape, checksum)
        for frame, checksum in zip(frames, checksums, strict=False)
    ]
    sizes = tuple([(frame.slot, frame.key, frame.array.size) for frame in frames])
    return Entries(_packed_list(packed), sizes, sum(frame.array.nbytes for frame in frames))


@lru_cache(maxsize=4096)
def _entry(slot: str, key: str, version: bytes, dtype: str, shape: tuple[int, ...], checksum: int) -> bytes:
    """One entry, packed. Kept: all clients of a round are sent the same vectors, and send vectors of the same form."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    return _packb([slot, key, version, dtype, [_pack_int(n) for n in shape], _pack_int(nbytes), _pack_int(checksum)])


def _frames(message: Message) -> list[_Frame]:
    if isinstance(message, Train | Evaluate):
        return _down(message.payload)
    if isinstance(message, Blocks):
        return [_Frame("", vector.version.hex(), vector.version, vector.data) for vector in message.vectors]
    if isinstance(message, Sums):
        return [
            _Frame(slot, key, UNNAMED, np.ascontiguousarray(total, dtype=INT64))
            for slot, named in message.totals.items()
            for key, total in named.items()
        ]
    frames: list[_Frame] = []
    if isinstance(message, Described):
        for name, dtype in _ARRAYS.items():
            array = np.ascontiguousarray(getattr(message.description, name), dtype=dtype)
            frames.append(_Frame(_DESCRIPTION, name, UNNAMED, array))
    if isinstance(message, Described | Update):
        # what goes up is used once: a content hash of it would be computed for nobody
        frames += [_Frame(slot, key, UNNAMED, vector.data) for slot, key, vector in vectors(message.payload)]
    return frames


def _down(payload: Payload) -> list[_Frame]:
    return [_Frame(slot, key, vector.version, vector.data) for slot, key, vector in vectors(payload)]


# --- decoding -----------------------------------------------------------------------------------------------------


def decode(
    header: Buffer, frames: Sequence[Buffer], run_id: str, held: Mapping[bytes, Vector] | None = None
) -> Message:
    """The message of a header and its frames; vectors are views of the frames, not copies.

    With ``held`` (version -> vector), the vectors of `Train` and `Evaluate` are found there instead of in ``frames``.
    Raises `WireError` for anything that does not follow the protocol.
    """
    protocol, name, sender_run_id, fields, packed_entries = _split(header)
    require(type(protocol) is int and protocol == PROTOCOL, "protocol", protocol)
    require(isinstance(name, str) and name in _TYPES, "message type", name)
    require(sender_run_id == run_id, f"run id (this is {run_id})", sender_run_id)
    kind, codecs = _TYPES[name]
    if not isinstance(fields, dict) or fields.keys() != codecs.keys():
        raise WireError(f"{name}: fields {repr(fields)[:100]}, not {', '.join(codecs) or 'none'}")
    values = {key: codec.unpack(fields[key], f"{name}: {key}") for key, codec in codecs.items()}
    parse = _parse_entries if len(packed_entries) <= MAX_KEPT_NBYTES else _parse_entries.__wrapped__
    entries = parse(packed_entries, name)
    if held is not None and kind in (Train, Evaluate):
        require(len(frames) == 0, f"{name}: frames beside held blocks", len(frames))
        return _compose(kind, values, entries, [_find(entry, held) for entry in entries])
    if len(frames) != len(entries):
        raise WireError(f"{name}: {len(entries)} frames announced, {len(frames)} received")
    return _compose(kind, values, entries, [_read(entry, frame) for entry, frame in zip(entries, frames, strict=True)])


def _compose(kind: type, values: dict[str, Any], entries: Sequence[_Entry], arrays: Sequence[NDArray[Any]]) -> Message:
    if kind is Sums:
        return Sums(**values, totals=_totals(entries, arrays))
    payload: Payload = {}
    described: dict[str, NDArray[Any]] = {}
    for entry, array in zip(entries, arrays, strict=True):
        if kind is Described and entry.slot == _DESCRIPTION:
            described[entry.key] = array
            continue
        if entry.dtype != FLOAT32 or len(entry.shape) != 1:
            refuse(f"vector {entry.slot}/{entry.key}", (entry.dtype, entry.shape))
        vector = Vector(array, entry.version if entry.version != UNNAMED else None)
        payload.setdefault(entry.slot, {})[entry.key] = vector
    if kind is Described:
        return Described(_description(values, described), payload)
    if kind is Blocks:
        return Blocks(tuple(vector for _, _, vector in vectors(payload)))
    if kind in (Train, Update, Evaluate):
        values["payload"] = payload
    elif entries:
        raise WireError(f"{_NAMES[kind]} carries no frames, but {len(entries)} came")
    return cast(Message, kind(**values))


def _totals(entries: Sequence[_Entry], arrays: Sequence[NDArray[Any]]) -> Totals:
    totals: Totals = {}
    for entry, array in zip(entries, arrays, strict=True):
        if entry.dtype != INT64 or len(entry.shape) != 1:
            refuse(f"sum {entry.slot}/{entry.key}", (entry.dtype, entry.shape))
        totals.setdefault(entry.slot, {})[entry.key] = array
    return totals


def _description(values: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Description:
    require(arrays.keys() == _ARRAYS.keys(), "described: arrays", sorted(arrays))
    blocks, classes, clients = len(values["layout"]), values["classes"], len(arrays["samples"])
    wanted = {
        "flops": (blocks, KINDS),
        "activations": (blocks,),
        "samples": (clients,),
        "histogram": (clients, classes),
        "test_samples": (clients,),
    }
    for name, array in arrays.items():
        # a model described without its data has no clients, and its histogram no columns to count
        uncounted = name == "histogram" and clients == 0 and array.size == 0
        fits = array.dtype.str == _ARRAYS[name] and (array.shape == wanted[name] or uncounted)
        require(fits, f"described: {name}", (array.dtype.str, array.shape))
        wrong = array[~((array >= 0) & (array < np.inf))]
        require(wrong.size == 0, f"described: {name}", wrong[:1].tolist())
    return Description(**(values | arrays))


class _Entry(NamedTuple):
    slot: str
    key: str
    version: bytes
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int
    checksum: int


@lru_cache(maxsize=256)
def _parse_entries(packed: bytes, name: str) -> tuple[_Entry, ...]:
    """The entries of a message of this type. Kept: many updates have the same, and all visits of a round."""
    unpacked = _unpackb(packed)
    if not isinstance(unpacked, list):
        refuse(f"{name}: entries", unpacked)
    entries = tuple(map(_parse_entry, unpacked))
    places: set[tuple[str, str]] = set()
    for entry in entries:
        place = (entry.slot, entry.key)
        if place in places:
            refuse("slot and key sent twice", place)
        places.add(place)
    return entries


def _parse_entry(entry: object) -> _Entry:
    slot, key, version, dtype, shape, nbytes, checksum = _list(entry, 7, "entry")
    slot, key = _unpack_text(slot, "entry: slot"), _unpack_text(key, "entry: key")
    what = f"entry {slot}/{key}"
    require(_is_version(version), f"{what}: version", version)
    require(dtype in ("<f4", "<f8", "<i8"), f"{what}: dtype", dtype)
    require(isinstance(shape, list) and len(shape) in (1, 2), f"{what}: shape", shape)
    dimensions = tuple(_unpack_int(n, f"{what}: shape") for n in shape)
    require(all(0 <= n <= MAX_DIMENSION for n in dimensions), f"{what}: shape", dimensions)
    announced, wanted = _unpack_int(nbytes, f"{what}: nbytes"), math.prod(dimensions) * np.dtype(dtype).itemsize
    if announced != wanted:
        raise WireError(f"{what}: {announced} bytes announced, but shape {dimensions} of {dtype} has {wanted}")
    crc = _unpack_int(checksum, f"{what}: checksum")
    require(0 <= crc < 1 << 32, f"{what}: checksum", crc)
    return _Entry(slot, key, version, np.dtype(dtype), dimensions, wanted, crc)


def _read(entry: _Entry, frame: Buffer) -> NDArray[Any]:
    slot, key, _, dtype, shape, nbytes, checksum = entry
    got = memoryview(frame).nbytes
    if got != nbytes:
        raise WireError(f"entry {slot}/{key}: {nbytes} bytes announced, a frame of {got} came")
    if checksum and zlib.crc32(frame) != checksum:
        raise WireError(f"entry {slot}/{key}: the checksum does not fit the frame")
    array = np.frombuffer(frame, dtype).reshape(shape) if got else np.empty(shape, dtype)
    # libzmq hands out short frames as parts of its read buffer, where they may start at any byte
    return array if array.flags.aligned else array.copy()


def _find(entry: _Entry, held: Mapping[bytes, Vector]) -> NDArray[Any]:
    slot, key, version, dtype, shape, _, _ = entry
    vector = held.get(version)
    if vector is None:
        raise WireError(f"entry {slot}/{key}: version {version.hex()} is not held here")
    if (dtype, shape) != (FLOAT32, vector.data.shape):
        raise WireError(f"entry {slot}/{key}: {dtype} of shape {shape}, but version {version.hex()} is not")
    return vector.data


def _packb(value: object) -> bytes:
    return cast(bytes, msgpack.packb(value))


def _split(header: Buffer) -> tuple[Any, Any, Any, Any, bytes]:
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


def _unpackb(raw: Buffer) -> object:
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
