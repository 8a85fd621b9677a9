"""A worker that joins a run on another machine: ``python -P -m edge.guest``, which ``fedbr worker`` becomes.

It serves as any other worker does (`edge.worker`), from data and a cache of its own. Beforehand it makes sure that it
would compute what the others do: on the same type of device, and from the same data. The coordinator can neither start
nor end it, so it ends by itself: with a bye, when the connection is lost or refused, or by Ctrl-C.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

import zmq

from edge.bench import Bench, open_site
from edge.config import Job
from edge.keys import read_pair, read_public
from edge.link import Credentials, Link
from edge.machine import computes, differing
from edge.worker import serve

FINISHED, FAILED, STOPPED = 0, 3, 4
HEARTBEAT_MS = 5000
SITE = "edge.site:Site"
AUTO = "auto"
GRACE_SECONDS = 1.0
"""From a lost connection to the end of what goes on here: a bye that has just come is better read in peace."""
AGAIN_SECONDS = 5.0
"""Between two tries to end what goes on: one that falls into a finaliser is lost."""


class JoinError(ValueError):
    """Why this worker cannot serve the run."""


class _Lost(BaseException):
    """The connection is lost: like a Ctrl-C, it ends a visit between two operations, wherever that is."""


def fitted(job: Job, device: str, root: str | None, cache: str) -> Job:
    """The job as it is done here, by the only worker of this machine; JoinError for a device of another type.

    ``device``: as in `Job.device`, or ``auto`` for the type that the run computes on.
    """
    kind = job.device.partition(":")[0]
    device = kind if device == AUTO else device
    if device.partition(":")[0] != kind:
        raise JoinError(f"--device {device}: the run computes on {job.device}, and other devices give other last bits")
    return replace(job, device=device, cache=cache, data=replace(job.data, root=root), seat=0, workers=1)


def join(
    endpoint: str, credentials: Credentials, wait_seconds: float, device: str, root: str | None, cache: str
) -> int:
    """Join, serve, and leave; the exit code of ``fedbr worker``."""
    reasons: list[str] = []

    def lost(why: str) -> None:
        reasons.append(why)
        seconds = GRACE_SECONDS
        while not has_ended.wait(seconds):
            signal.pthread_kill(main_thread, signal.SIGUSR1)
            seconds = AGAIN_SECONDS

    main_thread, has_ended = threading.get_ident(), threading.Event()
    signal.signal(signal.SIGUSR1, _raise_lost)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    link = None
    try:
        link = Link(endpoint, f"guest-{secrets.token_hex(8)}", HEARTBEAT_MS, lost, credentials, wait_seconds)
        why = _served(link, wait_seconds, lambda job: bench(job, fitted(job, device, root, cache)))
        has_ended.set()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # who has said goodbye closes the connection next
    except zmq.ZMQError as error:
        why = f"cannot connect: {error.strerror}"
    except _Lost:
        has_ended.set()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        # A run that ends says so just before it closes the connection, perhaps in the middle of a visit.
        bye = link.last_bye() if link is not None else None
        why = reasons[0] if bye is None else bye.why
    except KeyboardInterrupt:
        has_ended.set()
        _say("stopped")
        return STOPPED
    _say(f"{endpoint}: {why}" if why else "the run has ended")
    return FAILED if why else FINISHED


def _served(link: Link, wait_seconds: float, prepare: Callable[[Job], Bench]) -> str:
    """Serve a run until its end; empty, or what went wrong."""
    try:
        job = link.welcome()
    except zmq.Again:
        return f"no answer within {wait_seconds:g} s: the run has ended, or has not begun to listen"
    _say(f"joined run {job.run_id}")
    return serve(link, lambda: prepare(job))


def bench(job: Job, here: Job) -> Bench:
    """What does the work ``here``, once it is sure to do it as the run asks; JoinError where something is not alike."""
    change = differing(computes(here.device), job.computes) if job.computes else ""
    if change:
        raise JoinError(f"other last bits than the run's: {change}; fedbr run --any-machine takes them")
    from edge.blocks import load_dotted  # and torch with it, which takes seconds and is not needed to be refused

    site, gpu = open_site(here, SITE)
    for half in (job.objective, *job.corrections):
        load_dotted(half.half)  # a method from a user's own module may be missing here, which no client is to blame for
    sha256 = site.describe(True)[0].data_sha256
    if sha256 != job.data_sha256:
        raise JoinError(
            f"data set {job.data.name}: this worker's is {sha256[:16]}, the run's is {job.data_sha256[:16]}"
        )
    return Bench(site, gpu, is_guest=True)


def _raise_lost(number: int, frame: FrameType | None) -> NoReturn:
    raise _Lost


def _say(text: str) -> None:
    print(f"fedbr worker: {text}", file=sys.stderr, flush=True)


def main(argv: Sequence[str]) -> int:
    """``argv``: endpoint, own NAME.key, the run's NAME.pub, device, folder of data or nothing, cache, seconds."""
    endpoint, keys, server, device, root, cache, wait_seconds = argv
    credentials = Credentials(read_pair(Path(keys)), read_public(Path(server)))
    return join(endpoint, credentials, float(wait_seconds), device, root or None, cache)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)  # what is still to be sent to a run that is gone is not waited for
