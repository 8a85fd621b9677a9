"""The protocol: message types, their canonical encoding, and their validation. Never a socket, never torch.

On a socket a message is ``[envelope, header, frame...]``, each one part of a multipart message.

*Header* (charged). msgpack of ``[protocol, type, run id, {field: value}, [entry...]]``. Every number is packed in a
form whose length does not depend on its value: integers and floats as 8 bytes, big-endian, in a msgpack ``bin``, and a
float where an integer may stand, which is in ``choice`` alone, in the extension of type 0, which is as long; so the
length of a header follows from names and shapes alone, and `train_nbytes` and `update_nbytes` give it before a message
exists. One *entry* per frame: ``[slot, key, version, dtype, shape, nbytes, checksum]``; version is the 16 bytes of
`Vector.version` for vectors that go down and zeros for those that go up; checksum is the CRC-32 of the frame, zero when
unused.

*Frames* (charged). The raw little-endian numbers of one vector each, in the order of the entries.

*Envelope* (not charged). What only the transport needs; see `Envelope`.

``train``, ``visits`` and ``evaluate`` travel as envelope + header alone. The frames that their entries name are sent
ahead of them in a ``blocks`` message, each version once per worker, and are found again by version. All other messages
have their frames, of float32 numbers but for the arrays of ``described`` and for ``sums``, which are int64.

Visits that need the same vectors travel together, as the columns of one ``visits``, and updates with the same numbers
as those of one ``updates``, which has one frame per update, with all its vectors. Each visit is charged for the train
and the update that it would be alone: what passes between two processes of the simulator is not what the simulated
client sends.

A worker that the coordinator has started finds long vectors in files in memory instead, which ``mapped`` names: all
workers of a machine map the same. A worker skips a version whose file is gone, since its tasks are cancelled then.

``kept`` (not charged) is client state, for remote workers, which do not reach the files that an envelope names. It has
the sequence of its task. If the envelope of a task names a file to read, a kept is sent right ahead of the task; if it
names one to write, a kept is sent right ahead of the update, and is on the coordinator's disk before that update is
handled. No kept is sent to the worker that sent the kept of the same name, by which it finds its own copy; if it has
none, it answers with an error of the kind MissingStateError, and gets kept and task again. For a remote worker these
names are never paths. Every frame of a kept has its checksum.

``fetch`` and ``part`` (not charged) bring files that the job lists to a remote worker that lacks them, before it is
ready. A part is in the header. It is followed by a ping, since the worker ignores those that come during a transfer.

    worker                         coordinator
    hello                     ->
                              <-   welcome (job), ping
    [fetch]                   ->
                              <-   [part, ping]
    pong (ready for a task)   ->
                              <-   describe | [mapped] [blocks] [kept] train | [mapped] [blocks] visits
                              <-   [mapped] [blocks] [kept] evaluate
    described | [kept] update | updates | score | error   ->
                              <-   collect
    sums | error              ->
    capacity                  ->
                              <-   cancel (with a task's sequence)
    pong (with the task's sequence: it is not queued any more)   ->
                              <-   bye

A hello says how many tasks are done at a time: one, or as many as a node agent has workers. If workers of the agent
leave for lack of memory, a capacity says how many remain; it may only fall. A hello and its welcome
have no run id (`edge.protocol.messages.NO_RUN`), since a worker learns the run from the job.

A worker may be sent further tasks before it has answered the first. It does them in the order in which they came, and
reads new messages after each task. A bye ends it at once.

If the envelope of a train has an aggregation weight, the answer is an update without vectors: the worker has added them
to its partial sum of that round (`edge.protocol.fixed_point`), which it sends, and empties, after a collect. It has the
sum of one round at a time. An update that cannot be added is sent whole. A collect belongs to no task, and is queued
behind the tasks.

After an error of the kind OutOfMemoryError a worker may be retired; the envelopes of later tasks tell the others its
slot.

A message that is invalid (size, type, range, length against frame, run id, missing or extra field) is a `WireError`: it
is refused, counted, and logged with its reason, at most once a second, and changes nothing. A worker answers it with an
error of the kind WireError, with the message's sequence if that could be read, so that its task fails and is not waited
for. A coordinator ignores messages of unknown senders, and ends a worker whose message was refused, or that answers a
task which is not assigned to it, or answers twice; its tasks are requeued. A local worker's process is ended, a remote
worker gets a bye with the reason. So does a remote worker whose kept was not requested, has other vectors than the
client keeps, or is not followed by its update; and one whose update comes without it. The content of a frame is checked
only if its entry has a checksum.

`encode` gives the header and frames of a message, `train_nbytes` and `update_nbytes` their length before a message
exists; `decode` gives the message of a header and frames, or raises a `WireError`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edge.protocol.config import ModelProfile
from edge.protocol.envelope import Envelope
from edge.protocol.limits import MAX_HEADER_NBYTES, Buffer, packb, packed_list, split
from edge.protocol.message_fields import ARRAYS, DESCRIPTION, NAMES, PROTOCOL, TYPES, pack_int
from edge.protocol.messages import (
    MAX_BATCH_VECTORS,
    ClientState,
    Described,
    Evaluate,
    Message,
    PartialSum,
    Score,
    Tensors,
    Totals,
    Train,
    Update,
    Updates,
    Visits,
    WireError,
    expect,
    shown,
)
from edge.protocol.operations import KINDS
from edge.protocol.payload import ITEM_NBYTES, PASS_TYPES, Floats, Payload, Shapes, Vector, vectors
from edge.protocol.tensor_specs import (
    FLOAT32,
    INT64,
    MAX_CACHED_NBYTES,
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
    "pack_tensor_specs",
    "train_nbytes",
    "update_nbytes",
]


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
        return _encode_updates(message, run_id)
    frames = _frames(message)
    raw = tuple(frame.array.reshape(-1).data.cast("B") for frame in frames)
    entries = pack_all(frames, map(zlib.crc32, raw) if checksum or isinstance(message, ClientState) else repeat(0))
    return Encoded(encode_header(message, run_id, entries), raw)


def _encode_updates(message: Updates, run_id: str) -> Encoded:
    """One frame per upload, with all its vectors; the entries are those of one upload."""
    uploads = [[vector.data for _, _, vector in vectors(payload)] for payload in message.payloads]
    raw = tuple(_joined(upload).data.cast("B") for upload in uploads if upload)
    entries = pack_all(_up(message.payloads[0]) if message.payloads else [], repeat(0))
    return Encoded(encode_header(message, run_id, entries), raw)


def _joined(upload: Sequence[Floats]) -> Floats:
    """The vectors of one upload, one after the other; no copy if they are all that there is of one array."""
    whole = upload[0].base
    if isinstance(whole, np.ndarray) and whole.nbytes == sum(numbers.nbytes for numbers in upload):
        return whole
    return np.concatenate(upload)


def pack_tensor_specs(payload: Payload) -> TensorSpecs:
    """The entries of vectors that go down, for many headers."""
    return pack_all(_down(payload), repeat(0))


def encode_header(message: Message, run_id: str, entries: TensorSpecs) -> bytes:
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
    entries = [pack_tensor_spec(slot, key, UNNAMED, "<f4", (size,), 0) for slot, key, size in sizes]
    return len(_header(name, run_id, fields, packed_list(entries))) + ITEM_NBYTES * sum(size for _, _, size in sizes)


def _header(name: str, run_id: str, fields: Mapping[str, object], packed_entries: bytes) -> bytes:
    """A list of five."""
    return packed_list([*map(packb, (PROTOCOL, name, run_id, fields)), packed_entries])


def _frames(message: Message) -> list[Frame]:
    if isinstance(message, Train | Visits | Evaluate):
        return _down(message.payload)
    if isinstance(message, Tensors):
        return [Frame("", vector.version.hex(), vector.version, vector.data) for vector in message.vectors]
    if isinstance(message, PartialSum):
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
    if isinstance(message, Described | Update | Score | ClientState):
        frames += _up(message.payload)
    return frames


def _up(payload: Payload) -> list[Frame]:
    """Of vectors that are used once: a content hash of them would be computed for nobody."""
    return [Frame(slot, key, UNNAMED, vector.data) for slot, key, vector in vectors(payload)]


def _down(payload: Payload) -> list[Frame]:
    return [Frame(slot, key, vector.version, vector.data) for slot, key, vector in vectors(payload)]


def decode(
    header: Buffer, frames: Sequence[Buffer], run_id: str, held: Mapping[bytes, Vector] | None = None
) -> Message:
    """The message of a header and its frames; vectors are views of the frames, not copies.

    With ``held`` (version -> vector), the vectors of `Train` and `Evaluate` are found there instead of in ``frames``.
    Raises `WireError` for anything that does not follow the protocol.
    """
    protocol, name, sender_run_id, fields, packed_entries = split(header)
    expect(type(protocol) is int and protocol == PROTOCOL, "protocol", protocol)
    expect(isinstance(name, str) and name in TYPES, "message type", name)
    expect(sender_run_id == run_id, f"run id (this is {run_id})", sender_run_id)
    kind, codecs = TYPES[name]
    if not isinstance(fields, dict) or fields.keys() != codecs.keys():
        raise WireError(f"{name}: fields {shown(fields)}, not {', '.join(codecs) or 'none'}")
    values = {key: codec.unpack(fields[key], f"{name}: {key}") for key, codec in codecs.items()}
    parse = parse_tensor_specs if len(packed_entries) <= MAX_CACHED_NBYTES else parse_tensor_specs.__wrapped__
    entries = parse(packed_entries, name)
    if kind is Updates:
        return Updates(**values, payloads=_uploads(entries, frames, len(values["sequences"])))
    if held is not None and kind in (Train, Visits, Evaluate):
        expect(len(frames) == 0, f"{name}: frames beside held blocks", len(frames))
        return _compose(kind, values, entries, [_find(entry, held) for entry in entries])
    if len(frames) != len(entries):
        raise WireError(f"{name}: {len(entries)} frames announced, {len(frames)} received")
    arrays = [read(entry, frame, kind is ClientState) for entry, frame in zip(entries, frames, strict=True)]
    return _compose(kind, values, entries, arrays)


def _uploads(entries: Sequence[TensorSpec], frames: Sequence[Buffer], count: int) -> list[Payload]:
    """The vectors of each update, all with these entries. WireError for frames of another length or number."""
    if len(frames) != (count if entries else 0):
        raise WireError(f"updates: {count if entries else 0} frames announced, {len(frames)} received")
    expect(count * len(entries) <= MAX_BATCH_VECTORS, "updates: vectors", count * len(entries))
    ends = np.cumsum([entry.shape[0] for entry in entries]).tolist()
    payloads: list[Payload] = []
    for frame in frames:
        if memoryview(frame).nbytes != ITEM_NBYTES * ends[-1]:
            got = memoryview(frame).nbytes
            raise WireError(f"updates: {ITEM_NBYTES * ends[-1]} bytes announced, a frame of {got} came")
        numbers = np.frombuffer(frame, FLOAT32)
        numbers = numbers if numbers.flags.aligned else numbers.copy()
        payload: Payload = {}
        for entry, end in zip(entries, ends, strict=True):
            payload.setdefault(entry.slot, {})[entry.key] = Vector(numbers[end - entry.shape[0] : end])
        payloads.append(payload)
    return payloads


def _compose(
    kind: type, values: dict[str, Any], entries: Sequence[TensorSpec], arrays: Sequence[NDArray[Any]]
) -> Message:
    if kind is PartialSum:
        return PartialSum(**values, totals=_totals(entries, arrays))
    payload: Payload = {}
    described: dict[str, NDArray[Any]] = {}
    for entry, array in zip(entries, arrays, strict=True):
        if kind is Described and entry.slot == DESCRIPTION:
            described[entry.key] = array
            continue
        vector = Vector(array, entry.version if entry.version != UNNAMED else None)
        payload.setdefault(entry.slot, {})[entry.key] = vector
    if kind is Described:
        return Described(_description(values, described), payload)
    if kind is Tensors:
        return Tensors(tuple(vector for _, _, vector in vectors(payload)))
    if kind in (Train, Visits, Update, Evaluate, Score, ClientState):
        values["payload"] = payload
    elif entries:
        raise WireError(f"{NAMES[kind]} carries no frames, but {len(entries)} came")
    return cast(Message, kind(**values))


def _totals(entries: Sequence[TensorSpec], arrays: Sequence[NDArray[Any]]) -> Totals:
    totals: Totals = {}
    for entry, array in zip(entries, arrays, strict=True):
        totals.setdefault(entry.slot, {})[entry.key] = array
    return totals


def _description(values: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> ModelProfile:
    expect(arrays.keys() == ARRAYS.keys(), "described: arrays", sorted(arrays))
    for name in ("classes", "test_count"):
        expect(values[name] >= 0, f"described: {name}", values[name])
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
        "unit_flops": (len(arrays["unit_blocks"]), PASS_TYPES),
    }
    for name, array in arrays.items():
        # a model described without its data has no clients, and its histogram no columns to count
        uncounted = name == "histogram" and clients == 0 and array.size == 0
        fits = array.dtype.str == ARRAYS[name] and (array.shape == wanted[name] or uncounted)
        expect(fits, f"described: {name}", (array.dtype.str, array.shape))
        wrong = array[~((array >= 0) & (array < np.inf))]
        expect(wrong.size == 0, f"described: {name}", wrong[:1].tolist())
    beyond = arrays["unit_blocks"][arrays["unit_blocks"] >= blocks]
    expect(beyond.size == 0, "described: unit_blocks", beyond[:1].tolist())
    return ModelProfile(**(values | arrays))


def _find(entry: TensorSpec, held: Mapping[bytes, Vector]) -> NDArray[Any]:
    slot, key, version, dtype, shape, _, _ = entry
    vector = held.get(version)
    if vector is None:
        raise WireError(f"entry {slot}/{key}: version {version.hex()} is not held here")
    if (dtype, shape) != (FLOAT32, vector.data.shape):
        raise WireError(f"entry {slot}/{key}: {dtype} of shape {shape}, but version {version.hex()} is not")
    return vector.data
