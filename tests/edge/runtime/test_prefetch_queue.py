"""When a worker's replies wait for others: as long as enough of its tasks are left for more to come meanwhile."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

from edge.protocol import messages, serialization
from edge.runtime.connection import CoordinatorConnection
from edge.runtime.task_runner import TaskRunner
from edge.runtime.worker import serve


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
