"""The protocol: what goes in comes out, its length is known beforehand, and nothing malformed gets through."""

import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import numpy as np
import pytest

from edge.protocol import codec, messages
from edge.protocol.config import DataConfig, Job, ModelConfig, ModelProfile, TrainConfig
from edge.protocol.message_fields import PROTOCOL
from edge.protocol.payload import BlockShape, Layout, Payload, Vector, shapes

RUN = "20250102T030405-abcd"
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
    return replace(messages.Train(7, 3, 0.1, {"alpha": 2}, model()), **changes)  # type: ignore[arg-type]


def plain(payload: Payload) -> dict[str, dict[str, list[float]]]:
    return {slot: {key: vector.data.tolist() for key, vector in named.items()} for slot, named in payload.items()}


def there_and_back(message: messages.Message) -> messages.Message:
    encoded = codec.encode(message, RUN)
    return codec.decode(encoded.header, encoded.frames, RUN)


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
    encoded = codec.encode(message, RUN)
    unpacked = msgpack.unpackb(encoded.header)
    edit(unpacked)
    with pytest.raises(messages.WireError) as refused:
        codec.decode(msgpack.packb(unpacked), encoded.frames if frames is None else frames, RUN)
    return str(refused.value)


@pytest.mark.parametrize(
    "message",
    [
        messages.Hello(),
        messages.Capacity(3),
        messages.Welcome(JOB),
        messages.Ping(),
        messages.Pong(),
        messages.Describe(True),
        messages.Score(0, messages.GLOBAL, {"accuracy": (3, 4), "loss": (1.5, 4)}),
        messages.FetchPartial(3),
        messages.Cancel(),
        messages.Error("ValueError", "what"),
        messages.Shutdown("its message was refused"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_without_vectors_come_back_equal(message: messages.Message) -> None:
    assert there_and_back(message) == message


def test_a_score_comes_back_with_the_vectors_of_metrics() -> None:
    back = there_and_back(messages.Score(0, 3, {"accuracy": (3, 4), "loss": (1.5, 4)}, model()))
    assert isinstance(back, messages.Score)
    assert (back.client, back.values["loss"]) == (3, (1.5, 4))
    assert plain(back.payload) == plain(model())


def test_train_comes_back_with_its_vectors_and_their_versions() -> None:
    sent = train()
    back = there_and_back(sent)
    assert isinstance(back, messages.Train)
    assert (back.client, back.round, back.lr, back.choice) == (7, 3, 0.1, {"alpha": 2})
    assert plain(back.payload) == {
        "model": {"stem": [1.0, 2.0, 3.0], "stem.buffers": [], "head": [4.0]},
        "teacher": {"head": [5.0]},
    }
    assert back.payload["model"]["stem"].version == sent.payload["model"]["stem"].version


def test_updates_scores_and_what_clients_keep_come_back() -> None:
    update = there_and_back(messages.Update(7, 3, {"loss": 0.25, "worst": float("inf")}, model()))
    assert isinstance(update, messages.Update)
    assert (update.client, update.round, update.numbers) == (7, 3, {"loss": 0.25, "worst": float("inf")})
    evaluate = there_and_back(messages.Evaluate(0, 500, messages.GLOBAL, model()))
    assert isinstance(evaluate, messages.Evaluate)
    assert (evaluate.start, evaluate.stop, evaluate.client) == (0, 500, -1)
    sent = messages.ClientState(7, model())
    kept = there_and_back(sent)
    assert isinstance(kept, messages.ClientState) and kept.client == 7
    assert plain(update.payload) == plain(evaluate.payload) == plain(kept.payload) == plain(model())
    # What a client keeps always has checksums.
    crcs = [int.from_bytes(entry[6], "big") for entry in msgpack.unpackb(codec.encode(sent, RUN).header)[4]]
    assert crcs == [zlib.crc32(vector.data.tobytes()) for named in sent.payload.values() for vector in named.values()]


def test_described_comes_back_with_its_arrays() -> None:
    back = there_and_back(messages.Described(DESCRIPTION, model()))
    assert isinstance(back, messages.Described)
    assert back.description.layout == DESCRIPTION.layout
    assert back.description.flops.tolist() == [[6.0, 6.0, 0.0, 6.0], [2.0, 2.0, 0.0, 2.0]]
    assert back.description.activations.tolist() == [3.0, 1.5]
    assert back.description.variant_flops.tolist() == [[[1.5, 1.5, 0.0, 1.5], [0.5, 0.5, 0.0, 0.5]]]
    assert back.description.histogram.tolist() == [[2, 3], [3, 4], [9, 0]]
    assert back.description.samples.dtype == np.int64
    assert plain(back.payload) == plain(model())
    back = there_and_back(messages.Described(bare(), model()))
    assert isinstance(back, messages.Described)
    assert back.description.samples.tolist() == []


@pytest.mark.parametrize(
    ("activations", "message"),
    [
        ([3.0], "described: activations: ('<f8', (1,)) does not fit"),
        ([], "described: activations: ('<f8', (0,)) does not fit"),
        ([[3.0, 1.5]], "described: activations: ('<f8', (1, 2)) does not fit"),
        ([3.0, -1.0], "described: activations: [-1.0] does not fit"),
        ([np.nan, 1.5], "described: activations: [nan] does not fit"),
        ([3.0, np.inf], "described: activations: [inf] does not fit"),
    ],
)
def test_activations_are_one_number_of_floats_per_block(activations: list[float], message: str) -> None:
    for description in (DESCRIPTION, bare()):
        wrong = replace(description, activations=np.array(activations))
        assert refusal(messages.Described(wrong, model())) == message


def test_variants_have_the_models_blocks() -> None:
    wrong = replace(DESCRIPTION, variants=np.ones((3, 4)))
    assert refusal(messages.Described(wrong, model())) == "described: variants: ('<f8', (3, 4)) does not fit"


@pytest.mark.parametrize(
    ("blocks", "flops", "message"),
    [
        ([1, 0], np.ones((3, 4)), "described: unit_flops: ('<f8', (3, 4)) does not fit"),
        ([1, 2], np.ones((2, 4)), "described: unit_blocks: [2] does not fit"),
    ],
)
def test_residual_units_are_in_blocks_of_the_model(blocks: list[int], flops: Any, message: str) -> None:
    wrong = replace(DESCRIPTION, unit_blocks=np.array(blocks), unit_flops=flops)
    assert refusal(messages.Described(wrong, model())) == message


def test_blocks_are_found_again_by_version() -> None:
    vectors = tuple(model()["model"].values())
    back = there_and_back(messages.Tensors(vectors))
    assert isinstance(back, messages.Tensors)
    held = {vector.version: vector for vector in back.vectors}
    held |= {vector.version: vector for vector in model()["teacher"].values()}
    task = codec.decode(codec.encode(train(), RUN).header, [], RUN, held)
    assert isinstance(task, messages.Train)
    assert plain(task.payload) == plain(model())
    stem = task.payload["model"]["stem"]
    assert stem.data is held[stem.version].data
    with pytest.raises(messages.WireError, match=r"model/stem: version .* is not held"):
        codec.decode(codec.encode(train(), RUN).header, [], RUN, {})


def test_vectors_are_views_of_the_received_frame_and_copied_only_if_it_is_not_aligned() -> None:
    numbers = np.arange(100_000, dtype=np.float32)
    encoded = codec.encode(messages.Update(0, 0, {}, {"model": {"b": Vector(numbers)}}), RUN)
    shifted = memoryview(b"x" + bytes(encoded.frames[0]))[1:]
    view, copy = (codec.decode(encoded.header, frames, RUN) for frames in (encoded.frames, [shifted]))
    assert isinstance(view, messages.Update) and isinstance(copy, messages.Update)
    assert np.shares_memory(view.payload["model"]["b"].data, numbers)
    assert copy.payload["model"]["b"].data.flags.aligned
    assert np.array_equal(copy.payload["model"]["b"].data, numbers)


def test_length_does_not_depend_on_values() -> None:
    small = codec.encode(train(client=0, round=0, lr=0.0, choice={"alpha": 0}), RUN)
    large = codec.encode(train(client=2**62, round=2**62, lr=1e300, choice={"alpha": -(2**62)}), RUN)
    real = codec.encode(train(client=1, round=1, lr=0.1, choice={"alpha": 0.1}), RUN)
    assert small.nbytes == large.nbytes == real.nbytes


@pytest.mark.parametrize("value", [0.1, -0.0, 1.0, 5e-324, 1.7976931348623157e308, 3, -(2**63), 2**63 - 1])
def test_a_number_of_a_choice_stays_what_it_is(value: float) -> None:
    for message in (train(choice={"mu": value}), messages.Evaluate(0, 1, 2, {}, choice={"mu": value})):
        back = there_and_back(message)
        assert isinstance(back, messages.Train | messages.Evaluate)
        assert repr(back.choice["mu"]) == repr(value)


def test_length_is_known_before_the_message() -> None:
    sent = train()
    encoded = codec.encode(sent, RUN)
    assert codec.train_nbytes(RUN, ["alpha"], shapes(sent.payload)) == encoded.nbytes
    assert encoded.nbytes == len(encoded.header) + 4 * (3 + 0 + 1 + 1)
    answer = messages.Update(7, 3, {"loss": 1.0, "steps": 2.0}, sent.payload)
    assert codec.update_nbytes(RUN, ["loss", "steps"], shapes(sent.payload)) == codec.encode(answer, RUN).nbytes


def test_length_counted_by_hand() -> None:
    # array of 5: 1; protocol: 1; "train": 6; "r": 2; fields 71; entries 63; frame 8
    #   fields: map 1; "client" 7 + bin 10; "round" 6 + 10; "lr" 3 + 10; "choice" 7 + map 1 + "alpha" 6 + 10 = 71
    #   entries: array 1; entry array 1; "model" 6; "b" 2; bin of 16: 18; "<f4" 4; shape 1 + 10; nbytes 10; crc 10 = 63
    assert codec.train_nbytes("r", ["alpha"], {"model": {"b": 2}}) == 1 + 1 + 6 + 2 + 71 + 63 + 8


def test_checksum_is_verified_when_there_is_one() -> None:
    encoded = codec.encode(messages.Update(0, 0, {}, {"model": {"b": Vector(np.array([1.0], np.float32))}}), RUN, True)
    entry = msgpack.unpackb(encoded.header)[4][0]
    assert int.from_bytes(entry[6], "big") == zlib.crc32(np.float32(1.0).tobytes())
    codec.decode(encoded.header, encoded.frames, RUN)
    with pytest.raises(messages.WireError, match="checksum"):
        codec.decode(encoded.header, [np.float32(2.0).tobytes()], RUN)


def described(**changes: Any) -> messages.Described:
    return messages.Described(replace(DESCRIPTION, **changes), model())


LONG = "x" * 4001
KEPT, SCORE = messages.ClientState(7, model()), messages.Score(0, -1, {"accuracy": (3, 4), "loss": (1.5, 4)})
BLOCKS = messages.Tensors(tuple(model()["model"].values()))


@pytest.mark.parametrize(
    ("message", "edit", "said"),
    [
        (train(), put(0, 1), "protocol: 1 does not fit"),
        (train(), put(1, "trian"), "message type: 'trian' does not fit"),
        (train(), put(2, "other"), f"run id (this is {RUN}): 'other' does not fit"),
        (train(), put(3, "client", 7), "train: client: 7 does not fit"),
        (train(), put(3, "client", b"\xff" * 8), "train: client: -1 does not fit"),
        (train(), put(3, "lr", b"\x7f\xf8" + bytes(6)), "train: lr: nan does not fit"),
        (train(), put(3, "extra", 1), "train: fields"),
        (train(), lambda header: header[3].pop("round"), "train: fields"),
        (train(), put(4, 0, 2, b"short"), "entry model/stem: version: b'short' does not fit"),
        (train(), put(4, 0, 2, bytes(16)), "train: version of model/stem"),
        (train(), put(4, 0, 3, "|O"), "entry model/stem: dtype: '|O' does not fit"),
        (train(), put(4, 0, 4, [(4).to_bytes(8, "big")]), "entry model/stem: 12 bytes announced, but shape (4,)"),
        (train(), put(4, 2, 1, "stem"), "slot and key sent twice"),
        (messages.Update(1, 2, {}, model()), put(4, 0, 2, b"v" * 16), "update: version of model/stem"),
        (BLOCKS, put(4, 0, 2, b"v" * 16), f"blocks: version {(b'v' * 16).hex()} sent as: "),
        (SCORE, put(3, "values", "accuracy", 1, bytes(8)), "score: correct, count"),
        (SCORE, put(3, "values", "loss", 1, b"\xff" * 8), "score: loss: count: -1 does not fit"),
        (SCORE, put(3, "values", "loss", [bytes(8)]), "score: values: loss, a list of 2"),
        (SCORE, put(3, "values", {"x" * 101: [bytes(8)] * 2}), "score: name of a value"),
        (SCORE, put(3, "values", {str(n): [bytes(8)] * 2 for n in range(2001)}), "score: number of values: 2001"),
        (messages.Evaluate(0, 4, 1, model()), put(3, "split", "tset"), "evaluate: split: 'tset' does not fit"),
        (messages.Capacity(1), put(3, "workers", bytes(8)), "capacity: workers: 0 does not fit"),
        (messages.Welcome(JOB), put(3, "job", "seed", "one"), "welcome: job: 1 validation error"),
        (described(), put(3, "classes", (5).to_bytes(8, "big")), "described: histogram"),
        (described(), put(3, "layout", [["a", -1, 0, []]]), "described: layout: a: (-1, 0) does not fit"),
        (described(), put(3, "layout", [["a", 1, 0, [["a/0", 2, 0]]]]), "described: layout: a: layers: (2, 0)"),
        (described(), put(3, "layout", [["a", 2, 0, [["a/0", 1, 0]] * 2]]), "described: layout: a layer twice"),
        (described(), put(3, "layout", [["a", 1, 0, []], ["a", 1, 0, []]]), "described: layout: a block twice"),
        (described(flops=-DESCRIPTION.flops), put(0, PROTOCOL), "described: flops: [-6.0]"),
        (described(samples=np.array([5, -7, 9])), put(0, PROTOCOL), "described: samples: [-7]"),
        (messages.Error("E", ""), put(3, "text", LONG), "error: characters: 4001 does not fit"),
        (messages.Error("E", ""), put(3, "traceback", "x" * 16_001), "error: traceback: characters: 16001"),
        (train(), put(3, "choice", "alpha", msgpack.ExtType(0, b"\x7f\xf0" + bytes(6))), "train: choice: alpha: inf"),
        (train(), put(3, "choice", "alpha", msgpack.ExtType(1, bytes(8))), "not a msgpack message: ValueError an ext"),
        (train(), put(3, "choice", "alpha", msgpack.ExtType(0, bytes(4))), "not a msgpack message: ValueError an ext"),
        (train(), put(3, "choice", "alpha", 0.5), "train: choice: alpha: 0.5 does not fit"),
        (train(), put(3, "lr", msgpack.ExtType(0, bytes(8))), "train: lr: ExtType(code=0, "),
        (messages.Shutdown(""), put(3, "why", LONG), "bye: characters: 4001 does not fit"),
        (KEPT, put(4, 0, 6, bytes(8)), "entry model/stem: the checksum does not fit the frame"),
        (KEPT, put(4, 0, 0, "mo|del"), "kept: slot: 'mo|del' does not fit"),
        (KEPT, put(3, "client", b"\xff" * 8), "kept: client: -1 does not fit"),
    ],
)  # fmt: skip
def test_refusals_say_what_does_not_fit(message: messages.Message, edit: Callable[[Any], object], said: str) -> None:
    assert refusal(message, edit).startswith(said)


def test_a_value_may_be_nested_more_deeply_than_python_can_print() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(messages.WireError, match="field: a nested list does not fit"):
        messages.reject("field", nested)
    while nested:  # or freeing it would need as deep a stack
        (nested,) = nested  # type: ignore[assignment]


def test_frames_must_be_those_that_are_announced() -> None:
    assert refusal(train(), frames=[b""]) == "train: 4 frames announced, 1 received"
    assert refusal(train(), frames=[b"", b"", b"", b""]) == "entry model/stem: 12 bytes announced, a frame of 0 came"
    messages_of_4000 = (messages.Error("E", "x" * 4000), messages.Shutdown("x" * 4000))
    assert [there_and_back(message) for message in messages_of_4000] == list(messages_of_4000)


def test_what_is_too_large_or_not_msgpack_is_refused() -> None:
    for raw in (b"", b"\xc1", b"\x95", b"\xff" * 40, b"\x91" * 5000, bytes(codec.MAX_HEADER_NBYTES + 1)):
        with pytest.raises(messages.WireError):
            codec.decode(raw, [], RUN)
        with pytest.raises(messages.WireError):
            codec.Envelope.parse(raw)


def test_envelope_comes_back() -> None:
    envelope = codec.Envelope("worker-1-00ff", 9, "state/1", None, (b"v" * 16,), 0.5, 0.25, (3, 0), "cuda:0: 1 MiB")
    assert codec.Envelope.parse(envelope.pack()) == envelope
    logged = replace(envelope, logged={"gap": 0.5, "a-z_0.9": -1.0, "unknown": float("nan")})
    assert repr(codec.Envelope.parse(logged.pack())) == repr(logged)
    wrong = [
        *(("logged", {name: 0.5}) for name in ("", "Gap", "a b", "gap\n", "x" * 65)),
        *(("logged", {"gap": value}) for value in (float("inf"), 1, None, "0.5")),
        *(("logged", {f"n{index}": 0.5 for index in range(65)}),),
        *(("sequence", -1), ("state_in", 5), ("evict", (b"short",)), ("retired_slots", (-1,))),
        *(("wall_seconds", -1.0), ("wall_seconds", float("inf")), ("wall_seconds", float("nan"))),
        *(("telemetry", None), ("telemetry", "x" * 1001)),
    ]
    for name, value in wrong:
        with pytest.raises(messages.WireError, match=f"envelope: {name}"):
            codec.Envelope.parse(replace(envelope, **{name: value}).pack())  # type: ignore[arg-type]


# --- bombs --------------------------------------------------------------------------------------------------------

EMPTY_LISTS = b"\xdc\x0f\xff" + (b"\xdc\x00\xf0" + b"\x90" * 240) * 4095  # a million lists in 1 MB
EMPTY_MAPS = EMPTY_LISTS.replace(b"\x90", b"\x80")
LONG_LIST = b"\xdc\x10\x01" + bytes(4097)  # a list that is longer by one than any message's
DEEP = b"\xdc\x10\x00" * 1020 + bytes(5000)  # lists in lists, each of which says that 4,096 items follow


@pytest.mark.parametrize(
    ("bomb", "most_nbytes"), [(EMPTY_LISTS, 8e6), (EMPTY_MAPS, 8e6), (LONG_LIST, 2e6), (DEEP, 34e6)],
    ids=["lists", "maps", "long", "deep"],
)  # fmt: skip
def test_a_bomb_is_refused_before_it_is_built(bomb: bytes, most_nbytes: float) -> None:
    """A million empty lists are 64 MB once they are built; 1,020 lists in each other have 4,096 pointers each."""
    start = b"\x95" + msgpack.packb(codec.PROTOCOL) + msgpack.packb("update") + msgpack.packb(RUN)
    tracemalloc.start()
    for read, raw in (
        (codec.Envelope.parse, bomb),
        (lambda header: codec.decode(header, [], RUN), start + bomb + b"\x90"),
        (lambda header: codec.decode(header, [], RUN), start + msgpack.packb({}) + bomb),
        (lambda header: codec.decode(header, [], RUN), bomb),
    ):
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        with pytest.raises(messages.WireError):
            read(raw)
        assert tracemalloc.get_traced_memory()[1] - before < most_nbytes
    tracemalloc.stop()


def test_what_announces_more_than_there_is_says_so() -> None:
    for raw in (b"\xdc\xff\xff" + b"x" * 600, b"\xdc\x00\x05\x01", b"\xdf\xff\xff\xff\xff\x01"):
        with pytest.raises(messages.WireError, match=r"exceeds max_(array|map)_len|incomplete input"):
            codec.Envelope.parse(raw)
    with pytest.raises(messages.WireError, match="StackError"):
        codec.Envelope.parse(b"\x91" * 5000 + b"\xc0")
    with pytest.raises(messages.WireError, match=r"a name stands twice in one map"):
        codec.Envelope.parse(b"\x82\xa1a\x01\xa1a\x02")
