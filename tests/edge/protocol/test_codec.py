"""The protocol: what goes in comes out, its length is known beforehand, and nothing malformed gets through."""

import random
import tracemalloc
import zlib
from dataclasses import replace

import msgpack
import numpy as np
import pytest

from edge.protocol import codec, messages
from edge.protocol.config import ComponentConfig, DataConfig, Job, ModelConfig, ModelProfile, TrainConfig
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
    objective=ComponentConfig("edge.methods.fedbr:ClientUpdate", {"lambda1": 0.5, "pathways": [1, 2], "detach": True}),
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
)


def bare() -> ModelProfile:
    """A description of the model alone, without data."""
    none = np.array([], np.int64)
    return replace(DESCRIPTION, samples=none, histogram=np.zeros((0, 2), np.int64), test_samples=none)


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


def refusal(message: messages.Message, edit: object = None, frames: list[bytes] | None = None) -> str:
    """Encode, edit the unpacked header, and return what decode says about it."""
    encoded = codec.encode(message, RUN)
    unpacked = msgpack.unpackb(encoded.header)
    if callable(edit):
        edit(unpacked)
    with pytest.raises(messages.WireError) as refused:
        codec.decode(msgpack.packb(unpacked), encoded.frames if frames is None else frames, RUN)
    return str(refused.value)


@pytest.mark.parametrize(
    "message",
    [
        messages.Hello(),
        messages.Welcome(JOB),
        messages.Ping(),
        messages.Pong(),
        messages.Describe(True),
        messages.Score(0, messages.GLOBAL, 3, 4, 1.5),
        messages.FetchPartial(3),
        messages.Cancel(),
        messages.Error("ValueError", "what"),
        messages.Shutdown("its message was refused"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_without_vectors_come_back_equal(message: messages.Message) -> None:
    assert there_and_back(message) == message


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


def test_update_and_evaluate_come_back() -> None:
    update = there_and_back(messages.Update(7, 3, {"loss": 0.25, "worst": float("inf")}, model()))
    assert isinstance(update, messages.Update)
    assert (update.client, update.round, update.numbers) == (7, 3, {"loss": 0.25, "worst": float("inf")})
    assert plain(update.payload) == plain(model())
    evaluate = there_and_back(messages.Evaluate(0, 500, messages.GLOBAL, model()))
    assert isinstance(evaluate, messages.Evaluate)
    assert (evaluate.start, evaluate.stop, evaluate.client) == (0, 500, -1)


def test_what_a_client_keeps_comes_back_and_always_has_checksums() -> None:
    sent = messages.ClientState(7, model())
    kept = there_and_back(sent)
    assert isinstance(kept, messages.ClientState)
    assert (kept.client, plain(kept.payload)) == (7, plain(model()))
    crcs = [int.from_bytes(entry[6], "big") for entry in msgpack.unpackb(codec.encode(sent, RUN).header)[4]]
    assert crcs == [zlib.crc32(vector.data.tobytes()) for named in sent.payload.values() for vector in named.values()]


def test_what_a_client_keeps_is_refused_without_checksum_and_where_names_would_run_together() -> None:
    def put(item: int, value: object) -> object:
        return lambda header: header[4][0].__setitem__(item, value)

    sent = messages.ClientState(7, model())
    assert refusal(sent, put(6, bytes(8))) == "entry model/stem: the checksum does not fit the frame"
    assert refusal(sent, put(0, "mo|del")) == "kept: slot: 'mo|del' does not fit"
    assert refusal(sent, lambda header: header[3].__setitem__("client", b"\xff" * 8)) == "kept: client: -1 does not fit"


def test_described_comes_back_with_its_arrays() -> None:
    back = there_and_back(messages.Described(DESCRIPTION, model()))
    assert isinstance(back, messages.Described)
    assert back.description.layout == DESCRIPTION.layout
    assert back.description.flops.tolist() == [[6.0, 6.0, 0.0, 6.0], [2.0, 2.0, 0.0, 2.0]]
    assert back.description.activations.tolist() == [3.0, 1.5]
    assert back.description.histogram.tolist() == [[2, 3], [3, 4], [9, 0]]
    assert back.description.samples.dtype == np.int64
    assert plain(back.payload) == plain(model())


def test_a_model_is_described_without_data() -> None:
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


def test_flops_and_counts_are_never_negative() -> None:
    assert refusal(messages.Described(replace(DESCRIPTION, flops=-DESCRIPTION.flops), model())).startswith(
        "described: flops: [-6.0]"
    )
    assert refusal(messages.Described(replace(DESCRIPTION, samples=np.array([5, -7, 9])), model())).startswith(
        "described: samples: [-7]"
    )


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


def test_a_block_that_is_not_held_is_named() -> None:
    with pytest.raises(messages.WireError, match=r"model/stem: version .* is not held"):
        codec.decode(codec.encode(train(), RUN).header, [], RUN, {})


def test_vectors_are_views_of_the_received_frame() -> None:
    numbers = np.arange(100_000, dtype=np.float32)
    encoded = codec.encode(messages.Update(0, 0, {}, {"model": {"b": Vector(numbers)}}), RUN)
    back = codec.decode(encoded.header, encoded.frames, RUN)
    assert isinstance(back, messages.Update)
    assert np.shares_memory(back.payload["model"]["b"].data, numbers)


def test_an_unaligned_frame_is_copied_into_place() -> None:
    encoded = codec.encode(messages.Update(0, 0, {}, {"model": {"b": Vector(np.array([1.0], np.float32))}}), RUN)
    shifted = memoryview(b"x" + bytes(encoded.frames[0]))[1:]
    back = codec.decode(encoded.header, [shifted], RUN)
    assert isinstance(back, messages.Update)
    assert back.payload["model"]["b"].data.flags.aligned
    assert back.payload["model"]["b"].data.tolist() == [1.0]


def test_length_does_not_depend_on_values() -> None:
    small = codec.encode(train(client=0, round=0, lr=0.0, choice={"alpha": 0}), RUN)
    large = codec.encode(train(client=2**62, round=2**62, lr=1e300, choice={"alpha": -(2**62)}), RUN)
    assert small.nbytes == large.nbytes


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


def test_refusals_say_what_does_not_fit() -> None:
    def put(*path: object) -> object:
        *steps, last, value = path

        def edit(header: list) -> None:  # type: ignore[type-arg]
            for step in steps:
                header = header[step]  # type: ignore[call-overload]
            header[last] = value  # type: ignore[call-overload]

        return edit

    assert refusal(train(), put(0, 1)) == "protocol: 1 does not fit"
    assert refusal(train(), put(1, "trian")) == "message type: 'trian' does not fit"
    assert refusal(train(), put(2, "other")) == f"run id (this is {RUN}): 'other' does not fit"
    assert refusal(train(), put(3, "client", 7)) == "train: client: 7 does not fit"
    assert refusal(train(), put(3, "client", b"\xff" * 8)) == "train: client: -1 does not fit"
    assert refusal(train(), put(3, "lr", b"\x7f\xf8" + bytes(6))) == "train: lr: nan does not fit"
    assert "train: fields" in refusal(train(), put(3, "extra", 1))
    assert "train: fields" in refusal(train(), lambda header: header[3].pop("round"))
    assert refusal(train(), put(4, 0, 2, b"short")) == "entry model/stem: version: b'short' does not fit"
    assert refusal(train(), put(4, 0, 3, "|O")) == "entry model/stem: dtype: '|O' does not fit"
    assert "12 bytes announced, but shape (4,)" in refusal(train(), put(4, 0, 4, [(4).to_bytes(8, "big")]))
    assert refusal(train(), put(4, 2, 1, "stem")).startswith("slot and key sent twice")
    assert refusal(train(), frames=[b""]) == "train: 4 frames announced, 1 received"
    assert refusal(train(), frames=[b"", b"", b"", b""]) == "entry model/stem: 12 bytes announced, a frame of 0 came"
    assert refusal(messages.Score(0, -1, 3, 4, 1.5), put(3, "count", bytes(8))).startswith("score: correct, count")
    assert refusal(messages.Welcome(JOB), put(3, "job", "seed", "one")).startswith("welcome: job: 1 validation error")
    assert refusal(messages.Described(DESCRIPTION, {}), put(3, "classes", (5).to_bytes(8, "big"))).startswith(
        "described: histogram"
    )


def test_what_is_too_large_or_not_msgpack_is_refused() -> None:
    for raw in (b"", b"\xc1", b"\x95", b"\xff" * 40, b"\x91" * 5000, bytes(codec.MAX_HEADER_NBYTES + 1)):
        with pytest.raises(messages.WireError):
            codec.decode(raw, [], RUN)
        with pytest.raises(messages.WireError):
            codec.Envelope.parse(raw)


def test_envelope_comes_back() -> None:
    envelope = codec.Envelope("worker-1-00ff", 9, "state/1", None, (b"v" * 16,), 0.5, 0.25, (3, 0), "cuda:0: 1 MiB")
    assert codec.Envelope.parse(envelope.pack()) == envelope
    wrong = {
        "sequence": -1,
        "state_in": 5,
        "evict": (b"short",),
        "wall_seconds": -1.0,
        "retired_slots": (-1,),
        "telemetry": None,
    }
    for name, value in wrong.items():
        with pytest.raises(messages.WireError, match=f"envelope: {name}"):
            codec.Envelope.parse(replace(envelope, **{name: value}).pack())  # type: ignore[arg-type]


def test_mutated_messages_are_refused_or_still_well_formed() -> None:
    """Whatever the bytes, decode either gives a message or a WireError, never another exception."""
    draw, refused = random.Random(5), 0
    sent: list[messages.Message] = [
        train(),
        messages.Update(1, 2, {"a": 1.0}, model()),
        messages.Welcome(JOB),
        messages.Described(DESCRIPTION, model()),
        messages.PartialSum(3, 2, {"model": {"stem": np.array([1, -(2**40)])}}),
    ]
    for number in range(600):
        encoded = codec.encode(sent[number % len(sent)], RUN)
        raw, frames = bytearray(encoded.header), [bytes(frame) for frame in encoded.frames]
        for _ in range(draw.randint(1, 4)):
            where = draw.randrange(len(raw))
            match draw.randrange(4):
                case 0:
                    raw[where] = draw.randrange(256)
                case 1:
                    del raw[where : where + draw.randint(1, 9)]
                case 2:
                    raw[where:where] = draw.randbytes(draw.randint(1, 9))
                case _ if frames:
                    frames[draw.randrange(len(frames))] = draw.randbytes(draw.randint(0, 20))
        try:
            codec.decode(raw, frames, RUN)
            codec.Envelope.parse(raw)
        except messages.WireError:
            refused += 1
    assert refused == 600  # no header is an envelope


# --- bombs --------------------------------------------------------------------------------------------------------

EMPTY_LISTS = b"\xdc\x0f\xff" + (b"\xdc\x00\xf0" + b"\x90" * 240) * 4095  # a million lists in 1 MB
EMPTY_MAPS = EMPTY_LISTS.replace(b"\x90", b"\x80")
LONG = b"\xdc\x10\x01" + bytes(4097)  # a list that is longer by one than any message's
DEEP = b"\xdc\x10\x00" * 1020 + bytes(5000)  # lists in lists, each of which says that 4,096 items follow


@pytest.mark.parametrize(
    ("bomb", "most_nbytes"), [(EMPTY_LISTS, 8e6), (EMPTY_MAPS, 8e6), (LONG, 2e6), (DEEP, 34e6)],
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


def test_a_version_stands_where_vectors_go_down_and_nowhere_else() -> None:
    named, unnamed = b"v" * 16, bytes(16)

    def put(version: bytes) -> object:
        return lambda header: header[4][0].__setitem__(2, version)

    assert refusal(train(), put(unnamed)).startswith("train: version of model/stem")
    assert refusal(messages.Update(1, 2, {}, model()), put(named)).startswith("update: version of model/stem")
    blocks = messages.Tensors(tuple(model()["model"].values()))
    assert (
        refusal(blocks, put(named))
        == f"blocks: version {named.hex()} sent as: {('', blocks.vectors[0].version.hex())} does not fit"
    )


def test_what_took_for_ever_and_notes_without_end_are_refused() -> None:
    for name, value in (("wall_seconds", float("inf")), ("wall_seconds", float("nan")), ("telemetry", "x" * 1001)):
        with pytest.raises(messages.WireError, match=f"envelope: {name}"):
            codec.Envelope.parse(replace(codec.Envelope("worker-0-00ff"), **{name: value}).pack())  # type: ignore[arg-type]


def test_an_error_is_no_longer_than_a_record_may_be() -> None:
    assert refusal(messages.Error("E", "x" * 4000), lambda header: header[3].__setitem__("text", "x" * 4001)) == (
        "error: characters: 4001 does not fit"
    )
    assert refusal(messages.Shutdown("x" * 4000), lambda header: header[3].__setitem__("why", "x" * 4001)) == (
        "bye: characters: 4001 does not fit"
    )


def test_a_layout_has_no_negative_block_and_none_twice() -> None:
    def put(blocks: list[list[object]]) -> object:
        return lambda header: header[3].__setitem__("layout", blocks)

    described = messages.Described(DESCRIPTION, model())
    assert refusal(described, put([["a", -1, 0]])) == "described: layout: a: (-1, 0) does not fit"
    assert refusal(described, put([["a", 1, 0], ["a", 1, 0]])).startswith("described: layout: a block twice")
