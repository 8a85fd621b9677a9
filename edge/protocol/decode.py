"""From a header and its frames to a message, or to the reason why it is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edge.protocol.config import Description
from edge.protocol.limits import Buffer, split
from edge.protocol.message_fields import ARRAYS, DESCRIPTION, NAMES, PROTOCOL, TYPES
from edge.protocol.messages import (
    Blocks,
    Described,
    Evaluate,
    Kept,
    Message,
    Sums,
    Totals,
    Train,
    Update,
    WireError,
    require,
)
from edge.protocol.payload import KINDS, Payload, Vector, vectors
from edge.protocol.tensor_specs import FLOAT32, MAX_KEPT_NBYTES, UNNAMED, Entry, parse_entries, read


def decode(
    header: Buffer, frames: Sequence[Buffer], run_id: str, held: Mapping[bytes, Vector] | None = None
) -> Message:
    """The message of a header and its frames; vectors are views of the frames, not copies.

    With ``held`` (version -> vector), the vectors of `Train` and `Evaluate` are found there instead of in ``frames``.
    Raises `WireError` for anything that does not follow the protocol.
    """
    protocol, name, sender_run_id, fields, packed_entries = split(header)
    require(type(protocol) is int and protocol == PROTOCOL, "protocol", protocol)
    require(isinstance(name, str) and name in TYPES, "message type", name)
    require(sender_run_id == run_id, f"run id (this is {run_id})", sender_run_id)
    kind, codecs = TYPES[name]
    if not isinstance(fields, dict) or fields.keys() != codecs.keys():
        raise WireError(f"{name}: fields {repr(fields)[:100]}, not {', '.join(codecs) or 'none'}")
    values = {key: codec.unpack(fields[key], f"{name}: {key}") for key, codec in codecs.items()}
    parse = parse_entries if len(packed_entries) <= MAX_KEPT_NBYTES else parse_entries.__wrapped__
    entries = parse(packed_entries, name)
    if held is not None and kind in (Train, Evaluate):
        require(len(frames) == 0, f"{name}: frames beside held blocks", len(frames))
        return _compose(kind, values, entries, [_find(entry, held) for entry in entries])
    if len(frames) != len(entries):
        raise WireError(f"{name}: {len(entries)} frames announced, {len(frames)} received")
    arrays = [read(entry, frame, kind is Kept) for entry, frame in zip(entries, frames, strict=True)]
    return _compose(kind, values, entries, arrays)


def _compose(kind: type, values: dict[str, Any], entries: Sequence[Entry], arrays: Sequence[NDArray[Any]]) -> Message:
    if kind is Sums:
        return Sums(**values, totals=_totals(entries, arrays))
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
    if kind is Blocks:
        return Blocks(tuple(vector for _, _, vector in vectors(payload)))
    if kind in (Train, Update, Evaluate, Kept):
        values["payload"] = payload
    elif entries:
        raise WireError(f"{NAMES[kind]} carries no frames, but {len(entries)} came")
    return cast(Message, kind(**values))


def _totals(entries: Sequence[Entry], arrays: Sequence[NDArray[Any]]) -> Totals:
    totals: Totals = {}
    for entry, array in zip(entries, arrays, strict=True):
        totals.setdefault(entry.slot, {})[entry.key] = array
    return totals


def _description(values: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Description:
    require(arrays.keys() == ARRAYS.keys(), "described: arrays", sorted(arrays))
    for name in ("classes", "test_count"):
        require(values[name] >= 0, f"described: {name}", values[name])
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
        fits = array.dtype.str == ARRAYS[name] and (array.shape == wanted[name] or uncounted)
        require(fits, f"described: {name}", (array.dtype.str, array.shape))
        wrong = array[~((array >= 0) & (array < np.inf))]
        require(wrong.size == 0, f"described: {name}", wrong[:1].tolist())
    return Description(**(values | arrays))


def _find(entry: Entry, held: Mapping[bytes, Vector]) -> NDArray[Any]:
    slot, key, version, dtype, shape, _, _ = entry
    vector = held.get(version)
    if vector is None:
        raise WireError(f"entry {slot}/{key}: version {version.hex()} is not held here")
    if (dtype, shape) != (FLOAT32, vector.data.shape):
        raise WireError(f"entry {slot}/{key}: {dtype} of shape {shape}, but version {version.hex()} is not")
    return vector.data
