"""The protocol: message types, their canonical encoding, and their validation. Never a socket, never torch.

On a socket a message is ``[envelope, header, frame...]``, each one part of a multipart message.

*Header* (charged). msgpack of ``[protocol, type, run id, {field: value}, [entry...]]``; the type is the name of the
message's class. In the two charged messages, ``Train`` and ``Update``, every number has ten bytes, whatever its value:
an integer is a msgpack ``bin`` of 8 bytes, big-endian, and a float the extension of type 0, which is as long. So the
length of such a header follows from names and shapes alone, and `train_nbytes` and `update_nbytes` give it before a
message exists. The job of a ``Welcome`` is JSON. One *entry* per frame: ``[slot, key, version, dtype, shape, nbytes,
checksum]``; version is the 16 bytes of `Vector.version` for vectors that go down and zeros for those that go up;
checksum is the CRC-32 of the frame, zero when unused. Numbers of entries are 8 bytes, too.

*Frames* (charged). The raw little-endian numbers of one vector each, in the order of the entries; of a vector that a
codec has encoded (`edge.protocol.codecs`), which only updates have, its bytes, of type ``|u1``.

*Envelope* (not charged). What only the transport needs; see `Envelope`.

``Train``, ``Visits`` and ``Evaluate`` travel as envelope + header alone. The frames that their entries name are sent
ahead of them as ``Tensors``, each version once per worker, and are found again by version. All other messages have
their frames, of float32 numbers but for the arrays of ``Described`` and for a ``PartialSum``, which are int64.

Visits that need the same vectors travel together, as the columns of one ``Visits``, and updates with the same numbers
as those of one ``Updates``, which has one frame per update, with all its vectors. Each visit is charged for the Train
and the Update that it would be alone: what passes between two processes of the simulator is not what the simulated
client sends.

A worker that the coordinator has started finds long vectors in files in memory instead, which ``MappedTensors`` names:
all workers of a machine map the same. A worker skips a version whose file is gone, since its tasks are cancelled then.

``ClientState`` (not charged) is for remote workers, which do not reach the files that an envelope names. It has the
sequence of its task. If the envelope of a task names a file to read, a ClientState is sent right ahead of the task; if
it names one to write, one is sent right ahead of the update, and is on the coordinator's disk before that update is
handled. None is sent to the worker that sent the ClientState of the same name, by which it finds its own copy; if it
has none, it answers with an error of the kind MissingStateError, and gets ClientState and task again. For a remote
worker these names are never paths. Every frame of a ClientState has its checksum.

``FetchFile`` and ``FilePart`` (not charged) bring files that the job lists to a remote worker that lacks them, before
it is ready. A FilePart has no frames. It is followed by a ping, since the worker ignores those that come during a
transfer.

    worker                         coordinator
    Hello                     ->
                              <-   Welcome (job), Ping
    [FetchFile]               ->
                              <-   [FilePart, Ping]
    Pong (ready for a task)   ->
                              <-   Describe | [MappedTensors] [Tensors] [ClientState] Train
                              <-   [MappedTensors] [Tensors] Visits | [MappedTensors] [Tensors] [ClientState] Evaluate
    Described | [ClientState] Update | Updates | Score | Error   ->
                              <-   FetchPartial
    PartialSum | Error        ->
    Capacity                  ->
                              <-   Cancel (with a task's sequence)
    Pong (with the task's sequence: it is not queued any more)   ->
                              <-   Shutdown

A Hello says how many tasks are done at a time: one, or as many as a node agent has workers. If workers of the agent
leave for lack of memory, a Capacity says how many remain; it may only fall. A Hello and its Welcome have no run id
(`edge.protocol.messages.NO_RUN`), since a worker learns the run from the job.

A worker may be sent further tasks before it has answered the first. It does them in the order in which they came, and
reads new messages after each task. A Shutdown ends it at once.

If the envelope of a Train has an aggregation weight, the answer is an Update without vectors: the worker has added them
to its partial sum of that round (`edge.protocol.fixed_point`), which it sends, and empties, after a FetchPartial. It
has the sum of one round at a time. An update that cannot be added is sent whole. A FetchPartial belongs to no task, and
is queued behind the tasks.

After an error of the kind OutOfMemoryError a worker may be retired; the envelopes of later tasks tell the others its
slot.

A message that is invalid (size, type, range, length against frame, run id, missing or extra field) is a `WireError`: it
is refused, counted, and logged with its reason, at most once a second, and changes nothing. A worker answers it with an
error of the kind WireError, with the message's sequence if that could be read, so that its task fails and is not waited
for. A coordinator ignores messages of unknown senders, and ends a worker whose message was refused, or that answers a
task which is not assigned to it, or answers twice; its tasks are requeued. A local worker's process is ended, a remote
worker gets a Shutdown with the reason. So does a remote worker whose ClientState was not requested, has other vectors
than the client keeps, or is not followed by its update; and one whose update comes without it. The content of a frame
is checked only if its entry has a checksum.

`encode` gives the header and frames of a message, `train_nbytes` and `update_nbytes` their length before a message
exists; `decode` gives the message of a header and frames, or raises a `WireError`.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from types import UnionType
from typing import Any, get_type_hints

import numpy as np
from msgspec import Raw, Struct, defstruct, structs
from msgspec.msgpack import Decoder
from numpy.typing import NDArray

from edge.protocol.config import Job, ModelProfile, from_json, to_json
from edge.protocol.messages import (
    ATTACHED,
    MAX_BATCH_VECTORS,
    NO_RUN,
    ClientState,
    Described,
    Envelope,
    Evaluate,
    Message,
    PartialSum,
    Score,
    Tensors,
    Train,
    Update,
    Updates,
    Visits,
    Welcome,
    by_row,
)
from edge.protocol.operations import KINDS
from edge.protocol.payload import PASS_TYPES, EncodedVectors, Layout, Payload, Shapes, Vector, vectors
from edge.protocol.tensor_specs import (
    DESCRIPTION,
    FLOAT32,
    INT64,
    UINT8,
    UNNAMED,
    Frame,
    Sizes,
    TensorSpec,
    TensorSpecs,
    pack_all,
    pack_tensor_spec,
    parse_tensor_specs,
    read,
)
from edge.protocol.variant import KEYS, split
from edge.protocol.wire import (
    MAX_HEADER_NBYTES,
    Buffer,
    FixedFields,
    WireError,
    convert,
    expect,
    fixed,
    pack_as,
    packb,
    unfixed,
    unpackb,
)

__all__ = [
    "MAX_HEADER_NBYTES",
    "PROTOCOL",
    "Buffer",
    "Encoded",
    "Envelope",
    "TensorSpecs",
    "decode",
    "encode",
    "encode_header",
    "pack_description",
    "pack_tensor_specs",
    "packed_text",
    "train_nbytes",
    "unpack_description",
    "unpacked_text",
    "update_nbytes",
]

PROTOCOL = 11
MAX_COMPLAINT = 500
"""Characters of the reason for which a job is refused."""
MAX_CACHED_NBYTES = 1 << 16
"""Longer lists of entries are not cached."""
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
    "frozen": "<i8",
    "cuts": "<i8",
    "unit_flops": "<f8",
    "part_flops": "<f8",
    "part_activations": "<f8",
    "part_operations": "<f8",
}
"""The arrays of a `ModelProfile`, which travel as frames of slot `DESCRIPTION`, and their types."""


class _Header(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    protocol: int
    type: str
    run_id: str
    fields: Raw
    entries: Raw


_HEADER, _FIXED_FIELDS = Decoder(_Header), Decoder(FixedFields)
LENGTH = struct.Struct(">Q")
"""Before each part of a description in a file"""
CHARGED = (Train, Update)
"""Messages whose length must not depend on their numbers."""


def _fields_struct(kind: type[Message]) -> type[Struct]:
    """The fields of a message in its header: all that are not attached, none of which may be missing."""
    if kind is Welcome:
        fields: list[tuple[str, Any]] = [("job", bytes)]
    elif kind is Described:
        hints = get_type_hints(ModelProfile, include_extras=True)
        fields = [(name, hint) for name, hint in hints.items() if name not in ARRAYS]
    else:
        described = [(field.name, field.type) for field in structs.fields(kind)]
        fields = [(name, hint) for name, hint in described if ATTACHED not in getattr(hint, "__metadata__", ())]
    return defstruct(kind.__name__, fields, forbid_unknown_fields=True)


KINDS_OF_MESSAGES = {kind.__name__: kind for kind in Message.__subclasses__()}
_STRUCTS = {kind: _fields_struct(kind) for kind in KINDS_OF_MESSAGES.values()}
_DECODERS = {kind: Decoder(struct) for kind, struct in _STRUCTS.items()}


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
    """The canonical encoding; ``checksum`` fills the CRC-32 of each frame, as `ClientState` always does."""
    if isinstance(message, Updates):
        # One frame per upload, with all its vectors; the entries are those of one upload.
        nothing: list[EncodedVectors] = [{}] * len(message.payloads)
        uploads = [_up(*pair) for pair in zip(message.payloads, message.encoded or nothing, strict=True)]
        raw = tuple(_joined([frame.array for frame in upload]) for upload in uploads if upload)
        entries = pack_all(uploads[0] if uploads else [], repeat(0))
    else:
        frames = _frames(message)
        raw = tuple(frame.array.reshape(-1).data.cast("B") for frame in frames)
        has_checksums = checksum or isinstance(message, ClientState)
        entries = pack_all(frames, map(zlib.crc32, raw) if has_checksums else repeat(0))
    return Encoded(encode_header(message, run_id, entries), raw)


def _joined(upload: Sequence[NDArray[Any]]) -> memoryview:
    """The arrays of one upload, one after the other; no copy if they are all that there is of one array."""
    whole = upload[0].base
    if isinstance(whole, np.ndarray) and whole.nbytes == sum(numbers.nbytes for numbers in upload):
        return whole.data.cast("B")
    return np.concatenate([numbers.view(np.uint8) for numbers in upload]).data


def pack_description(description: ModelProfile) -> bytes:
    """A description of model and data as bytes for a file: header and frames of the message by which a worker sends
    it, each behind its length, a big-endian integer of 8 bytes."""
    encoded = encode(Described(description, {}), NO_RUN)
    parts = [memoryview(encoded.header), *encoded.frames]
    return b"".join(piece for part in parts for piece in (LENGTH.pack(part.nbytes), part))


def unpack_description(packed: Buffer) -> ModelProfile:
    """Inverse of `pack_description`; WireError for bytes that it does not give."""
    rest, parts = memoryview(packed), list[memoryview]()
    while rest and len(parts) <= len(ARRAYS):
        expect(len(rest) >= LENGTH.size, "description: bytes of a length", len(rest))
        (nbytes,) = LENGTH.unpack_from(rest)
        end = LENGTH.size + nbytes
        expect(end <= len(rest), "description: length of a part", nbytes)
        parts.append(rest[LENGTH.size : end])
        rest = rest[end:]
    expect(bool(parts) and not rest, "description: parts", len(parts))
    described = decode(parts[0], parts[1:], NO_RUN, kinds=Described)
    assert isinstance(described, Described)
    expect(not described.payload, "description: vectors", sorted(described.payload))
    return described.description


def packed_text(description: ModelProfile) -> str:
    """`pack_description` as ASCII, for `Job.description`."""
    return base64.b64encode(pack_description(description)).decode()


def unpacked_text(text: str) -> ModelProfile:
    """Inverse of `packed_text`; ValueError for a text that it does not give."""
    return unpack_description(base64.b64decode(text, validate=True))


def pack_tensor_specs(payload: Payload) -> TensorSpecs:
    """The entries of vectors that go down, for many headers."""
    return pack_all(_down(payload), repeat(0))


def encode_header(message: Message, run_id: str, entries: TensorSpecs) -> bytes:
    """The header of a message with these entries."""
    kind = type(message)
    if isinstance(message, Welcome):
        fields: dict[str, Any] = {"job": to_json(message.job)}
    else:
        source = message.description if isinstance(message, Described) else message
        fields = {name: getattr(source, name) for name in _STRUCTS[kind].__struct_fields__}
        if isinstance(message, Train | Evaluate):
            fields["choice"] = {**message.choice, **message.variant.named()}
        elif isinstance(message, Visits):
            rows = [variant.named() for variant in message.variants]
            fields["choice"] = {
                **message.choice,
                **{name: [row[name] for row in rows] for name in next(iter(rows), ())},
            }
    header = _packed_header(kind, run_id, fields, Raw(entries.packed))
    if isinstance(message, CHARGED):
        names = fields["choice"] if isinstance(message, Train) else message.numbers
        assert len(header) + entries.frames_nbytes == _nbytes(kind, run_id, tuple(names), entries.sizes)
    return header


def train_nbytes(run_id: str, choice_names: Iterable[str], shapes: Shapes, encoded: Shapes | None = None) -> int:
    """Bytes charged for a `Train` that carries these vectors, and frames of these lengths in bytes."""
    sizes = _sizes(shapes, FLOAT32) + _sizes(encoded or {}, UINT8)
    return _nbytes(Train, run_id, tuple(choice_names), sizes)


def update_nbytes(run_id: str, number_names: Iterable[str], shapes: Shapes, encoded: Shapes | None = None) -> int:
    """Bytes charged for an `Update` that carries these vectors, and frames of these lengths in bytes."""
    sizes = _sizes(shapes, FLOAT32) + _sizes(encoded or {}, UINT8)
    return _nbytes(Update, run_id, tuple(number_names), sizes)


def _sizes(shapes: Shapes, dtype: np.dtype[Any]) -> Sizes:
    return tuple((slot, key, size, dtype.str) for slot, by_key in shapes.items() for key, size in by_key.items())


@lru_cache(maxsize=1024)
def _nbytes(kind: type[Message], run_id: str, names: tuple[str, ...], sizes: Sizes) -> int:
    numbers = {"choice": dict.fromkeys(names, 0), "numbers": dict.fromkeys(names, 0)}
    fields = {name: numbers.get(name, 0) for name in _STRUCTS[kind].__struct_fields__}
    entries = [pack_tensor_spec(slot, key, UNNAMED, dtype, (size,), 0) for slot, key, size, dtype in sizes]
    header = _packed_header(kind, run_id, fields, entries)
    return len(header) + sum(size * np.dtype(dtype).itemsize for _, _, size, dtype in sizes)


def _packed_header(kind: type[Message], run_id: str, fields: dict[str, Any], entries: object) -> bytes:
    name = kind.__name__
    packed = packb(fixed(fields)) if kind in CHARGED else pack_as(_DECODERS[kind], fields, name)
    return packb([PROTOCOL, name, run_id, Raw(packed), entries])


def _frames(message: Message) -> list[Frame]:
    if isinstance(message, Train | Visits | Evaluate):
        return _down(message.payload)
    if isinstance(message, Tensors):
        return [Frame("", vector.version.hex(), vector.version, vector.data) for vector in message.vectors]
    if isinstance(message, PartialSum):
        return [
            Frame(slot, key, UNNAMED, np.ascontiguousarray(total, dtype=INT64))
            for slot, by_key in message.totals.items()
            for key, total in by_key.items()
        ]
    frames: list[Frame] = []
    if isinstance(message, Described):
        for name, dtype in ARRAYS.items():
            array = np.ascontiguousarray(getattr(message.description, name), dtype=dtype)
            frames.append(Frame(DESCRIPTION, name, UNNAMED, array))
    if isinstance(message, Described | Update | Score | ClientState):
        frames += _up(message.payload, message.encoded if isinstance(message, Update) else {})
    return frames


def _up(payload: Payload, encoded: EncodedVectors) -> list[Frame]:
    """Frames of vectors that are used once: a content hash of them would be computed for nobody. Encoded ones are
    last."""
    frames = [Frame(slot, key, UNNAMED, vector.data) for slot, key, vector in vectors(payload)]
    return frames + [
        Frame(slot, key, UNNAMED, data) for slot, by_key in encoded.items() for key, data in by_key.items()
    ]


def _down(payload: Payload) -> list[Frame]:
    return [Frame(slot, key, vector.version, vector.data) for slot, key, vector in vectors(payload)]


def decode(
    header: Buffer,
    frames: Sequence[Buffer],
    run_id: str,
    held: Mapping[bytes, Vector] | None = None,
    kinds: type[Message] | UnionType = Message,
) -> Message:
    """The message of a header and its frames; vectors are views of the frames, not copies.

    With ``held`` (version -> vector), the vectors of `Train` and `Evaluate` are found there instead of in ``frames``.
    ``kinds``: the messages that may come; of all others no field is decoded.
    Raises `WireError` for anything that does not follow the protocol.
    """
    parsed = unpackb(_HEADER, header, "header")
    name, kind = parsed.type, KINDS_OF_MESSAGES.get(parsed.type)
    expect(parsed.protocol == PROTOCOL, "protocol", parsed.protocol)
    if kind is None or not issubclass(kind, kinds):
        raise WireError(f"message type: {name[:100]!r} does not fit")
    expect(parsed.run_id == run_id, f"run id (this is {run_id})", parsed.run_id)
    values = _values(kind, parsed.fields)
    if kind in (Train, Evaluate):
        values["choice"], values["variant"] = split(values["choice"])
    elif kind is Visits:
        columns, count = values["choice"], len(values["sequences"])
        variant_columns = {name: columns.pop(name) for name in KEYS if name in columns}
        expect(
            all(len(column) == count for column in variant_columns.values()),
            "Visits: lengths",
            [*map(len, variant_columns.values())],
        )
        values["variants"] = [split(row)[1] for row in by_row(variant_columns, count)] if variant_columns else ()
    packed_entries = bytes(parsed.entries)
    parse = parse_tensor_specs if len(packed_entries) <= MAX_CACHED_NBYTES else parse_tensor_specs.__wrapped__
    entries = parse(packed_entries, name)
    if kind is Updates:
        payloads, encoded = _uploads(entries, frames, len(values["sequences"]))
        return Updates(**values, payloads=payloads, encoded=encoded)
    if held is not None and kind in (Train, Visits, Evaluate):
        expect(len(frames) == 0, f"{name}: frames beside held blocks", len(frames))
        return _compose(kind, values, entries, [_held(entry, held) for entry in entries])
    if len(frames) != len(entries):
        raise WireError(f"{name}: {len(entries)} frames announced, {len(frames)} received")
    arrays = [read(entry, frame, kind is ClientState) for entry, frame in zip(entries, frames, strict=True)]
    return _compose(kind, values, entries, arrays)


def _values(kind: type[Message], fields: Raw) -> dict[str, Any]:
    """The fields of a message that are in its header."""
    name = kind.__name__
    if kind in CHARGED:
        plain = unfixed(unpackb(_FIXED_FIELDS, fields, name), name)
        return structs.asdict(convert(plain, _STRUCTS[kind], name))
    values = structs.asdict(unpackb(_DECODERS[kind], fields, name))
    if kind is Welcome:
        try:
            values["job"] = from_json(Job, values["job"])
        except ValueError as error:
            raise WireError(f"Welcome: job: {error}"[:MAX_COMPLAINT]) from error
    if kind is Described:
        layout: Layout = values["layout"]
        for block in layout.blocks:
            totals = sum(part.params for part in block.parts), sum(part.buffers for part in block.parts)
            expect(totals == (block.params, block.buffers), f"Described: layout: {block.name}: layers", totals)
        keys = [part.key for block in layout.blocks for part in block.parts]
        expect(len(set(layout.names)) == len(layout), "Described: layout: a block twice", list(layout.names))
        expect(len(set(keys)) == len(keys), "Described: layout: a layer twice", keys)
    return values


def _uploads(
    entries: Sequence[TensorSpec], frames: Sequence[Buffer], count: int
) -> tuple[list[Payload], list[EncodedVectors]]:
    """The vectors of each update, all with these entries. WireError for frames of another length or number."""
    if len(frames) != (count if entries else 0):
        raise WireError(f"Updates: {count if entries else 0} frames announced, {len(frames)} received")
    expect(count * len(entries) <= MAX_BATCH_VECTORS, "Updates: vectors", count * len(entries))
    has_frames = any(entry.dtype == UINT8 for entry in entries)
    ends = np.cumsum([entry.nbytes for entry in entries]).tolist()
    payloads: list[Payload] = []
    encoded: list[EncodedVectors] = []
    for frame in frames:
        if memoryview(frame).nbytes != ends[-1]:
            got = memoryview(frame).nbytes
            raise WireError(f"Updates: {ends[-1]} bytes announced, a frame of {got} came")
        whole = np.frombuffer(frame, np.uint8)
        whole = whole if whole.ctypes.data % FLOAT32.alignment == 0 else whole.copy()
        payload: Payload = {}
        by_slot: EncodedVectors = {}
        for entry, end in zip(entries, ends, strict=True):
            part = whole[end - entry.nbytes : end]
            if entry.dtype == UINT8:
                by_slot.setdefault(entry.slot, {})[entry.key] = part
            else:
                payload.setdefault(entry.slot, {})[entry.key] = Vector(part.view(FLOAT32))
        payloads.append(payload)
        encoded.append(by_slot)
    return payloads, encoded if has_frames else []


def _compose(
    kind: type[Message], values: dict[str, Any], entries: Sequence[TensorSpec], arrays: Sequence[NDArray[Any]]
) -> Message:
    """The message of its fields, and of the arrays of its frames."""
    by_slot: dict[str, dict[str, NDArray[Any]]] = {}
    encoded: EncodedVectors = {}
    for entry, array in zip(entries, arrays, strict=True):
        (encoded if entry.dtype == UINT8 else by_slot).setdefault(entry.slot, {})[entry.key] = array
    if kind is PartialSum:
        return PartialSum(**values, totals=by_slot)
    described = by_slot.pop(DESCRIPTION, {}) if kind is Described else {}
    versions = {(entry.slot, entry.key): entry.version for entry in entries if entry.version != UNNAMED}
    payload = {
        slot: {key: Vector(array, versions.get((slot, key))) for key, array in by_key.items()}
        for slot, by_key in by_slot.items()
    }
    if kind is Described:
        return Described(_description(values, described), payload)
    if kind is Tensors:
        return Tensors(tuple(vector for _, _, vector in vectors(payload)))
    if kind in (Train, Visits, Update, Evaluate, Score, ClientState):
        values["payload"] = payload
        if kind is Update:
            values["encoded"] = encoded
    elif entries:
        raise WireError(f"{kind.__name__} carries no frames, but {len(entries)} came")
    return kind(**values)


def _description(values: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> ModelProfile:
    expect(arrays.keys() == ARRAYS.keys(), "Described: arrays", sorted(arrays))
    blocks, classes, clients = len(values["layout"]), values["classes"], len(arrays["samples"])
    wanted = {
        "flops": (blocks, PASS_TYPES),
        "activations": (blocks,),
        "samples": (clients,),
        "histogram": (clients, classes),
        "test_samples": (clients,),
        "validation_samples": (clients,),
        "variants": (len(arrays["variants"]) // max(blocks, 1) * blocks, PASS_TYPES),
        "operations": (len(KINDS) if arrays["operations"].size else 0, 2),
        "outputs": (blocks if arrays["outputs"].size else 0, 3),
        "unit_blocks": (len(arrays["unit_blocks"]),),
        "frozen": (blocks if len(arrays["frozen"]) else 0,),
        "cuts": (blocks if len(arrays["cuts"]) else 0,),
        "unit_flops": (len(arrays["unit_blocks"]), PASS_TYPES),
        "part_flops": (len(values["rates"]) * blocks, PASS_TYPES),
        "part_activations": (len(values["rates"]) * blocks,),
        "part_operations": (len(values["rates"]) * len(arrays["operations"]), 2),
    }
    for name, array in arrays.items():
        # a model described without its data has no clients, and its histogram no columns to count
        uncounted = name == "histogram" and clients == 0 and array.size == 0
        fits = array.dtype.str == ARRAYS[name] and (array.shape == wanted[name] or uncounted)
        expect(fits, f"Described: {name}", (array.dtype.str, array.shape))
        wrong = array[~((array >= 0) & (array < np.inf))]
        expect(wrong.size == 0, f"Described: {name}", wrong[:1].tolist())
    for name, count in (("client_names", clients), ("class_names", classes), ("data_notes", None)):
        expect(count is None or len(values[name]) in (0, count), f"Described: {name}", len(values[name]))
        expect(all(map(str.isprintable, values[name])), f"Described: {name}", values[name])
    beyond = arrays["unit_blocks"][arrays["unit_blocks"] >= blocks]
    expect(beyond.size == 0, "Described: unit_blocks", beyond[:1].tolist())
    return ModelProfile(**(values | arrays))


def _held(entry: TensorSpec, held: Mapping[bytes, Vector]) -> NDArray[Any]:
    slot, key, version, dtype, shape, _, _ = entry
    vector = held.get(version)
    if vector is None:
        raise WireError(f"entry {slot}/{key}: version {version.hex()} is not held here")
    if (dtype, shape) != (FLOAT32, vector.data.shape):
        raise WireError(f"entry {slot}/{key}: {dtype} of shape {shape}, but version {version.hex()} is not")
    return vector.data
