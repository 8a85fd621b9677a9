"""When replies wait for others, and when they go out."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

import numpy as np

from edge.protocol import messages, serialization
from edge.protocol.payload import Vector
from edge.runtime.connection import CoordinatorConnection
from edge.runtime.reply_batch import ReplyBatch
from edge.runtime.task_runner import TaskRunner
from edge.runtime.worker import serve


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


def test_long_uploads_and_other_replies_do_not_wait() -> None:
    batch = ReplyBatch(Sent())
    assert not batch.add(7, 0.5, update(1, np.zeros((1 << 18) + 1, np.float32)))  # more than 1 MiB
    assert not batch.add(7, 0.5, messages.Error("ValueError", "no"))


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


# --- while other tasks are left ---------------------------------------------------------------------------------------


class SentVisits:
    """Some visits that came at once, then the end of the run; notes what happens to them, in order."""

    def __init__(self, visits: int) -> None:
        train = [messages.Train(client, 0, 0.1, {}, {}) for client in range(visits)]
        tasks = [(serialization.Envelope("worker", sequence), visit) for sequence, visit in enumerate(train, 1)]
        self.left: deque[tuple[serialization.Envelope, messages.Message]] = deque(tasks)
        self.happened: list[str] = []

    def is_readable(self) -> bool:
        return bool(self.left)

    def receive(self, wait: bool = True) -> tuple[serialization.Envelope, messages.Message]:
        return self.left.popleft() if self.left else (serialization.Envelope("worker"), messages.Shutdown())

    def settle(self) -> None:
        pass

    def send(self, message: messages.Message, *_: Any) -> None:
        count = len(message.sequences) if isinstance(message, messages.Updates) else 1
        self.happened.append(f"{count} sent")

    def perform(self, task: messages.Train, envelope: serialization.Envelope) -> messages.Update:
        self.happened.append(f"client {task.client}")
        return messages.Update(task.client, task.round, {"loss": 1.0}, {})

    def telemetry(self, *_: Any) -> str:
        return ""


def happened(visits: int) -> list[str]:
    sent = SentVisits(visits)
    assert serve(cast(CoordinatorConnection, sent), lambda: cast(TaskRunner, sent))
    return sent.happened


def test_replies_wait_until_one_task_is_left_while_which_more_can_come() -> None:
    assert happened(4) == ["client 0", "client 1", "client 2", "3 sent", "client 3", "1 sent"]


def test_a_reply_goes_out_at_once_if_one_task_or_none_is_left() -> None:
    assert happened(2) == ["client 0", "1 sent", "client 1", "1 sent"]
    assert happened(1) == ["client 0", "1 sent"]
