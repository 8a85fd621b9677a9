"""Valid messages of every type, and what can be wrong with them. The same seed gives the same mutations.

A mutation changes one thing of a message that knows its own structure: a node of the envelope or of the header (any
field, any part of an entry), the frames, the parts, or the packed bytes. Some nodes become bombs: few bytes that ask
for much memory.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import msgpack

from edge.protocol import messages, serialization
from edge.protocol.config import DataConfig, Job, ModelConfig, ModelProfile, TrainConfig
from edge.protocol.payload import BlockShape, EncodedVectors, Layout, Payload, Vector

RUN = "run-1"
WORKER = "worker-0-00ff"
Parts = list[bytes]
"""Envelope, header and frames of one message."""

JOB = Job(
    run_id=RUN,
    seed=1,
    device="cpu",
    cache="",
    model=ModelConfig("toy"),
    data=DataConfig("digits", clients=3),
    train=TrainConfig(),
    objective="nowhere:Nothing",
    options_values={"lambda1": 0.5, "pathways": [1, 2]},
    up=("a", "b"),
)
COUNTS = np.array([5, 7])
DESCRIPTION = ModelProfile(
    layout=Layout((BlockShape("a", 3, 1), BlockShape("b", 1))),
    family="toy",
    flops=np.ones((2, 4)),
    activations=np.ones(2),
    data_sha256="00ff",
    data_source="made up",
    class_names=("cat", "dog"),
    data_notes=("made up",),
    classes=2,
    test_count=10,
    samples=COUNTS,
    histogram=np.array([[2, 3], [3, 4]]),
    test_samples=COUNTS,
)


def payload(value: float = 1.0) -> Payload:
    """Two vectors of three numbers and of one."""
    return {"model": {"a": Vector(np.full(3, value, np.float32)), "b": Vector(np.full(1, value + 1, np.float32))}}


def going_up() -> list[messages.Message]:
    """One of each type that a worker sends."""
    return [
        messages.Hello(),
        messages.Capacity(1),
        messages.Pong(),
        messages.Described(DESCRIPTION, payload()),
        messages.Update(1, 5, {"loss": 0.5, "steps": 3.0}, payload()),
        messages.Update(1, 5, {"loss": 0.5}, {}),
        messages.Update(1, 5, {"loss": 0.5}, {"model": {"b": Vector(np.ones(1, np.float32))}}, {}, frames(3)),
        messages.PartialSum(5, 2, {"model": {"a": np.array([1, -(2**40), 3]), "b": np.array([7])}}),
        messages.Score(0, messages.GLOBAL, {messages.CORRECT: (3, 4), messages.CROSS_ENTROPY: (1.5, 4)}),
        messages.Error("ValueError", "that cannot be trained"),
        messages.ClientState(1, payload()),
        messages.FetchFile("0f" * 32, 1 << 19),
        messages.Updates([5, 7], [5, 7], [5, 7], [2.5, 3.5], {"loss": [1.25, 1.75]}, {}, [payload(), payload(2.0)]),
        messages.Updates(
            [5, 7], [5, 7], [5, 7], [2.5, 3.5], {"loss": [1.25, 1.75]}, {}, [{}, {}], [frames(7), frames(7)]
        ),
    ]


def frames(nbytes: int) -> EncodedVectors:
    """What a codec could have made of a vector."""
    return {"model": {"a": np.arange(nbytes, dtype=np.uint8)}}


def going_down() -> list[messages.Message]:
    """One of each type that a coordinator sends, but for `BYE`, which ends who gets it."""
    return [
        messages.Welcome(JOB),
        messages.Ping(),
        messages.Describe(True),
        messages.Tensors(tuple(payload()["model"].values())),
        messages.MappedTensors("/dev/shm/fedbr-", {"0f" * 16: 3}),
        messages.Train(1, 5, 0.1, {"act": 0}, payload()),
        messages.Evaluate(0, 4, messages.GLOBAL, payload()),
        messages.FetchPartial(5),
        messages.Cancel(),
        messages.ClientState(1, payload()),
        messages.FilePart("0f" * 32, 1 << 19, b"some of it"),
        messages.Visits(
            [5, 7], [5, 7], [5, 7], [0.625, 0.875], [0.625, 0.875], [None, "1"], ["2", None], {"act": [0, 0]}, payload()
        ),
    ]


BYE = messages.Shutdown("its message was refused: the envelope names worker-1-00ff")


def one_of_each() -> list[messages.Message]:
    """One of each type, whoever sends it."""
    return [*going_up(), *going_down(), BYE]


def run_of(message: messages.Message) -> str:
    """The run id that it bears."""
    return messages.NO_RUN if isinstance(message, messages.Hello | messages.Welcome) else RUN


def pack(
    message: messages.Message,
    envelope: serialization.Envelope | None = None,
    frames: bool = True,
    run_id: str | None = None,
) -> Parts:
    """A message as its parts; without ``frames``, as a task whose vectors went ahead; or with the wrong ``run_id``."""
    encoded = serialization.encode(message, run_of(message) if run_id is None else run_id)
    envelope = envelope or serialization.Envelope(WORKER, 3, "state/1", None, (b"v" * 16,), 0.5, 0.25, (1,), "")
    return [envelope.pack(), encoded.header, *map(bytes, encoded.frames if frames else ())]


def put(*path: object) -> Callable[[Any], None]:
    """Sets a value of an unpacked header: its place, step by step, and the value."""
    *steps, last, value = path

    def edit(header: Any) -> None:
        for step in steps:
            header = header[step]
        header[last] = value

    return edit


def refusal(
    message: messages.Message, edit: Callable[[Any], object] = lambda header: None, frames: list[bytes] | None = None
) -> str:
    """Encode, edit the unpacked header, and return what decode says about it."""
    encoded = serialization.encode(message, RUN)
    unpacked = msgpack.decode(encoded.header)
    edit(unpacked)
    with pytest.raises(messages.WireError) as refused:
        serialization.decode(msgpack.encode(unpacked), encoded.frames if frames is None else frames, RUN)
    return str(refused.value)


def mutate(draw: random.Random, parts: Sequence[bytes]) -> Parts:
    """The parts of a message with one to three things changed; by chance the message may still be a valid one."""
    changed = list(parts)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        changed = draw.choice(_WAYS)(draw, changed)
    return changed


def noise(draw: random.Random) -> Parts:
    """Random bytes in a random number of parts."""
    return [draw.randbytes(draw.choice((0, 1, 3, 8, 40, 400))) for _ in range(draw.randrange(5))]


# --- nodes of envelope and header ---------------------------------------------------------------------------------

RAW = b"(raw %d)"
"""Stands in a tree for packed bytes that msgpack would not pack."""
INTS = (0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, -1.0, 1e308, float("nan"), float("inf"), float("-inf"))
ODD: tuple[Any, ...] = (
    *(None, True, False, *INTS, 2**64 - 1, *FLOATS),
    *(messages.NO_RUN, "x", "x" * 300, "x" * 4001, "\x00\n\x1b[31m", "model", "train", "<f8", "|O", RUN, "other-run"),
    *(b"", b"v" * 16, bytes(16), b"short"),
    *(struct.pack(">q", value) for value in INTS),
    *(struct.pack(">d", value) for value in FLOATS),
    *([], [[]], [1] * 9, {}, {"a": 1}, {"a": {}}),
)
BOMBS = (
    b"\xdd\xff\xff\xff\xff",  # lists, maps, texts and bytes that are announced and do not come
    b"\xdc\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdd\x00\x01\x00\x00" * 500,
    b"\x91" * 600 + b"\xc0",
    b"\x91" * 5000,
    b"\xdc\x08\x00" + b"\x90" * (1 << 11),
    b"\xdc\x10\x00" + (b"\x98" + b"\x90" * 8) * (1 << 12),
    b"\xa2\xff\xfe",  # not UTF-8
    b"\xc1",
    b"\xd6\xff\x00\x00\x00\x00",  # a time stamp
    b"\xc7\x08\x05" + bytes(8),
    b"\x82\xa1a\x01\xa1a\x02",  # a name twice
    b"\x81\x01\x01",  # a number for a name
    b"\xcf" + b"\xff" * 8,
)
Place = tuple[Any, Any]
"""A list or a map, and the index or the name of one item."""


def _places(tree: Any) -> list[Place]:
    found: list[Place] = []
    keys = tree.keys() if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        found += [(tree, key), *_places(tree[key])]
    return found


def _edit(draw: random.Random, tree: Any) -> bytes:
    """One node replaced, left out, sent twice, joined by another, or swapped with one."""
    places, bomb = _places(tree), b""
    if not places:
        return _packed(draw.choice(ODD))
    where, key = draw.choice(places)
    match draw.randrange(7):
        case 0 | 1:
            where[key] = draw.choice(ODD)
        case 2:
            where[key], bomb = RAW, draw.choice(BOMBS)
        case 3:
            del where[key]
        case 4 if isinstance(where, list):
            where.insert(key, where[key])
        case 5 if isinstance(where, list):
            other = draw.randrange(len(where))
            where[key], where[other] = where[other], where[key]
        case _ if isinstance(where, dict):
            where[draw.choice(("extra", "client", ""))] = draw.choice(ODD)
        case _:
            where.append(draw.choice(ODD))
    return _packed(tree).replace(_packed(RAW), bomb)


def _packed(tree: Any) -> bytes:
    return msgpack.encode(tree)


def _edit_part(draw: random.Random, parts: Parts, index: int) -> Parts:
    try:
        tree = msgpack.decode(parts[index])
    except (IndexError, RecursionError, UnicodeDecodeError, msgspec.DecodeError):  # mutated before
        return parts
    return [*parts[:index], _edit(draw, tree), *parts[index + 1 :]]


# --- frames, parts, bytes -----------------------------------------------------------------------------------------


def _frame(draw: random.Random, parts: Parts) -> Parts:
    if len(parts) < 3:
        return [*parts, draw.randbytes(12)]
    index = draw.randrange(2, len(parts))
    frame = parts[index]
    others = {
        "short": frame[:-1],
        "long": frame + b"\0\0\0\0",
        "shifted": frame[1:] + b"\0",
        "empty": b"",
        "other": draw.randbytes(len(frame)),
        "not a number": struct.pack("<f", float("nan")) * (len(frame) // 4),
    }
    return [*parts[:index], draw.choice(list(others.values())), *parts[index + 1 :]]


def _parts(draw: random.Random, parts: Parts) -> Parts:
    """One left out or sent twice, all of them shuffled, or the last ones cut off."""
    index = draw.randrange(len(parts) + 1)
    changed = [parts[:index] + parts[index + 1 :], parts[: index + 1] + parts[index:], parts[:index]]
    return draw.choice([*changed, draw.sample(parts, len(parts))])


def _bytes(draw: random.Random, parts: Parts) -> Parts:
    if not parts:
        return parts
    index = draw.randrange(min(2, len(parts)))
    raw = bytearray(parts[index])
    where = draw.randrange(len(raw) + 1)
    match draw.randrange(4):
        case 0:
            raw[where : where + 1] = draw.randbytes(1)
        case 1:
            del raw[where : where + draw.randint(1, 9)]
        case 2:
            raw[where:where] = draw.randbytes(draw.randint(1, 9))
        case _:
            del raw[where:]
    return [*parts[:index], bytes(raw), *parts[index + 1 :]]


_Way = Callable[[random.Random, Parts], Parts]
_WAYS: tuple[_Way, ...] = (
    *(partial(_edit_part, index=1),) * 6,
    *(partial(_edit_part, index=0),) * 3,
    *(_frame,) * 2,
    _bytes,
    *(_parts,) * 4,
)
