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
from collections.abc import Callable, Sequence
from typing import NoReturn

import zmq

from edge.protocol import messages, serialization
from edge.protocol.portable import NATIVE, trains_portably
from edge.protocol.secure_sum import secure_sum
from edge.runtime.connection import CoordinatorConnection
from edge.runtime.inbox import TaskInbox
from edge.runtime.log import log, log_error
from edge.runtime.reply_batch import ReplyBatch
from edge.runtime.task_runner import TaskRunner, error_of, load_executor

LOST = 75
"""Exit status of a worker that lost the coordinator (EX_TEMPFAIL of sysexits.h)."""
MIN_PREFETCHED = 2
"""Shortest prefetch queue with which replies wait: while its last task runs, more can come."""


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
    inbox: TaskInbox[tuple[serialization.Envelope, messages.Message]] = TaskInbox(connection, replies)
    while inbox.tasks or _receive(connection, inbox):
        number, task = next(iter(inbox.tasks.items()))
        envelope, message = task
        connection.settle()
        began = time.monotonic()
        reply = runner.perform(message, envelope)
        seconds = time.monotonic() - began
        telemetry = runner.telemetry(message, reply)
        if not _receive(connection, inbox):
            break
        if inbox.tasks.get(number) is task:  # or it was cancelled meanwhile
            del inbox.tasks[number]
            if telemetry or not replies.add(envelope.sequence, seconds, reply):
                replies.send()
                connection.send(reply, envelope.sequence, seconds, telemetry)
            if len(inbox.tasks) < MIN_PREFETCHED or replies.is_due():
                replies.send()
    return True


def _receive(
    connection: CoordinatorConnection, inbox: TaskInbox[tuple[serialization.Envelope, messages.Message]]
) -> bool:
    """Handle all messages that have come, and wait for a task if there is none; False after a `Shutdown`."""
    while True:
        if inbox.tasks and not connection.is_readable():
            return True
        try:
            envelope, message = connection.receive(wait=not inbox.tasks)
        except zmq.Again:
            return True
        if isinstance(message, messages.Shutdown):
            return False
        if isinstance(message, messages.ClientState):
            connection.refuse(0, "a worker that reaches the files of the run has no use for a ClientState")
            continue
        for number, of_task, task in inbox.new_tasks(envelope, message):
            inbox.tasks[number] = of_task, task


def main(argv: Sequence[str]) -> int:
    """``argv``: endpoint, identity, ``module:Class`` of the executor, milliseconds between heartbeats."""
    endpoint, identity, executor, heartbeat_ms = argv
    connection = CoordinatorConnection(endpoint, identity, int(heartbeat_ms), _lost)
    job = connection.welcome()

    def open_runner() -> TaskRunner:
        is_native = job.train.instructions == NATIVE
        assert is_native or trains_portably(os.environ), "the fork server began with other switches"
        try:
            return TaskRunner(*load_executor(job, executor), secure_sum(job.privacy))
        except Exception:
            log_error()
            raise

    return 0 if serve(connection, open_runner) else 1
