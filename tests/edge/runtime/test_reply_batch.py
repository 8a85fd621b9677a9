"""When replies wait for others, and when they go out."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import structs

from edge.protocol import messages, serialization
from edge.protocol.payload import Vector
from edge.runtime.reply_batch import ReplyBatch


class Sent:
    """What was sent, in order."""

    def __init__(self) -> None:
        self.messages: list[tuple[messages.Message, int]] = []

    def send(
        self, message: messages.Message, sequence: int = 0, wall_seconds: float = 0.0, telemetry: str = ""
    ) -> None:
        self.messages.append((message, sequence))


def update(client: int, numbers: np.ndarray[tuple[int], np.dtype[np.float32]] | None = None) -> messages.Update:
    vectors = {} if numbers is None else {"model": {"a": Vector(numbers)}}
    return messages.Update(client, 5, {"loss": float(client)}, vectors)


def test_updates_wait_for_each_other_and_keep_their_numbers() -> None:
    sent, flat = Sent(), np.zeros(2, np.float32)
    batch = ReplyBatch(sent)
    for client in (1, 2, 3):
        flat[:] = client  # as the next visit overwrites the model
        assert batch.add(10 + client, 0.5, update(client, flat))
    assert sent.messages == []
    batch.send()
    ((message, sequence),) = sent.messages
    assert isinstance(message, messages.Updates) and sequence == 0
    replies = list(message.replies())
    assert [(number, reply.client, reply.numbers) for number, _, reply in replies] == [
        (11, 1, {"loss": 1.0}),
        (12, 2, {"loss": 2.0}),
        (13, 3, {"loss": 3.0}),
    ]
    assert [reply.payload["model"]["a"].data.tolist() for _, _, reply in replies] == [[1, 1], [2, 2], [3, 3]]


def test_one_update_goes_out_as_it_is() -> None:
    sent = Sent()
    batch = ReplyBatch(sent)
    batch.add(7, 0.5, update(1))
    batch.send()
    batch.send()
    assert sent.messages == [(update(1), 7)]


def test_updates_of_other_shapes_are_not_mixed() -> None:
    sent = Sent()
    batch = ReplyBatch(sent)
    batch.add(7, 0.5, update(1))
    batch.add(8, 0.5, update(2, np.ones(2, np.float32)))
    assert sent.messages == [(update(1), 7)]


def test_what_visits_have_logged_waits_with_them_and_other_names_are_not_mixed() -> None:
    sent = Sent()
    batch = ReplyBatch(sent)
    for client, name in enumerate(("gap", "gap", "norm")):
        batch.add(7 + client, 0.5, structs.replace(update(client), logged={name: 0.5 * client}))
    batch.send()
    (both, _), (last, sequence) = sent.messages
    assert isinstance(both, messages.Updates) and isinstance(last, messages.Update)
    assert [reply.logged for *_, reply in both.replies()] == [{"gap": 0.0}, {"gap": 0.5}]
    assert (last.logged, sequence) == ({"norm": 1.0}, 9)


def test_long_uploads_and_other_replies_do_not_wait() -> None:
    batch = ReplyBatch(Sent())
    assert not batch.add(7, 0.5, update(1, np.zeros((1 << 18) + 1, np.float32)))  # more than 1 MiB
    assert not batch.add(7, 0.5, messages.Error("ValueError", "no"))


def test_a_batch_is_due_after_a_tenth_of_a_second_or_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("edge.runtime.reply_batch.time.monotonic", lambda: now)
    batch = ReplyBatch(Sent())
    assert not batch.is_due()
    batch.add(7, 0.5, update(1))
    assert not batch.is_due()
    now = 100.099
    assert not batch.is_due()
    now = 100.101
    assert batch.is_due()
    now, full = 100.0, ReplyBatch(Sent())
    for client in range(1024):
        assert not full.is_due()
        full.add(1 + client, 0.5, update(client))
    assert full.is_due()


def test_a_batch_that_would_be_too_large_goes_out_before_the_next_update() -> None:
    """However many replies a node agent's workers have sent at once; each message is less than 4 MiB."""
    sent = Sent()
    added = ReplyBatch(sent)
    for client in range(1030):
        added.add(1 + client, 0.5, update(client))
    added.send()
    whole = ReplyBatch(sent)
    for client in range(9):
        whole.add(1 + client, 0.5, update(client, np.zeros(1 << 16, np.float32)))  # a quarter of a MiB each
    assert whole.is_waiting
    whole.send()
    many = ReplyBatch(sent)
    vectors = {str(key): Vector(np.zeros(1, np.float32)) for key in range(1000)}
    for client in range(66):  # 65 have 65,000 vectors
        many.add(1 + client, 0.5, messages.Update(client, 5, {}, {"model": vectors}))
    many.send()
    counts = [len(message.clients) if isinstance(message, messages.Updates) else 1 for message, _ in sent.messages]
    assert counts == [1024, 6, 8, 1, 65, 1]
    assert max(serialization.encode(message, "run-1").nbytes for message, _ in sent.messages) < 3 << 20
