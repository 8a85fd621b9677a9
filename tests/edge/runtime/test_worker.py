"""A real worker process and a coordinator that says what no coordinator should: it refuses, and serves on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from edge.protocol import messages, serialization
from tests.edge.protocol.mutations import JOB, RUN, Parts, pack, payload
from tests.edge.runtime.listener import Listener


@pytest.fixture
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listener]:
    """With a worker that has greeted."""
    opened = Listener(tmp_path_factory.mktemp("w"))
    assert opened.hear() == (0, messages.Hello())
    yield opened
    assert opened.close() == 0


def welcome(listener: Listener) -> None:
    listener.send(pack(messages.Welcome(JOB), serialization.Envelope(listener.identity)))


def refusal(listener: Listener) -> tuple[int, str]:
    """Sequence and reason of the refusal that comes next."""
    sequence, message = listener.hear()
    assert isinstance(message, messages.Error) and message.kind == "WireError", message
    return sequence, message.text


def is_served(listener: Listener) -> bool:
    """Whether a visit is still done, and nothing came unasked before it."""
    before: list[messages.Message] = []
    reply = listener.visit(3, before.append)
    assert isinstance(reply, messages.Update)
    return before == [] and reply.payload["model"]["a"].data.tolist() == [3.0, 3.0, 3.0]


def test_a_message_that_does_not_fit_is_answered_and_the_next_is_served(listener: Listener) -> None:
    welcome(listener)
    mine = serialization.Envelope(listener.identity, 7)
    of_another_run = serialization.encode(messages.Describe(True), "run-2")
    wrong: dict[str, tuple[Parts, int]] = {
        "1 parts where at least 2 were due": ([b""], 0),
        "the envelope names worker-1-00ff": (pack(messages.Cancel(), serialization.Envelope("worker-1-00ff", 7)), 0),
        "run id (this is run-1): 'run-2' does not fit": ([mine.pack(), of_another_run.header], 7),
        "message type: 'Score' does not fit": (pack(messages.Score(0, 1, {}), mine), 7),
        "a Ping with the number 7": (pack(messages.Ping(), mine), 7),
        "a Train with the number 0": (
            pack(messages.Train(1, 5, 0.1, {}, {}), serialization.Envelope(listener.identity), frames=False),
            0,
        ),
        "a Welcome that was not requested": (
            pack(messages.Welcome(JOB), serialization.Envelope(listener.identity), run_id=RUN),
            0,
        ),
        "run id (this is run-1): '' does not fit": (
            pack(messages.Welcome(JOB), serialization.Envelope(listener.identity)),
            0,
        ),
        f"entry model/a: version {payload(8.0)['model']['a'].version.hex()} is not held here": (
            pack(messages.Evaluate(0, 4, 1, payload(8.0)), mine, frames=False),
            7,
        ),
    }
    for reason, (parts, sequence) in wrong.items():
        listener.send(parts)
        assert refusal(listener) == (sequence, reason)
    assert is_served(listener)


def test_what_comes_before_the_welcome_is_refused(listener: Listener) -> None:
    listener.send(pack(messages.Ping(), serialization.Envelope(listener.identity), run_id=messages.NO_RUN))
    assert refusal(listener) == (0, "a Ping where a welcome was due")
    listener.send(pack(messages.Ping(), serialization.Envelope(listener.identity)))
    assert refusal(listener) == (0, "run id (this is ): 'run-1' does not fit")
    listener.send([b"\xc1", b"\xc1"])
    assert refusal(listener)[1].startswith("envelope: MessagePack data is malformed")
    welcome(listener)
    assert is_served(listener)


def test_a_task_that_comes_twice_is_done_once(listener: Listener) -> None:
    """Both come while the worker is busy: it takes one in, and refuses the other."""
    welcome(listener)
    busy = messages.Train(1, 5, 0.1, {"tenths": 3}, {})
    listener.send(pack(busy, serialization.Envelope(listener.identity, 6), frames=False))
    for _ in range(2):
        listener.send(pack(messages.Describe(True), serialization.Envelope(listener.identity, 7)))
    answers = [listener.hear() for _ in range(3)]
    assert {sequence: type(message) for sequence, message in answers} == {
        0: messages.Error,
        6: messages.Update,
        7: messages.Described,
    }
    assert (0, messages.Error("WireError", "task 7 came twice")) in answers


def test_a_refused_message_changes_nothing(listener: Listener) -> None:
    welcome(listener)
    vectors = tuple(payload()["model"].values())
    listener.send(pack(messages.Tensors(vectors), serialization.Envelope(listener.identity)))
    forget = serialization.Envelope(listener.identity, evict=tuple(vector.version for vector in vectors))
    listener.send([forget.pack(), b"\xc1"])
    assert refusal(listener)[1].startswith("header: MessagePack data is malformed")
    listener.send(
        pack(messages.Evaluate(0, 4, 1, payload()), serialization.Envelope(listener.identity, 8), frames=False)
    )
    assert listener.hear() == (8, messages.Score(0, 1, {messages.CORRECT: (0, 4), messages.CROSS_ENTROPY: (0.5, 4)}))
