"""The inbox of a worker: the tasks that it has and has not answered. A node agent is a worker whose executor is a pool.

A task that comes twice is done once, and more tasks than a coordinator may send are refused. A cancelled task is
dropped, and the answer to its cancel comes after all replies that wait, since a later one would be refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from edge.protocol import messages
from edge.protocol.messages import Message
from edge.protocol.serialization import Envelope
from edge.runtime.connection import CoordinatorConnection
from edge.runtime.reply_batch import ReplyBatch, visits_of

T = TypeVar("T")

MAX_PREFETCHED = 1024
"""Most tasks of one worker; a coordinator sends a quarter as many (`coordinator.workers.assignment`)."""
UNREQUESTED = messages.Welcome | messages.FilePart
"""Messages that come before the first task, or never."""


class TaskInbox(Generic[T]):
    """The tasks of one connection by number, in order of arrival, as its worker keeps them."""

    def __init__(
        self,
        connection: CoordinatorConnection,
        replies: ReplyBatch,
        most: Callable[[], int] = lambda: MAX_PREFETCHED,
        on_cancel: Callable[[T], None] = lambda task: None,
    ) -> None:
        """``most``: how many tasks there may be; ``on_cancel``: called with a task that is dropped."""
        self._connection, self._replies, self._most, self._on_cancel = connection, replies, most, on_cancel
        self.tasks: dict[int, T] = {}
        self._requests = 0

    def new_tasks(self, envelope: Envelope, message: Message) -> Iterator[tuple[int, Envelope, Message]]:
        """(number, envelope, task) of each task in a message; what is no task is answered here.

        Each must be in `tasks`, or answered, before the next is taken. A request that belongs to no task has a number
        of its own, below 0.
        """
        if isinstance(message, messages.Ping):
            self._connection.send(messages.Pong())
        elif isinstance(message, messages.Cancel):
            task = self.tasks.pop(envelope.sequence, None)
            if task is not None:
                self._on_cancel(task)
            self._replies.send()
            self._connection.send(messages.Pong(), envelope.sequence)
        elif isinstance(message, UNREQUESTED):
            self._connection.refuse(0, f"a {type(message).__name__} that was not requested")
        else:
            each = visits_of(envelope, message) if isinstance(message, messages.Visits) else [(envelope, message)]
            for of_task, task_message in each:
                if of_task.sequence in self.tasks:  # the first is still to be answered
                    self._connection.refuse(0, f"task {of_task.sequence} came twice")
                elif len(self.tasks) >= self._most():
                    self._connection.refuse(0, f"more than {self._most()} tasks wait")
                else:
                    self._requests += not of_task.sequence
                    yield of_task.sequence or -self._requests, of_task, task_message
