"""The messages of a visit as records of Flower, for real devices: never a socket, never torch.

A ``Train`` is four records, an ``Update`` five:

    visit     client, round, lr; state_in and state_out, names of what the device keeps; choice/NAME   (ConfigRecord)
    vectors   SLOT|KEY -> float32 numbers that travel as they are                                      (ArrayRecord)
    frames    SLOT|KEY -> bytes that a codec has made of the others                                    (ArrayRecord)
    versions  SLOT|KEY -> of the frames of a download: the version, how many numbers, the one before   (ConfigRecord)

    update    client, round, seconds (of training and codecs)                                          (ConfigRecord)
    numbers, logged, vectors, frames

Records without entries are left out. What a device sends may be anything: each field is checked here, its meaning by
the validators of updates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, no_object_id_recompute
from numpy.typing import NDArray

from edge.protocol.client_state import SEPARATOR
from edge.protocol.codecs.update_codec import DownloadFrame
from edge.protocol.messages import MAX_ERROR_TEXT, Error, Train, Update, WireError
from edge.protocol.payload import VERSION_NBYTES, EncodedVectors, Payload, Vector, vectors
from edge.protocol.variant import split
from edge.protocol.wire import MAX_LENGTH, expect

JOIN = "query.join"
"""The message that gives a node the job of a run, and asks which client it is."""
TRAIN = "train"
CHOICE = "choice/"
SIZE_NBYTES = 8
MOST_EXAMPLES = 1 << 40
"""Examples of a class that one client may have"""
Frames = Mapping[tuple[str, str], DownloadFrame]
"""(slot, key) -> frame of a download"""


def train_records(task: Train, frames: Frames, state_in: str, state_out: str) -> RecordDict:
    """The records of a visit; vectors with a frame travel as that. ``state_in``, ``state_out``: '' for none."""
    visit: dict[str, int | float | str] = {"client": task.client, "round": task.round, "lr": task.lr}
    visit |= {"state_in": state_in, "state_out": state_out}
    visit |= {f"{CHOICE}{name}": value for name, value in {**task.choice, **task.variant.named()}.items()}
    raw: Payload = {}
    for slot, key, vector in vectors(task.payload):
        if (slot, key) not in frames:
            raw.setdefault(slot, {})[key] = vector
    versions = {
        _name(*place): frame.version + frame.size.to_bytes(SIZE_NBYTES) + frame.before
        for place, frame in frames.items()
    }
    return _without_empty(
        visit=ConfigRecord({**visit}),
        vectors=_vectors_record(raw),
        frames=ArrayRecord({_name(*place): Array(frame.frame) for place, frame in frames.items()}),
        versions=ConfigRecord({**versions}),
    )


def read_train(content: RecordDict) -> tuple[Train, dict[tuple[str, str], DownloadFrame], str, str]:
    """(the visit with the vectors that travelled as they are, frames of the others, state_in, state_out).

    WireError for records that `train_records` does not make.
    """
    visit = _config(content, "visit")
    numbers = {name.removeprefix(CHOICE): _number(visit, name) for name in visit if name.startswith(CHOICE)}
    choice, variant = split(numbers)
    client, round = _count(visit, "client"), _count(visit, "round")
    task = Train(client, round, _number(visit, "lr"), choice, _read_vectors(content), variant)
    frames, versions = {}, content.get("versions", ConfigRecord())
    for place, frame in _read_frames(content).items():
        packed = versions.get(_name(*place))
        fits = isinstance(packed, bytes) and len(packed) - SIZE_NBYTES in (VERSION_NBYTES, 2 * VERSION_NBYTES)
        expect(fits, f"versions: {_name(*place)}", packed)
        assert isinstance(packed, bytes)
        version, rest = packed[:VERSION_NBYTES], packed[VERSION_NBYTES:]
        size, before = int.from_bytes(rest[:SIZE_NBYTES]), rest[SIZE_NBYTES:]
        frames[place] = DownloadFrame(frame, before, version, size)
    return task, frames, _text(visit, "state_in"), _text(visit, "state_out")


def update_records(update: Update, seconds: float) -> RecordDict:
    """The records of the answer to a visit whose training took so many seconds."""
    encoded = {(slot, key): frame for slot, by_key in update.encoded.items() for key, frame in by_key.items()}
    return _without_empty(
        update=ConfigRecord({"client": update.client, "round": update.round, "seconds": seconds}),
        numbers=MetricRecord({**update.numbers}),
        logged=MetricRecord({**update.logged}),
        vectors=_vectors_record(update.payload),
        frames=ArrayRecord({_name(*place): Array(frame) for place, frame in encoded.items()}),
    )


def read_update(content: RecordDict) -> tuple[Update, float]:
    """(update, seconds of its training). WireError for what no device of ours sends, and for its `Error`."""
    _raise_error(content)
    fields = _config(content, "update")
    seconds = _number(fields, "seconds")
    expect(0 <= seconds < math.inf, "update: seconds", seconds)
    encoded: EncodedVectors = {}
    for (slot, key), frame in _read_frames(content).items():
        encoded.setdefault(slot, {})[key] = frame
    numbers, logged = _metrics(content, "numbers"), _metrics(content, "logged")
    client, round = _count(fields, "client"), _count(fields, "round")
    return Update(client, round, numbers, _read_vectors(content), logged, encoded), seconds


def _without_empty(**records: ArrayRecord | ConfigRecord | MetricRecord) -> RecordDict:
    """The records that hold anything, since each record of Flower is a request of its own in both directions."""
    return RecordDict({name: record for name, record in records.items() if record})


def join_records(job: bytes) -> RecordDict:
    """The job of a run (`edge.protocol.config.to_json`)."""
    return RecordDict({"job": ConfigRecord({"json": job})})


def read_join(content: RecordDict) -> bytes:
    """The job of `join_records`; WireError."""
    job = _config(content, "job").get("json")
    if not isinstance(job, bytes):
        raise WireError("the message has no job")
    return job


class Joined(NamedTuple):
    """The client that a node is, and what it holds."""

    client: int
    histogram: list[int]
    """Training examples of each class"""
    validation: int
    """Validation examples"""

    @property
    def examples(self) -> int:
        """Training examples."""
        return sum(self.histogram)


def joined_records(joined: Joined) -> RecordDict:
    """The answer to `join_records`."""
    return RecordDict({"joined": ConfigRecord({**joined._asdict()})})


def read_joined(content: RecordDict) -> Joined:
    """The records of `joined_records`; WireError, also for a node's `Error`."""
    _raise_error(content)
    fields = _config(content, "joined")
    histogram = fields.get("histogram")
    fits = isinstance(histogram, list) and all(type(count) is int and 0 <= count < MOST_EXAMPLES for count in histogram)
    expect(fits and len(histogram) <= MAX_LENGTH, "joined: histogram", histogram)  # type: ignore[arg-type]
    return Joined(_count(fields, "client"), histogram, _count(fields, "validation"))  # type: ignore[arg-type]


def error_records(error: Error) -> RecordDict:
    """An exception on a device, in place of any answer."""
    return RecordDict({"error": ConfigRecord({"kind": error.kind, "text": error.text, "traceback": error.traceback})})


def nbytes(message: Message) -> int:
    """Bytes of all distinct objects of a message, which is how Flower sends it."""
    with no_object_id_recompute():
        return sum(len(part.deflate()) for part in get_all_nested_objects(message).values())


def _raise_error(content: RecordDict) -> None:
    if "error" in content:
        error = _config(content, "error")
        raise WireError(f"{_text(error, 'kind')}: {_text(error, 'text')}"[:MAX_ERROR_TEXT])


def _vectors_record(payload: Payload) -> ArrayRecord:
    return ArrayRecord({_name(slot, key): Array(vector.data) for slot, key, vector in vectors(payload)})


def _name(slot: str, key: str) -> str:
    return f"{slot}{SEPARATOR}{key}"


def _arrays(content: RecordDict, record: str) -> dict[tuple[str, str], NDArray[Any]]:
    arrays = content.get(record, ArrayRecord())
    if not isinstance(arrays, ArrayRecord):
        raise WireError(f"{record}: no arrays")
    expect(len(arrays) <= MAX_LENGTH, f"{record}: arrays", len(arrays))
    by_place = {}
    for name, array in arrays.items():
        slot, separator, key = name.partition(SEPARATOR)
        expect(bool(separator), f"{record}: name", name)
        try:
            by_place[slot, key] = array.numpy()
        except (ValueError, TypeError, OSError, EOFError) as error:
            raise WireError(f"{record}: {name}: {error}") from error
    return by_place


def _read_vectors(content: RecordDict) -> Payload:
    payload: Payload = {}
    for (slot, key), array in _arrays(content, "vectors").items():
        expect(array.dtype == np.float32 and array.ndim == 1, f"vectors: {slot}/{key}", (array.dtype, array.shape))
        payload.setdefault(slot, {})[key] = Vector(np.ascontiguousarray(array, np.float32))
    return payload


def _read_frames(content: RecordDict) -> dict[tuple[str, str], NDArray[np.uint8]]:
    frames = {}
    for (slot, key), array in _arrays(content, "frames").items():
        expect(array.dtype == np.uint8 and array.ndim == 1, f"frames: {slot}/{key}", (array.dtype, array.shape))
        frames[slot, key] = np.ascontiguousarray(array, np.uint8).reshape(-1)
    return frames


def _config(content: RecordDict, record: str) -> ConfigRecord:
    fields = content.get(record)
    if not isinstance(fields, ConfigRecord):
        raise WireError(f"{record}: is missing")
    return fields


def _metrics(content: RecordDict, record: str) -> dict[str, float]:
    fields = content.get(record, MetricRecord())
    if not isinstance(fields, MetricRecord):
        raise WireError(f"{record}: no metrics")
    return {name: _number(fields, name) for name in fields}


def _number(fields: ConfigRecord | MetricRecord, name: str) -> int | float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WireError(f"{name}: {value!r:.100} is no number")
    return value


def _count(fields: ConfigRecord, name: str) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise WireError(f"{name}: {value!r:.100} is no count")
    return value


def _text(fields: ConfigRecord, name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise WireError(f"{name}: {value!r:.100} is no text")
    return value
