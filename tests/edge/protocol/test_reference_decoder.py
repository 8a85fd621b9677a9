"""Headers and envelopes are msgpack as its reference package reads and writes it, not only as msgspec does.

Both ways for one message of each type: the reference reads the literal fields that `edge.protocol.serialization`
describes, and what it packs of these is the same bytes, from which `decode` makes the same message.
"""

import hashlib
import struct
import zlib
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest
from msgspec import structs

from edge.protocol import messages, serialization
from edge.protocol.config import to_json
from edge.protocol.payload import Vector
from edge.protocol.variant import Variant
from tests.edge.protocol.mutations import DESCRIPTION, JOB, run_of

STEM, HEAD = struct.pack("<3f", 1, 2, 3), struct.pack("<f", 4)
STEM_VERSION, HEAD_VERSION = (hashlib.blake2b(raw, digest_size=16).digest() for raw in (STEM, HEAD))
VECTORS = {
    "model": {"stem": Vector(np.frombuffer(STEM, np.float32))},
    "teacher": {"head": Vector(np.frombuffer(HEAD, np.float32))},
}
SHA256 = "0f" * 32
CODES = np.array([7, 0, 255], np.uint8)


def whole(number: int) -> bytes:
    """An integer of a charged message, or of an entry."""
    return struct.pack(">q", number)


def real(number: float) -> msgpack.ExtType:
    """A float of a charged message."""
    return msgpack.ExtType(0, struct.pack(">d", number))


def entry(slot: str, key: str, version: bytes, dtype: str, shape: tuple[int, ...], checksum: int = 0) -> Any:
    nbytes = int(np.prod(shape)) * {"<f4": 4, "<f8": 8, "<i8": 8, "|u1": 1}[dtype]
    return (slot, key, version, dtype, tuple(map(whole, shape)), whole(nbytes), whole(checksum))


DOWN = (
    entry("model", "stem", STEM_VERSION, "<f4", (3,)),
    entry("teacher", "head", HEAD_VERSION, "<f4", (1,)),
)
UP = (entry("model", "stem", bytes(16), "<f4", (3,)), entry("teacher", "head", bytes(16), "<f4", (1,)))
CHECKED = (
    entry("model", "stem", bytes(16), "<f4", (3,), zlib.crc32(STEM)),
    entry("teacher", "head", bytes(16), "<f4", (1,), zlib.crc32(HEAD)),
)
ARRAYS = (
    ("flops", "<f8", (2, 4)),
    ("activations", "<f8", (2,)),
    ("samples", "<i8", (2,)),
    ("histogram", "<i8", (2, 2)),
    ("test_samples", "<i8", (2,)),
    ("validation_samples", "<i8", (2,)),
    ("variants", "<f8", (0, 4)),
    ("operations", "<f8", (0, 2)),
    ("outputs", "<f8", (0, 3)),
    ("unit_blocks", "<i8", (0,)),
    ("frozen", "<i8", (0,)),
    ("cuts", "<i8", (0,)),
    ("unit_flops", "<f8", (0, 4)),
    ("part_flops", "<f8", (0, 4)),
    ("part_activations", "<f8", (0,)),
    ("part_operations", "<f8", (0, 2)),
)


class Case(NamedTuple):
    """A message, and its header as plain values."""

    message: messages.Message
    fields: dict[str, Any]
    entries: tuple[Any, ...] = ()


CASES = [
    Case(messages.Hello(2), {"workers": 2}),
    Case(messages.Welcome(JOB), {"job": to_json(JOB)}),
    Case(messages.Ping(), {}),
    Case(messages.Pong(), {}),
    Case(messages.Capacity(3), {"workers": 3}),
    Case(messages.Describe(True), {"data": True}),
    Case(
        messages.Described(DESCRIPTION, VECTORS),
        {
            "layout": ((("a", 3, 1, ()), ("b", 1, 0, ())),),
            "family": "toy",
            "data_sha256": "00ff",
            "data_source": "made up",
            "classes": 2,
            "test_count": 10,
            "tensors": {},
            "axes": {},
            "rates": (),
            "label_words": 2,
            "client_names": (),
            "class_names": ("cat", "dog"),
            "baselines": (),
            "data_notes": ("made up",),
        },
        (*(entry("(description)", name, bytes(16), dtype, shape) for name, dtype, shape in ARRAYS), *UP),
    ),
    Case(
        messages.Tensors((VECTORS["model"]["stem"],)), {}, (entry("", STEM_VERSION.hex(), STEM_VERSION, "<f4", (3,)),)
    ),
    Case(
        messages.MappedTensors("/dev/shm/fedbr-", {STEM_VERSION.hex(): 3}),
        {"folder": "/dev/shm/fedbr-", "sizes": {STEM_VERSION.hex(): 3}},
    ),
    Case(messages.ClientState(7, VECTORS), {"client": 7}, CHECKED),
    Case(
        messages.Train(7, 300, 0.1, {"alpha": 2, "mu": -0.5}, VECTORS, Variant(rate=0.25, window=4)),
        {
            "client": whole(7),
            "round": whole(300),
            "lr": real(0.1),
            "choice": {"alpha": whole(2), "mu": real(-0.5), "rate": real(0.25), "window": whole(4)},
        },
        DOWN,
    ),
    Case(
        messages.Update(7, 300, {"loss": float("inf"), "steps": 4.0}, VECTORS),
        {"client": whole(7), "round": whole(300), "numbers": {"loss": real(float("inf")), "steps": real(4.0)}},
        UP,
    ),
    Case(
        messages.Update(7, 300, {}, {}, encoded={"model": {"stem": CODES}}),
        {"client": whole(7), "round": whole(300), "numbers": {}},
        (entry("model", "stem", bytes(16), "|u1", (3,)),),
    ),
    Case(
        messages.Visits([5, 6], [70, 80], [3, 3], [0.1, 0.2], [0.25, 0.75], [None, "1"], ["2", None], {}, VECTORS),
        {
            "sequences": (5, 6),
            "clients": (70, 80),
            "rounds": (3, 3),
            "lrs": (0.1, 0.2),
            "weights": (0.25, 0.75),
            "state_in": (None, "1"),
            "state_out": ("2", None),
            "choice": {},
        },
        DOWN,
    ),
    Case(
        messages.Updates(
            [5, 6], [70, 80], [3, 3], [2.5, 3.5], {"loss": [1.25, 0.5]}, {"gap": [-1.0, 2.0]}, [VECTORS] * 2
        ),
        {
            "sequences": (5, 6),
            "clients": (70, 80),
            "rounds": (3, 3),
            "seconds": (2.5, 3.5),
            "numbers": {"loss": (1.25, 0.5)},
            "logged": {"gap": (-1.0, 2.0)},
        },
        UP,
    ),
    Case(messages.FetchPartial(70_000), {"round": 70_000}),
    Case(
        messages.PartialSum(3, 2, {"model": {"stem": np.array([1, -(2**40), 3]), "head": np.array([2**62])}}),
        {"round": 3, "clients": 2},
        (entry("model", "stem", bytes(16), "<i8", (3,)), entry("model", "head", bytes(16), "<i8", (1,))),
    ),
    Case(
        messages.Evaluate(0, 500, messages.GLOBAL, VECTORS),
        {
            "start": 0,
            "stop": 500,
            "client": -1,
            "round": 0,
            "lr": 0.0,
            "choice": {},
            "split": "test",
        },
        DOWN,
    ),
    Case(
        messages.Score(0, 3, {messages.CORRECT: (3.0, 4), messages.EvaluatedQuantity("loss", "1", exit=2): (1.5, 4)}),
        {
            "start": 0,
            "client": 3,
            "values": {("accuracy", None, None, None, None): (3.0, 4), ("loss", "1", None, None, 2): (1.5, 4)},
        },
    ),
    Case(messages.Cancel(), {}),
    Case(
        messages.Error("ValueError", "a µ", "line 1\n"), {"kind": "ValueError", "text": "a µ", "traceback": "line 1\n"}
    ),
    Case(messages.FetchFile(SHA256, 1 << 19), {"sha256": SHA256, "offset": 524_288}),
    Case(messages.FilePart(SHA256, 0, b"\x00\xc1"), {"sha256": SHA256, "offset": 0, "content": b"\x00\xc1"}),
    Case(messages.Shutdown("late"), {"why": "late"}),
]
EACH_CASE = pytest.mark.parametrize(
    "case", CASES, ids=[f"{place}-{type(case.message).__name__}" for place, case in enumerate(CASES)]
)


def read(packed: bytes) -> Any:
    """The values of these bytes, lists as tuples; keys of maps may be lists."""
    return msgpack.unpackb(packed, use_list=False, strict_map_key=False)


def plain(value: Any) -> Any:
    """Nested fields with vectors and arrays as lists of numbers, to compare them."""
    if isinstance(value, Vector):
        return value.data.tolist()
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def test_no_type_of_message_is_left_out() -> None:
    assert {type(case.message).__name__ for case in CASES} == serialization.KINDS_OF_MESSAGES.keys()


@EACH_CASE
def test_the_reference_reads_the_literal_fields(case: Case) -> None:
    encoded = serialization.encode(case.message, run_of(case.message))
    protocol, kind, run_id, fields, entries = read(encoded.header)
    assert (protocol, kind, run_id) == (11, type(case.message).__name__, run_of(case.message))
    assert fields == case.fields
    assert entries == case.entries


@EACH_CASE
def test_the_reference_packs_the_same_bytes_and_these_become_the_same_message(case: Case) -> None:
    kind, run_id = type(case.message), run_of(case.message)
    encoded = serialization.encode(case.message, run_id)
    packed = msgpack.packb([11, kind.__name__, run_id, case.fields, case.entries])
    assert packed == encoded.header
    back = serialization.decode(packed, encoded.frames, run_id)
    assert type(back) is kind
    fields, expected = structs.asdict(back), structs.asdict(case.message)
    if isinstance(back, messages.Described):
        fields["description"], expected["description"] = vars(back.description), vars(DESCRIPTION)
    for name, value in expected.items():
        assert plain(fields[name]) == plain(value), name


def test_an_envelope_reads_as_the_reference_packs_it() -> None:
    plain_values = [
        *("worker-1-00ff", 9, "state/1", None, [b"v" * 16], 0.5, 0.25, [3, 0]),
        *("cuda:0: 1 MiB", {"gap": -1.0}),
    ]
    envelope = serialization.Envelope(
        "worker-1-00ff", 9, "state/1", None, (b"v" * 16,), 0.5, 0.25, (3, 0), "cuda:0: 1 MiB", {"gap": -1.0}
    )
    assert msgpack.unpackb(envelope.pack()) == plain_values
    assert serialization.Envelope.parse(msgpack.packb(plain_values)) == envelope


# Two messages as they were written in a run: the second round of FedBR (alpha = 1) on digits, client 1 of two.
# Of the blocks conv1 (40 numbers), conv2 (296), conv3 (584) and head (330), the head alone goes down.
RECORDED_TRAIN = bytes.fromhex(
    "950ba5547261696eb03632613738363530386463303166303884a6636c69656e74c4080000000000000001a5726f756e64c40800"
    "00000000000001a26c72d7003fb999999999999aa663686f69636582a5616c706861c4080000000000000001a466756c6cc40800"
    "000000000000009197a56d6f64656ca468656164c4109c701c8a11a5421ac583c2de9c0157c7a33c663491c40800000000000001"
    "4ac4080000000000000528c4080000000000000000"
)
RECORDED_UPDATE = bytes.fromhex(
    "950ba6557064617465b03632613738363530386463303166303883a6636c69656e74c4080000000000000001a5726f756e64c408"
    "0000000000000001a76e756d6265727385a46c6f7373d70040002da4e4de9bd3a773616d706c6573d7004086700000000000a573"
    "74657073d7004037000000000000a5666c6f7073d700419e85dc00000000a464726f70d7003fb0b5a08ba2e8c09497a56d6f6465"
    "6ca5636f6e7631c41000000000000000000000000000000000a33c663491c4080000000000000028c40800000000000000a0c408"
    "000000000000000097a56d6f64656ca5636f6e7632c41000000000000000000000000000000000a33c663491c408000000000000"
    "0128c40800000000000004a0c408000000000000000097a56d6f64656ca5636f6e7633c410000000000000000000000000000000"
    "00a33c663491c4080000000000000248c4080000000000000920c408000000000000000097a56d6f64656ca468656164c4100000"
    "0000000000000000000000000000a33c663491c408000000000000014ac4080000000000000528c4080000000000000000"
)


def test_the_reference_reads_what_a_run_has_sent() -> None:
    protocol, kind, run_id, fields, entries = read(RECORDED_TRAIN)
    assert (protocol, kind, run_id) == (11, "Train", "62a786508dc01f08")
    choice = {"alpha": whole(1), "full": whole(0)}
    assert fields == {"client": whole(1), "round": whole(1), "lr": real(0.1), "choice": choice}
    version = bytes.fromhex("9c701c8a11a5421ac583c2de9c0157c7")
    assert entries == (("model", "head", version, "<f4", (whole(330),), whole(1320), whole(0)),)
    protocol, kind, run_id, fields, entries = read(RECORDED_UPDATE)
    assert (protocol, kind, run_id, fields["client"], fields["round"]) == (
        *(11, "Update", "62a786508dc01f08"),
        *(whole(1), whole(1)),
    )
    assert list(fields["numbers"]) == ["loss", "samples", "steps", "flops", "drop"]
    assert [fields["numbers"][name] for name in ("samples", "steps")] == [real(718.0), real(23.0)]
    numbers = {"conv1": 40, "conv2": 296, "conv3": 584, "head": 330}
    assert entries == tuple(entry("model", key, bytes(16), "<f4", (size,)) for key, size in numbers.items())
    assert (len(RECORDED_TRAIN), len(RECORDED_UPDATE)) == (177, 413)
    frames = [np.full(size, 0.5, np.float32).tobytes() for size in numbers.values()]
    update = serialization.decode(RECORDED_UPDATE, frames, "62a786508dc01f08")
    assert isinstance(update, messages.Update)
    assert {key: vector.data.size for key, vector in update.payload["model"].items()} == numbers
