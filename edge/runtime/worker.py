"""The worker process: receive, run, reply. Its connection is `edge.runtime.connection`, its work
`edge.runtime.task_runner`.

A worker does the tasks in its prefetch queue one after another, and caches the block versions that it was sent until it
is told to evict them. An exception in a task is reported, and the worker lives on; the traceback goes to its log.

Liveness. A training step may keep the main loop busy for minutes, so silence says nothing: libzmq's own heartbeats,
answered by its I/O thread, show whether the process at the other end runs, and the launcher reports when a worker has
ended. A side thread watches the connection and ends the process as soon as it is lost, even in a step. So a lost
connection is a dead worker, and the coordinator has one kind of loss to handle.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NoReturn

import zmq

from edge.protocol import codec, messages
from edge.protocol.config import Job
from edge.protocol.portable import NATIVE, trains_portably
from edge.runtime.connection import CoordinatorConnection
from edge.runtime.log import log, log_error
from edge.runtime.reply_batch import ReplyBatch, visits_of
from edge.runtime.task_runner import TaskRunner, error_of, load_executor

LOST = 75
"""Exit status of a worker that lost the coordinator (EX_TEMPFAIL of sysexits.h)."""
MIN_PREFETCHED = 2
"""Shortest prefetch queue with which replies wait: while its last task runs, more can come."""
MAX_PREFETCHED = 1024
"""Longest prefetch queue; a coordinator sends a quarter as many tasks (`coordinator.workers.assignment`)."""


def _lost(why: str) -> NoReturn:
    log(why)
    os._exit(LOST)


def serve(connection: CoordinatorConnection, open_runner: Callable[[], TaskRunner]) -> bool:
    """Start, and do one task after another until a `Shutdown`; False if the start failed."""
    try:
        runner = open_runner()
    except Exception as error:
        connection.send(error_of(error))
        while not isinstance(connection.receive()[1], messages.Shutdown):
            pass
        return False
    replies = ReplyBatch(connection)
    queue = _PrefetchQueue(replies)
    while queue.tasks or queue.receive(connection):
        task = queue.tasks[0]
        envelope, message = task
        connection.settle()
        began = time.monotonic()
        reply = runner.perform(message, envelope)
        seconds = time.monotonic() - began
        telemetry = runner.telemetry(message, reply)
        if not queue.receive(connection):
            break
        if queue.tasks and queue.tasks[0] is task:  # or it was cancelled meanwhile
            queue.tasks.popleft()
            if telemetry or not replies.add(envelope.sequence, seconds, reply):
                replies.send()
                connection.send(reply, envelope.sequence, seconds, telemetry)
            if len(queue.tasks) < MIN_PREFETCHED or replies.is_due():
                replies.send()
    return True


class _PrefetchQueue:
    """The tasks that are not answered yet, in order of arrival; the first is next, or in progress."""

    def __init__(self, replies: ReplyBatch) -> None:
        self._replies = replies
        self.tasks: deque[tuple[codec.Envelope, messages.Message]] = deque()

    def receive(self, connection: CoordinatorConnection) -> bool:
        """Handle all messages that have come, and wait for a task if there is none; False after a `Shutdown`."""
        while True:
            if self.tasks and not connection.is_readable():
                return True
            try:
                envelope, message = connection.receive(wait=not self.tasks)
            except zmq.Again:
                return True
            if isinstance(message, messages.Shutdown):
                return False
            if isinstance(message, messages.Ping):
                connection.send(messages.Pong())
            elif isinstance(message, messages.Cancel):
                self._replies.send()  # after its pong, the reply to a cancelled task would be refused
                self._drop(envelope.sequence)
                connection.send(messages.Pong(), envelope.sequence)
            elif isinstance(message, messages.Visits):
                for task_envelope, visit in visits_of(envelope, message):
                    self._add(connection, task_envelope, visit)
            else:
                self._add(connection, envelope, message)

    def _add(self, connection: CoordinatorConnection, envelope: codec.Envelope, message: messages.Message) -> None:
        invalid = self._why_invalid(envelope.sequence, message)
        if invalid:
            connection.refuse(0, invalid)  # of a task that came twice, the first is still to be answered
        else:
            self.tasks.append((envelope, message))

    def _why_invalid(self, sequence: int, message: messages.Message) -> str:
        """Why a message cannot be the next task; '' if it can."""
        if isinstance(message, messages.Welcome):
            return "a second welcome"
        if isinstance(message, messages.FilePart):
            return "a part of a file that was not requested"
        if isinstance(message, messages.ClientState):
            return "a worker that reaches the files of the run has no use for a ClientState"
        if sequence and any(task[0].sequence == sequence for task in self.tasks):
            return f"task {sequence} came twice"
        return f"more than {MAX_PREFETCHED} tasks wait" if len(self.tasks) >= MAX_PREFETCHED else ""

    def _drop(self, sequence: int) -> None:
        """Remove a cancelled task, if its reply has not crossed the cancel."""
        self.tasks = deque(task for task in self.tasks if task[0].sequence != sequence)


def main(argv: Sequence[str]) -> int:
    """``argv``: endpoint, identity, ``module:Class`` of the executor, milliseconds between heartbeats."""
    endpoint, identity, executor, heartbeat_ms = argv
    connection = CoordinatorConnection(endpoint, identity, int(heartbeat_ms), _lost)
    job = connection.welcome()
    return 0 if serve(connection, lambda: _logged_runner(job, executor)) else 1


def _logged_runner(job: Job, executor: str) -> TaskRunner:
    assert job.train.instructions == NATIVE or trains_portably(os.environ), "the fork server began with other switches"
    try:
        return TaskRunner(*load_executor(job, executor))
    except Exception:
        log_error()
        raise
