"""The worker process: receive, run, reply. Its connection is `edge.runtime.connection`, its work
`edge.runtime.task_runner`.

A worker does the tasks in its hand one after another, and holds the block versions it was sent until told to forget
them. An exception in the work is reported, and the worker lives on; its traceback goes to the worker's log.

Liveness. A training step may keep the main loop busy for minutes, so silence means nothing: libzmq's own heartbeats,
answered by its I/O thread, say whether the process at the other end runs, and the launcher says when a worker has
ended. A side thread watches the connection and ends the process as soon as it is lost, mid-step if need be. So a lost
connection is a dead worker, and the coordinator has one kind of loss to handle.

A worker on another machine (`edge.runtime.remote_worker`) is the same loop over another connection, with keys.
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
from edge.runtime import client_state_transfer
from edge.runtime.connection import CoordinatorConnection
from edge.runtime.log import log, log_error
from edge.runtime.task_runner import TaskRunner, error_of, load_executor

LOST = 75
"""Exit status of a worker that lost the coordinator (EX_TEMPFAIL of sysexits.h)."""
MAX_PREFETCHED = 256
"""Tasks that wait here; a coordinator sends a quarter as many (`coordinator.workers.scheduler`)."""


def _lost(why: str) -> NoReturn:
    log(why)
    os._exit(LOST)


def serve(link: CoordinatorConnection, open_runner: Callable[[], TaskRunner]) -> str:
    """Make ready, and do one task after another until a bye: empty, or what the start failed of, or the bye's why."""
    try:
        runner = open_runner()
    except Exception as error:
        link.send(error_of(error))
        while not isinstance(link.receive()[1], messages.Shutdown):
            pass
        return str(error) or type(error).__name__
    hand = _PrefetchQueue(runner.is_remote)
    while hand.tasks or hand.take_in(link):
        task = hand.tasks[0]
        envelope, message, kept = task
        link.settle()
        began = time.monotonic()
        reply, keeps = runner.perform(message, envelope, kept)
        seconds = time.monotonic() - began
        note = runner.telemetry(message, reply)
        if not hand.take_in(link):
            break
        if hand.tasks and hand.tasks[0] is task:  # or it was cancelled meanwhile
            hand.tasks.popleft()
            if keeps is not None:
                link.send(keeps, envelope.sequence)
            link.send(reply, envelope.sequence, seconds, note)
    return link.bye.why if link.bye is not None else ""


class _PrefetchQueue:
    """The tasks that have come and are not answered yet, in their order; the first is next, or in progress."""

    def __init__(self, is_remote: bool) -> None:
        self.tasks: deque[tuple[codec.Envelope, messages.Message, messages.ClientState | None]] = deque()
        self._is_remote_worker = is_remote
        self._ahead: tuple[int, messages.ClientState] | None = None  # what came last, for the task that comes next

    def take_in(self, link: CoordinatorConnection) -> bool:
        """Heed what has come, and wait for a task if there is none; False after a bye."""
        while True:
            try:
                envelope, message = link.receive(wait=not self.tasks)
            except zmq.Again:
                return True
            ahead, self._ahead = self._ahead, None
            if isinstance(message, messages.Shutdown):
                return False
            if isinstance(message, messages.Ping):
                link.send(messages.Pong())
            elif isinstance(message, messages.Cancel):
                self._drop(envelope.sequence)
                link.send(messages.Pong(), envelope.sequence)
            elif isinstance(message, messages.ClientState) and self._is_remote_worker:
                self._ahead = envelope.sequence, message
            else:
                self._add(link, envelope, message, ahead)

    def _add(
        self,
        link: CoordinatorConnection,
        envelope: codec.Envelope,
        message: messages.Message,
        ahead: tuple[int, messages.ClientState] | None,
    ) -> None:
        reason = self._why_not(envelope.sequence, message)
        amiss = client_state_transfer.mismatch(message, envelope, ahead) if self._is_remote_worker else ""
        if reason:
            link.refuse(0, reason)  # if it came twice, the first is still to be answered
        elif amiss:
            link.refuse(envelope.sequence, amiss)
        else:
            self.tasks.append((envelope, message, None if ahead is None else ahead[1]))

    def _why_not(self, sequence: int, message: messages.Message) -> str:
        """Why a message cannot be the next task, or nothing."""
        if isinstance(message, messages.Welcome):
            return "a second welcome"
        if isinstance(message, messages.ClientState):
            return "a worker that reaches the files of the run has no use for a ClientState"
        if sequence and any(task[0].sequence == sequence for task in self.tasks):
            return f"task {sequence} came twice"
        return f"more than {MAX_PREFETCHED} tasks wait" if len(self.tasks) >= MAX_PREFETCHED else ""

    def _drop(self, sequence: int) -> None:
        """Take a task out; it is gone already if its reply has crossed the cancel."""
        self.tasks = deque(task for task in self.tasks if task[0].sequence != sequence)


def main(argv: Sequence[str]) -> int:
    """``argv``: endpoint, identity, ``module:Class`` of the site, milliseconds between heartbeats."""
    endpoint, identity, site_name, heartbeat_ms = argv
    link = CoordinatorConnection(endpoint, identity, int(heartbeat_ms), _lost)
    job = link.welcome()
    return 1 if serve(link, lambda: _logged_runner(job, site_name)) else 0


def _logged_runner(job: Job, site_name: str) -> TaskRunner:
    try:
        return TaskRunner(*load_executor(job, site_name))
    except Exception:
        log_error()
        raise
