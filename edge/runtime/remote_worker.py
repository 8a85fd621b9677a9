"""A worker that joins a run on another machine: ``python -P -m edge.runtime.remote_worker``, which ``fedbr worker``
becomes.

It serves as any other worker does (`edge.runtime.worker`), with data and a cache of its own. Beforehand it checks that
it computes bit-identical results: on the same type of device, and from the same data. The coordinator can neither start
nor end it, so it ends by itself: after a `Shutdown`, when the connection is refused, when it is lost and does not come
back, or by Ctrl-C.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

import zmq

from edge.protocol.config import Job
from edge.protocol.messages import MAX_ERROR_TEXT, printable
from edge.protocol.portable import PORTABLE, trains_portably
from edge.runtime.connection import CoordinatorConnection, Credentials
from edge.runtime.keys import read_pair, read_public
from edge.runtime.log import log
from edge.runtime.numerics import difference, fingerprint, lacking
from edge.runtime.task_runner import TaskRunner, load_executor
from edge.runtime.worker import serve

FINISHED, FAILED, STOPPED = 0, 3, 4
HEARTBEAT_MS = 5000
EXECUTOR = "edge.training.trainer:LocalTrainer"
AUTO = "auto"
GRACE_SECONDS = 1.0
"""From a lost connection to the interruption of the task: a `Shutdown` may have come just before."""
RECONNECT_SECONDS = 5.0
"""Between two tries to interrupt the task: an exception in a finaliser is lost."""
REJOIN_SECONDS = 0.5
"""From a lost connection to the next."""


class JoinError(ValueError):
    """This worker cannot serve the run; the text has the reason."""


class _Lost(BaseException):
    """The connection is lost: raised between any two operations of a task, as Ctrl-C is."""


def localized_job(job: Job, device: str, root: str | None, cache: str) -> Job:
    """The job with this machine's device and paths, for its only worker; JoinError for a device of another type.

    ``device``: as in `Job.device`, or ``auto`` for the type that the run computes on.
    """
    kind = job.device.partition(":")[0]
    device = kind if device == AUTO else device
    if device.partition(":")[0] != kind:
        raise JoinError(f"--device {device}: the run computes on {job.device}, and other devices are not bit-identical")
    return replace(job, device=device, cache=cache, data=replace(job.data, root=root), worker_slot=0, workers=1)


def join_run(
    endpoint: str, credentials: Credentials, wait_seconds: float, device: str, root: str | None, cache: str
) -> int:
    """Join, serve, and leave; the exit code of ``fedbr worker``.

    After a run that was joined is lost, tries to join it again for ``wait_seconds``: it may have been stopped, or be
    resumed.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    until, seconds, first_why = float("-inf"), wait_seconds, ""
    while True:
        session = _Session(endpoint, credentials, seconds)
        try:
            why = session.serve(lambda job: open_runner(job, localized_job(job, device, root, cache)))
        except KeyboardInterrupt:
            _say("stopped")
            return STOPPED
        if not session.is_lost:
            first_why = ""
            break
        if session.has_joined:
            _say(f"{endpoint}: {why}; trying again for {wait_seconds:g} s")
            until, first_why = time.monotonic() + wait_seconds, why
        seconds = until - time.monotonic() - REJOIN_SECONDS
        if seconds <= 0:
            break
        time.sleep(REJOIN_SECONDS)
    why = first_why or why
    _say(f"{endpoint}: {why}" if why else "the run has ended")
    return FAILED if why else FINISHED


class _Session:
    """One connection to a run, from its beginning to its end."""

    def __init__(self, endpoint: str, credentials: Credentials, wait_seconds: float) -> None:
        self._endpoint, self._credentials, self._wait_seconds = endpoint, credentials, wait_seconds
        self._main_thread, self._has_ended = threading.get_ident(), threading.Event()
        self._reason = ""
        self._connection: CoordinatorConnection | None = None
        self.has_joined = False
        """Whether the run has answered"""
        self.is_lost = False
        """Whether it ended because the connection was lost, or was never answered"""

    def serve(self, prepare: Callable[[Job], TaskRunner]) -> str:
        """Serve the run until its end; empty, or what went wrong."""
        signal.signal(signal.SIGUSR1, _raise_lost)
        try:
            why = self._served(prepare)
            self._end()  # the coordinator closes the connection after its shutdown message
        except zmq.ZMQError as error:
            why = f"cannot connect: {error.strerror}"
        except _Lost:
            self._end()
            # A run that ends sends a shutdown just before it closes the connection, perhaps in the middle of a visit.
            shutdown = self._connection.last_shutdown() if self._connection is not None else None
            why, self.is_lost = (self._reason, True) if shutdown is None else (shutdown.why, False)
        finally:
            self._end()
            if self._connection is not None:
                self._connection.close()
        return why

    def _served(self, prepare: Callable[[Job], TaskRunner]) -> str:
        identity = f"remote-{secrets.token_hex(8)}"
        connection = CoordinatorConnection(
            self._endpoint, identity, HEARTBEAT_MS, self._lost, self._credentials, self._wait_seconds
        )
        self._connection = connection
        try:
            job = connection.welcome()
        except zmq.Again:
            self.is_lost = True
            return f"no answer within {self._wait_seconds:g} s: the run has ended, or has not begun to listen"
        self.has_joined = True
        _say(f"joined run {job.run_id}")
        return serve(connection, lambda: prepare(job))

    def _end(self) -> None:
        self._has_ended.set()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def _lost(self, why: str) -> None:
        self._reason = why
        seconds = GRACE_SECONDS
        while not self._has_ended.wait(seconds):
            signal.pthread_kill(self._main_thread, signal.SIGUSR1)
            seconds = RECONNECT_SECONDS


def open_runner(job: Job, local: Job) -> TaskRunner:
    """The task runner of the ``local`` job; JoinError if its results would not be those of the run's ``job``."""
    _check_instructions(job)
    here = fingerprint(local.device, job.train.instructions)
    change = difference(here, job.fingerprint) if job.fingerprint else ""
    if change:
        raise JoinError(f"not bit-identical to the run's machine: {change}; fedbr run --any-machine allows it")
    # imports torch, which takes seconds and is not needed for the refusal above
    from edge.training.blocks import load_dotted

    executor, gpu = load_executor(local, EXECUTOR)
    for client_side in (job.objective, *job.corrections):
        load_dotted(client_side.component)  # a user's own module may be missing here, which is no fault of a client
    sha256 = executor.describe(True)[0].data_sha256
    if sha256 != job.data_sha256:
        raise JoinError(
            f"data set {job.data.name}: this worker's is {sha256[:16]}, the run's is {job.data_sha256[:16]}"
        )
    return TaskRunner(executor, gpu, is_remote=True)


def _check_instructions(job: Job) -> None:
    """JoinError for a run with portable numerics, unless this process was started with them, or anything may join."""
    if job.train.instructions != PORTABLE or not job.fingerprint:
        return
    asked = "the run has train.instructions = portable"
    if lacks := lacking():
        raise JoinError(f"{asked}, which needs an x86-64 processor with AVX2 and FMA, and {lacks}")
    if not trains_portably(os.environ):
        raise JoinError(f"{asked}; start this worker with --instructions portable")


def _raise_lost(number: int, frame: FrameType | None) -> NoReturn:
    raise _Lost


def _say(text: str) -> None:
    log(f"fedbr worker: {printable(text, MAX_ERROR_TEXT)}")


def main(argv: Sequence[str]) -> int:
    """``argv``: endpoint, own NAME.key, the run's NAME.pub, device, data folder or '', cache, seconds to wait."""
    endpoint, keys, server, device, root, cache, wait_seconds = argv
    credentials = Credentials(read_pair(Path(keys)), read_public(Path(server)))
    return join_run(endpoint, credentials, float(wait_seconds), device, root or None, cache)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)  # does not wait for messages that are queued for a lost run
