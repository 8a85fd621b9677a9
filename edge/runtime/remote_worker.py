"""A worker that joins a run on another machine: ``python -P -m edge.runtime.remote_worker``, which ``fedbr worker``
becomes.

It serves as any other worker does (`edge.runtime.worker`), from data and a cache of its own. Beforehand it makes sure
that it would compute what the others do: on the same type of device, and from the same data. The coordinator can
neither start nor end it, so it ends by itself: with a bye, when the connection is refused, when it is lost and does not
come back, or by Ctrl-C.
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
from edge.runtime.connection import CoordinatorConnection, Credentials
from edge.runtime.keys import read_pair, read_public
from edge.runtime.log import log
from edge.runtime.numerics import difference, fingerprint
from edge.runtime.task_runner import TaskRunner, load_executor
from edge.runtime.worker import serve

FINISHED, FAILED, STOPPED = 0, 3, 4
HEARTBEAT_MS = 5000
EXECUTOR = "edge.training.trainer:LocalTrainer"
AUTO = "auto"
GRACE_SECONDS = 1.0
"""From a lost connection to the end of what goes on here: a bye that has just come is better read in peace."""
RECONNECT_SECONDS = 5.0
"""Between two tries to end what goes on: one that falls into a finaliser is lost."""
REJOIN_SECONDS = 0.5
"""From a connection that was lost to the next."""


class JoinError(ValueError):
    """Why this worker cannot serve the run."""


class _Lost(BaseException):
    """The connection is lost: like a Ctrl-C, it ends a visit between two operations, wherever that is."""


def localized_job(job: Job, device: str, root: str | None, cache: str) -> Job:
    """The job as it is done here, by the only worker of this machine; JoinError for a device of another type.

    ``device``: as in `Job.device`, or ``auto`` for the type that the run computes on.
    """
    kind = job.device.partition(":")[0]
    device = kind if device == AUTO else device
    if device.partition(":")[0] != kind:
        raise JoinError(f"--device {device}: the run computes on {job.device}, and other devices give other last bits")
    return replace(job, device=device, cache=cache, data=replace(job.data, root=root), worker_slot=0, workers=1)


def join_run(
    endpoint: str, credentials: Credentials, wait_seconds: float, device: str, root: str | None, cache: str
) -> int:
    """Join, serve, and leave; the exit code of ``fedbr worker``.

    A run that was joined and is lost is tried again for ``wait_seconds``: it may have been stopped for a while, or be
    taken up again.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    until, patience, first_why = float("-inf"), wait_seconds, ""
    while True:
        visit = _Visit(endpoint, credentials, patience)
        try:
            why = visit.serve(lambda job: open_runner(job, localized_job(job, device, root, cache)))
        except KeyboardInterrupt:
            _say("stopped")
            return STOPPED
        if not visit.is_lost:
            first_why = ""
            break
        if visit.has_joined:
            _say(f"{endpoint}: {why}; trying again for {wait_seconds:g} s")
            until, first_why = time.monotonic() + wait_seconds, why
        patience = until - time.monotonic() - REJOIN_SECONDS
        if patience <= 0:
            break
        time.sleep(REJOIN_SECONDS)
    why = first_why or why
    _say(f"{endpoint}: {why}" if why else "the run has ended")
    return FAILED if why else FINISHED


class _Visit:
    """One connection to a run, from its beginning to its end."""

    def __init__(self, endpoint: str, credentials: Credentials, wait_seconds: float) -> None:
        self._endpoint, self._credentials, self._wait_seconds = endpoint, credentials, wait_seconds
        self._main_thread, self._has_ended = threading.get_ident(), threading.Event()
        self._reason = ""
        self._link: CoordinatorConnection | None = None
        self.has_joined = False
        """Whether the run has answered"""
        self.is_lost = False
        """Whether it ended because the connection was lost, or nobody answered"""

    def serve(self, prepare: Callable[[Job], TaskRunner]) -> str:
        """Serve the run until its end; empty, or what went wrong."""
        signal.signal(signal.SIGUSR1, _raise_lost)
        try:
            why = self._served(prepare)
            self._end()  # who has said goodbye closes the connection next
        except zmq.ZMQError as error:
            why = f"cannot connect: {error.strerror}"
        except _Lost:
            self._end()
            # A run that ends says so just before it closes the connection, perhaps in the middle of a visit.
            bye = self._link.last_bye() if self._link is not None else None
            why, self.is_lost = (self._reason, True) if bye is None else (bye.why, False)
        finally:
            self._end()
            if self._link is not None:
                self._link.close()
        return why

    def _served(self, prepare: Callable[[Job], TaskRunner]) -> str:
        identity = f"remote-{secrets.token_hex(8)}"
        link = CoordinatorConnection(
            self._endpoint, identity, HEARTBEAT_MS, self._lost, self._credentials, self._wait_seconds
        )
        self._link = link
        try:
            job = link.welcome()
        except zmq.Again:
            self.is_lost = True
            return f"no answer within {self._wait_seconds:g} s: the run has ended, or has not begun to listen"
        self.has_joined = True
        _say(f"joined run {job.run_id}")
        return serve(link, lambda: prepare(job))

    def _end(self) -> None:
        self._has_ended.set()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    def _lost(self, why: str) -> None:
        self._reason = why
        seconds = GRACE_SECONDS
        while not self._has_ended.wait(seconds):
            signal.pthread_kill(self._main_thread, signal.SIGUSR1)
            seconds = RECONNECT_SECONDS


def open_runner(job: Job, here: Job) -> TaskRunner:
    """What does the work ``here``, once it is sure to do it as the run asks; JoinError where something is not alike."""
    change = difference(fingerprint(here.device), job.fingerprint) if job.fingerprint else ""
    if change:
        raise JoinError(f"other last bits than the run's: {change}; fedbr run --any-machine takes them")
    from edge.training.block_model import (
        load_dotted,  # and torch with it, which takes seconds and is not needed to be refused
    )

    site, gpu = load_executor(here, EXECUTOR)
    for client_side in (job.objective, *job.corrections):
        load_dotted(
            client_side.component
        )  # a method from a user's own module may be missing here, which no client is to blame for
    sha256 = site.describe(True)[0].data_sha256
    if sha256 != job.data_sha256:
        raise JoinError(
            f"data set {job.data.name}: this worker's is {sha256[:16]}, the run's is {job.data_sha256[:16]}"
        )
    return TaskRunner(site, gpu, is_remote=True)


def _raise_lost(number: int, frame: FrameType | None) -> NoReturn:
    raise _Lost


def _say(text: str) -> None:
    log(f"fedbr worker: {printable(text, MAX_ERROR_TEXT)}")


def main(argv: Sequence[str]) -> int:
    """``argv``: endpoint, own NAME.key, the run's NAME.pub, device, folder of data or nothing, cache, seconds."""
    endpoint, keys, server, device, root, cache, wait_seconds = argv
    credentials = Credentials(read_pair(Path(keys)), read_public(Path(server)))
    return join_run(endpoint, credentials, float(wait_seconds), device, root or None, cache)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)  # what is still to be sent to a run that is gone is not waited for
