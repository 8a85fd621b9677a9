"""The protocol: what goes in comes out, its length is known beforehand, and nothing malformed gets through."""

import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from msgspec.msgpack import Ext
from msgspec.msgpack import decode as unpackb
from msgspec.msgpack import encode as packb

from edge.protocol import messages, serialization
from edge.protocol.config import DataConfig, Job, ModelConfig, ModelProfile, TrainConfig
from edge.protocol.payload import BlockShape, Layout, Payload, Vector, shapes
from tests.edge.protocol.mutations import RUN, put, refusal

JOB = Job(
    run_id=RUN,
    seed=1,
    device="cpu",
    cache="somewhere",
    model=ModelConfig("cnn"),
    data=DataConfig("digits", clients=3),
    train=TrainConfig(lr=0.05, local_steps=4),
    objective="edge.methods.fedbr:ClientUpdate",
    options_values={"lambda1": 0.5, "pathways": [1, 2], "detach": True},
    up=("stem", "head"),
)
DESCRIPTION = ModelProfile(
    layout=Layout((BlockShape("stem", 3, 2), BlockShape("head", 1))),
    family="cnn",
    flops=np.array([[6.0, 6.0, 0.0, 6.0], [2.0, 2.0, 0.0, 2.0]]),
    activations=np.array([3.0, 1.5]),
    data_sha256="00ff",
    data_source="a folder",
    classes=2,
    test_count=10,
    samples=np.array([5, 7, 9]),
    histogram=np.array([[2, 3], [3, 4], [9, 0]]),
    test_samples=np.array([0, 0, 0]),
    validation_samples=np.array([1, 0, 2]),
    variants=np.array([[1.5, 1.5, 0.0, 1.5], [0.5, 0.5, 0.0, 0.5]]),
)


def bare() -> ModelProfile:
    """A description of the model alone, without data."""
    none = np.array([], np.int64)
    histogram = np.zeros((0, 2), np.int64)
    return replace(DESCRIPTION, samples=none, histogram=histogram, test_samples=none, validation_samples=none)


def model() -> Payload:
    return {
        "model": {
            "stem": Vector(np.array([1.0, 2.0, 3.0], np.float32)),
            "stem.buffers": Vector(np.array([], np.float32)),
            "head": Vector(np.array([4.0], np.float32)),
        },
        "teacher": {"head": Vector(np.array([5.0], np.float32))},
    }


def train(**changes: object) -> messages.Train:
    return structs.replace(messages.Train(7, 3, 0.1, {"alpha": 2}, model()), **changes)


def plain(payload: Payload) -> dict[str, dict[str, list[float]]]:
    return {slot: {key: vector.data.tolist() for key, vector in named.items()} for slot, named in payload.items()}


def there_and_back(message: messages.Message) -> messages.Message:
    encoded = serialization.encode(message, RUN)
    return serialization.decode(encoded.header, encoded.frames, RUN)


def test_vectors_come_back_with_their_versions_and_those_of_client_state_have_checksums() -> None:
    sent, kept = train(), messages.ClientState(7, model())
    back = there_and_back(sent)
    assert isinstance(back, messages.Train)
    assert plain(back.payload) == {
        "model": {"stem": [1.0, 2.0, 3.0], "stem.buffers": [], "head": [4.0]},
        "teacher": {"head": [5.0]},
    }
    assert back.payload["model"]["stem"].version == sent.payload["model"]["stem"].version
    crcs = [int.from_bytes(entry[6], "big") for entry in unpackb(serialization.encode(kept, RUN).header)[4]]
    assert crcs == [zlib.crc32(vector.data.tobytes()) for named in kept.payload.values() for vector in named.values()]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"activations": [3.0]}, "activations: ('<f8', (1,)) does not fit"),
        ({"activations": [3.0, -1.0]}, "activations: [-1.0] does not fit"),
        ({"activations": [np.nan, 1.5]}, "activations: [nan] does not fit"),
        ({"flops": -DESCRIPTION.flops}, "flops: [-6.0] does not fit"),
        ({"unit_blocks": [1, 0], "unit_flops": np.ones((3, 4))}, "unit_flops: ('<f8', (3, 4)) does not fit"),
        ({"unit_blocks": [1, 2], "unit_flops": np.ones((2, 4))}, "unit_blocks: [2] does not fit"),
    ],
)
def test_arrays_of_a_description_fit_its_blocks(arrays: dict[str, Any], said: str) -> None:
    changes: dict[str, Any] = {name: np.array(array) for name, array in arrays.items()}
    for description in (DESCRIPTION, bare()):
        wrong = replace(description, **changes)
        assert refusal(messages.Described(wrong, model())) == f"Described: {said}"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"client_names": ("ann", "bo")}, "client_names: 2"),
        ({"class_names": ("cat", "dog", "emu")}, "class_names: 3"),
        ({"client_names": ("ann", "b\x1bo", "cy")}, "client_names: ('ann', 'b\\x1bo', 'cy')"),
        ({"data_notes": ("two\nlines",)}, "data_notes: ('two\\nlines',)"),
    ],
)
def test_names_of_a_description_are_of_all_clients_and_can_be_shown(names: dict[str, Any], said: str) -> None:
    wrong = replace(DESCRIPTION, **names)
    assert refusal(messages.Described(wrong, model())) == f"Described: {said} does not fit"


def test_blocks_are_found_again_by_version() -> None:
    vectors = tuple(model()["model"].values())
    back = there_and_back(messages.Tensors(vectors))
    assert isinstance(back, messages.Tensors)
    held = {vector.version: vector for vector in back.vectors}
    held |= {vector.version: vector for vector in model()["teacher"].values()}
    task = serialization.decode(serialization.encode(train(), RUN).header, [], RUN, held)
    assert isinstance(task, messages.Train)
    assert plain(task.payload) == plain(model())
    stem = task.payload["model"]["stem"]
    assert stem.data is held[stem.version].data
    with pytest.raises(messages.WireError, match=r"model/stem: version .* is not held"):
        serialization.decode(serialization.encode(train(), RUN).header, [], RUN, {})


def test_vectors_are_views_of_the_received_frame_and_copied_only_if_it_is_not_aligned() -> None:
    numbers = np.arange(100_000, dtype=np.float32)
    encoded = serialization.encode(messages.Update(0, 0, {}, {"model": {"b": Vector(numbers)}}), RUN)
    shifted = memoryview(b"x" + bytes(encoded.frames[0]))[1:]
    view, copy = (serialization.decode(encoded.header, frames, RUN) for frames in (encoded.frames, [shifted]))
    assert isinstance(view, messages.Update) and isinstance(copy, messages.Update)
    assert np.shares_memory(view.payload["model"]["b"].data, numbers)
    assert copy.payload["model"]["b"].data.flags.aligned
    assert np.array_equal(copy.payload["model"]["b"].data, numbers)


def test_length_does_not_depend_on_values() -> None:
    small = serialization.encode(train(client=0, round=0, lr=0.0, choice={"alpha": 0}), RUN)
    large = serialization.encode(train(client=2**62, round=2**62, lr=1e300, choice={"alpha": -(2**62)}), RUN)
    real = serialization.encode(train(client=1, round=1, lr=0.1, choice={"alpha": 0.1}), RUN)
    assert small.nbytes == large.nbytes == real.nbytes


@pytest.mark.parametrize("value", [0.1, -0.0, 1.0, 5e-324, 1.7976931348623157e308, 3, -(2**63), 2**63 - 1])
def test_a_number_of_a_choice_stays_what_it_is(value: float) -> None:
    for message in (train(choice={"mu": value}), messages.Evaluate(0, 1, 2, {}, choice={"mu": value})):
        back = there_and_back(message)
        assert isinstance(back, messages.Train | messages.Evaluate)
        assert repr(back.choice["mu"]) == repr(value)


def test_length_is_known_before_the_message() -> None:
    sent = train()
    encoded = serialization.encode(sent, RUN)
    assert serialization.train_nbytes(RUN, ["alpha"], shapes(sent.payload)) == encoded.nbytes
    assert encoded.nbytes == len(encoded.header) + 4 * (3 + 0 + 1 + 1)
    answer = messages.Update(7, 3, {"loss": 1.0, "steps": 2.0}, sent.payload)
    assert (
        serialization.update_nbytes(RUN, ["loss", "steps"], shapes(sent.payload))
        == serialization.encode(answer, RUN).nbytes
    )


def described(**changes: Any) -> messages.Described:
    return messages.Described(replace(DESCRIPTION, **changes), model())


LONG = "x" * 4001
KEPT, SCORE = (
    messages.ClientState(7, model()),
    messages.Score(0, -1, {messages.CORRECT: (3, 4), messages.CROSS_ENTROPY: (1.5, 4)}),
)
ACCURACY, LOSS = (("accuracy", None, None, None, None), ("loss", None, None, None, None))
BLOCKS = messages.Tensors(tuple(model()["model"].values()))
MAPPED = messages.MappedTensors("/dev/shm/fedbr-", {"0f" * 16: 3})


@pytest.mark.parametrize(
    ("message", "edit", "said"),
    [
        (train(), put(0, 1), "protocol: 1 does not fit"),
        (train(), put(1, "trian"), "message type: 'trian' does not fit"),
        (train(), put(2, "other"), f"run id (this is {RUN}): 'other' does not fit"),
        (train(), put(3, "client", 7), "Train: Expected `bytes | ext | object`, got `int` - at `$[...]`"),
        (train(), put(3, "client", bytes(9)), "Train: Expected `bytes` of length <= 8 - at `$[...]`"),
        (train(), put(3, "lr", Ext(0, b"\x7f\xf8" + bytes(6))), "Train: Expected `float` >= 0.0 - at `$.lr`"),
        (train(), put(3, "extra", bytes(8)), "Train: Object contains unknown field `extra`"),
        (train(), put(4, 0, 2, b"short"), "Train: entries: Expected `bytes` of length >= 16 - at `$[0][2]`"),
        (train(), put(4, 0, 2, bytes(16)), "Train: entry model/stem: version: b'\\x00"),
        (train(), put(4, 0, 3, "|O"), "Train: entries: Invalid enum value '|O' - at `$[0][3]`"),
        (train(), put(4, 0, 4, [(4).to_bytes(8, "big")]), "Train: entry model/stem: 12 bytes announced, but"),
        (train(), put(4, 0, 4, []), "Train: entries: Expected `array` of length >= 1 - at `$[0][4]`"),
        (messages.Update(1, 2, {}, model()), put(4, 0, 2, b"v" * 16), "Update: entry model/stem: version: b'vvv"),
        (BLOCKS, put(4, 0, 2, b"v" * 16), f"Tensors: entry /{BLOCKS.vectors[0].version.hex()}: version"),
        (SCORE, put(3, "values", ACCURACY, 1, 0), "Score: correct, count"),
        (SCORE, put(3, "values", LOSS, 1, -1), "Score: Expected `int` >= 0 - at `$.values[...][1]`"),
        (SCORE, put(3, "values", LOSS, [0.5]), "Score: Expected `array` of length 2, got 1"),
        (SCORE, put(3, "values", {("\n", *LOSS[1:]): [0.5, 1]}), "Score: name of a value: '\\n' does not fit"),
        (SCORE, put(3, "values", {(str(n), *LOSS[1:]): [0.5, 1] for n in range(2001)}), "Score: Expected `object` of"),
        (messages.Evaluate(0, 4, 1, model()), put(3, "start", 5), "Evaluate: start, stop: (5, 4) does not fit"),
        (messages.Evaluate(0, 4, 1, model()), lambda header: header[3].pop("lr"), "Evaluate: Object missing required"),
        (messages.Evaluate(0, 4, 1, model()), put(3, "lr", 0), "Evaluate: other bytes than those of: Evaluate("),
        (messages.Capacity(1), put(3, "workers", 0), "Capacity: Expected `int` >= 1 - at `$.workers`"),
        (messages.Welcome(JOB), put(3, "job", b"{"), "Welcome: job: : Invalid JSON"),
        (described(), put(3, "classes", 5), "Described: histogram"),
        (described(), put(3, "layout", [[["a", 1, 0, [["a/0", 2, 0]]]]]), "Described: layout: a: layers: (2, 0)"),
        (described(), put(3, "layout", [[["a", 1, 0, []], ["a", 1, 0, []]]]), "Described: layout: a block twice"),
        (messages.Error("E", ""), put(3, "text", LONG), "Error: Expected `str` of length <= 4000 - at `$.text`"),
        (messages.Error("E", ""), put(3, "traceback", "x" * 16_001), "Error: Expected `str` of length <= 16000"),
        (train(), put(3, "choice", "alpha", Ext(0, b"\x7f\xf0" + bytes(6))), "Train: Expected `float` <= 1.79"),
        (train(), put(3, "choice", "alpha", Ext(1, bytes(8))), "Train: choice: alpha: extension: (1, 8)"),
        (train(), put(3, "choice", "alpha", Ext(0, bytes(4))), "Train: choice: alpha: extension: (0, 4)"),
        (messages.Shutdown(""), put(3, "why", LONG), "Shutdown: Expected `str` of length <= 4000 - at `$.why`"),
        (KEPT, put(4, 0, 6, bytes(8)), "entry model/stem: the checksum does not fit the frame"),
        (MAPPED, put(3, "sizes", {"0f" * 16: 0}), "MappedTensors: Expected `int` >= 1"),
        (MAPPED, put(3, "sizes", {"0f" * 16 + "\n": 1}), "MappedTensors: Expected `str` matching regex"),
    ],
)  # fmt: skip
def test_refusals_say_what_does_not_fit(message: messages.Message, edit: Callable[[Any], object], said: str) -> None:
    assert refusal(message, edit).startswith(said)


def test_frames_must_be_those_that_are_announced() -> None:
    assert refusal(train(), frames=[b""]) == "Train: 4 frames announced, 1 received"
    assert refusal(train(), frames=[b"", b"", b"", b""]) == "entry model/stem: 12 bytes announced, a frame of 0 came"


def test_what_is_too_large_or_not_msgpack_is_refused() -> None:
    for raw in (b"", b"\xc1", b"\x95", b"\xff" * 40, b"\x91" * 5000, bytes(serialization.MAX_HEADER_NBYTES + 1)):
        with pytest.raises(messages.WireError):
            serialization.decode(raw, [], RUN)
        with pytest.raises(messages.WireError):
            serialization.Envelope.parse(raw)


@pytest.mark.parametrize(
    ("name", "values", "refusal"),
    [
        ("logged", [{"": 0.5}, {"Gap": 0.5}, {"a b": 0.5}, {"gap\n": 0.5}, {"x" * 65: 0.5}], "Expected `str` matching"),
        ("logged", [{"gap": float("inf")}], r"envelope: logged: inf does not fit"),
        ("logged", [{f"n{index}": 0.5 for index in range(65)}], "Expected `object` of length <= 64"),
        ("sequence", [-1, 2**63], "Expected `int` [<>]= .* - at `\\$\\[1\\]`"),
        ("evict", [(b"short",)], "Expected `bytes` of length >= 16"),
        ("wall_seconds", [-1.0, float("inf"), float("nan")], "Expected `float` .* - at `\\$\\[5\\]`"),
        ("weight", [-0.5, 1.5, float("nan")], "Expected `float` .* - at `\\$\\[6\\]`"),
        ("telemetry", [None, "x" * 1001], "Expected `str`.* - at `\\$\\[8\\]`"),
    ],
)
def test_an_envelope_with_a_wrong_field_is_refused(name: str, values: list[Any], refusal: str) -> None:
    for value in values:
        with pytest.raises(messages.WireError, match=refusal):
            serialization.Envelope.parse(
                packb(structs.replace(serialization.Envelope("worker-1-00ff"), **{name: value}))
            )


# --- bombs --------------------------------------------------------------------------------------------------------

ANNOUNCED = b"\xdd\xff\xff\xff\xff"  # a list of 2^32 - 1 items, none of which comes
EMPTY_LISTS = b"\xdc\x0f\xff" + (b"\xdc\x00\xf0" + b"\x90" * 240) * 4095  # a million lists in 1 MB
EMPTY_MAPS = EMPTY_LISTS.replace(b"\x90", b"\x80")
LONG_LIST = b"\xdc\x10\x01" + bytes(4097)  # a list that is longer by one than any message's
DEEP = b"\xdc\x10\x00" * 1020 + bytes(5000)  # lists in lists, each of which says that 4,096 items follow


@pytest.mark.parametrize("bomb", [ANNOUNCED, EMPTY_LISTS, EMPTY_MAPS, LONG_LIST, DEEP])
def test_a_bomb_is_refused_before_it_is_built(bomb: bytes) -> None:
    """A million empty lists are 64 MB once they are built; 1,020 lists in each other have 4,096 pointers each.

    What is measured is the copy of the header, of a megabyte, and the error.
    """
    begin = {
        kind: b"\x95" + packb(serialization.PROTOCOL) + packb(kind) + packb(RUN)
        for kind in serialization.KINDS_OF_MESSAGES
    }
    headers = [start + bomb + b"\x90" for start in begin.values()]
    headers += [begin["Update"] + packb({}) + bomb, bomb]
    tracemalloc.start()
    for raw in headers:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        for read in (serialization.Envelope.parse, lambda header: serialization.decode(header, [], RUN)):
            with pytest.raises(messages.WireError):
                read(raw)
        assert tracemalloc.get_traced_memory()[1] - before < 2.5e6
    tracemalloc.stop()


def test_a_name_that_stands_twice_is_refused() -> None:
    header = serialization.encode(messages.FetchPartial(1), RUN).header
    twice = header.replace(b"\x81\xa5round\x01", b"\x82\xa5round\x00\xa5round\x01")
    assert len(twice) == len(header) + 7
    with pytest.raises(messages.WireError, match="FetchPartial: other bytes than those of"):
        serialization.decode(twice, [], RUN)
