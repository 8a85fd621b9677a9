"""The worker process: receive, run, reply. The only file of edge that opens sockets; the protocol is `edge.wire`.

A worker does the tasks in its hand one after another, and holds the block versions it was sent until told to forget
them. An exception in the work is reported, and the worker lives on; its traceback goes to the worker's log. Where it is
told to, it adds up its clients' updates instead of sending each. Of a GPU it takes its share (`edge.gpus`).

Long buffers are handed over, not copied: the vectors of a reply may be views of what the next task overwrites, such as
the model's own flat vector. They stay untouched until that task begins, which waits for them to have been written out.

Liveness. A training step may keep the main loop busy for minutes, so silence means nothing: libzmq's own heartbeats,
answered by its I/O thread, say whether the process at the other end runs, and the nursery says when a worker has ended.
A side thread watches the connection and ends the process as soon as it is lost, mid-step if need be. So a lost
connection is a dead worker, and the coordinator has one kind of loss to handle.

A worker on another machine (`edge.guest`) is the same loop over another connection, with keys.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn, Protocol

import zmq
from zmq.utils.monitor import recv_monitor_message

from edge import luggage, messages, wire
from edge.config import CPU, Description, Job
from edge.exact import ExactSums
from edge.keys import KeyPair
from edge.payload import Payload, Vector

if TYPE_CHECKING:
    from edge.gpus import Gpu

LOST = 75
"""Exit status of a worker that lost the coordinator (EX_TEMPFAIL of sysexits.h)."""
WELCOME_SECONDS = 60
"""A coordinator that does not answer a hello in this time is not there."""
HIGH_WATER = 320
"""Messages queued per direction; a coordinator has no more under way to one worker (`HIGH_WATER` of its pool)."""
COPY_NBYTES = 1 << 18
"""Shorter vectors are copied after all: hearing that libzmq is done with a buffer takes longer. A visit that sends ten
vectors of 248 kB in all costs the worker 0.26 ms instead of 0.32 ms."""
MAX_REASON = 400
"""Characters of why a message was refused."""
MAX_IN_HAND = 256
"""Tasks that wait here; a coordinator sends a quarter as many (`coordinator.leases`)."""
REFUSAL_SECONDS = 1.0
"""Between two lines of the log on messages that were refused."""
COMES_DOWN = (
    messages.Welcome
    | messages.Ping
    | messages.Describe
    | messages.Blocks
    | messages.Kept
    | messages.Train
    | messages.Evaluate
    | messages.Collect
    | messages.Cancel
    | messages.Bye
)
NUMBERED = messages.Describe | messages.Kept | messages.Train | messages.Evaluate | messages.Cancel
"""Messages that belong to a task."""
GONE = "the coordinator is gone"
NOT_LET_IN = "no handshake: the key of the run there is not the one named in --server, or it is no run to join"
NOT_ALLOWED = "the run does not know this key: its public half must be named in --allow there"
FAILED_HANDSHAKES = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
EVENTS = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | FAILED_HANDSHAKES


@dataclass(frozen=True)
class Credentials:
    """By which a worker and a coordinator on different machines know each other."""

    own: KeyPair
    server: bytes
    """Public key of the coordinator."""


class Site(Protocol):
    """What a worker does for a run; `edge.site.Site` trains for real, tests have their own."""

    def describe(self, data: bool) -> tuple[Description, Payload]:
        """The description, and the initial vectors."""
        ...

    def train(self, task: messages.Train, state_in: str | None, state_out: str | None) -> messages.Update:
        """One visit to one client. The vectors of the update are left as they are until the next call."""
        ...

    def evaluate(self, task: messages.Evaluate, state_in: str | None) -> messages.Score:
        """Some test examples."""
        ...


class Link:
    """The connection to the coordinator, and the blocks that came over it."""

    def __init__(
        self,
        endpoint: str,
        identity: str,
        heartbeat_ms: int,
        lost: Callable[[str], None],
        credentials: Credentials | None = None,
        welcome_seconds: float = WELCOME_SECONDS,
    ) -> None:
        """``lost``: called in a side thread with the reason, once, when the connection is lost or refused."""
        self._identity, self._run_id = identity, messages.NO_RUN
        self._welcome_seconds = welcome_seconds
        self._held: dict[bytes, Vector] = {}
        self._refused, self._logged_at = 0, -REFUSAL_SECONDS
        self._under_way: list[zmq.MessageTracker] = []
        self.bye: messages.Bye | None = None
        self._socket = zmq.Context(io_threads=1).socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, identity.encode())
        self._socket.copy_threshold = COPY_NBYTES
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
        self._socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, heartbeat_ms)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 4 * heartbeat_ms)
        self._socket.setsockopt(zmq.RCVTIMEO, round(welcome_seconds * 1000))
        if credentials is not None:
            self._socket.setsockopt(zmq.CURVE_PUBLICKEY, credentials.own.public)
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, credentials.own.secret)
            self._socket.setsockopt(zmq.CURVE_SERVERKEY, credentials.server)
        monitor = self._socket.get_monitor_socket(EVENTS)
        threading.Thread(target=_watch, args=(monitor, lost), daemon=True).start()
        self._socket.connect(endpoint)

    def welcome(self) -> Job:
        """Greet, and wait for the job; zmq.Again if none comes."""
        self.send(messages.Hello())
        deadline = time.monotonic() + self._welcome_seconds
        while True:
            envelope, message = self.receive()
            if isinstance(message, messages.Welcome):
                self._socket.setsockopt(zmq.RCVTIMEO, -1)
                self._run_id = message.job.run_id
                return message.job
            self.refuse(envelope.sequence, f"a {type(message).__name__} where a welcome was due")
            if time.monotonic() >= deadline:
                raise zmq.Again

    def send(self, message: messages.Message, sequence: int = 0, wall_seconds: float = 0.0, note: str = "") -> None:
        """Send; the vectors of the message must not be written to until `settle` has returned."""
        encoded = wire.encode(message, self._run_id)
        envelope = wire.Envelope(self._identity, sequence, wall_seconds=wall_seconds, note=note).pack()
        parts: list[bytes | memoryview] = [envelope, encoded.header, *encoded.frames]
        more = [zmq.SNDMORE] * (len(parts) - 1) + [zmq.Flag(0)]
        # send_multipart would give the tracker of the last part alone
        trackers = [self._socket.send(*part, copy=False, track=True) for part in zip(parts, more, strict=True)]
        self._under_way += [tracker for tracker in trackers if not tracker.done]

    def settle(self) -> None:
        """Wait until all vectors that were sent have been written out."""
        for tracker in self._under_way:
            tracker.wait()
        self._under_way.clear()

    def receive(self, wait: bool = True) -> tuple[wire.Envelope, messages.Message]:
        """The next message that is not `Blocks`; zmq.Again if none has come and we do not ``wait``.

        A message that does not follow the protocol is refused.
        """
        while True:
            parts = self._socket.recv_multipart(zmq.Flag(0) if wait else zmq.NOBLOCK, copy=False)
            envelope = None
            try:
                envelope, *rest = self._envelope([part.buffer for part in parts])
                message = self._message(envelope, rest)
            except messages.WireError as error:
                self.refuse(envelope.sequence if envelope else 0, str(error))
                continue
            if isinstance(message, messages.Bye):
                self.bye = message
            if not isinstance(message, messages.Blocks):
                return envelope, message
            self._held.update((vector.version, vector) for vector in message.vectors)

    def last_bye(self) -> messages.Bye | None:
        """The bye among all that has come, if there is one; of a connection that is lost, nothing else is of use."""
        with suppress(zmq.Again):
            while self.bye is None:
                self.receive(wait=False)
        return self.bye

    def refuse(self, sequence: int, reason: str) -> None:
        """Pass a message over: each is answered with an `Error`, and one a second is logged.

        What it was a part of fails then, instead of being waited for in vain.
        """
        self._refused += 1
        reason = messages.printable(reason, MAX_REASON)
        if time.monotonic() >= self._logged_at + REFUSAL_SECONDS:
            self._logged_at = time.monotonic()
            log(f"refused: {reason} ({self._refused} refused so far)")
        self.send(messages.Error("WireError", reason), sequence)

    def _envelope(self, parts: Sequence[memoryview]) -> tuple[wire.Envelope, *tuple[memoryview, ...]]:
        if len(parts) < 2:
            raise messages.WireError(f"{len(parts)} parts where at least 2 were due")
        envelope = wire.Envelope.parse(parts[0])
        if envelope.worker != self._identity:
            raise messages.WireError(f"the envelope names {envelope.worker}")
        return envelope, *parts[1:]

    def _message(self, envelope: wire.Envelope, rest: Sequence[memoryview]) -> messages.Message:
        message = wire.decode(rest[0], rest[1:], self._run_id, self._held)
        if not isinstance(message, COMES_DOWN):
            raise messages.WireError(f"a worker has no use for a {type(message).__name__}")
        if isinstance(message, NUMBERED) != (envelope.sequence > 0):
            raise messages.WireError(f"a {type(message).__name__} with the number {envelope.sequence}")
        for version in envelope.forget:
            self._held.pop(version, None)
        return message


def _watch(monitor: zmq.Socket[bytes], lost: Callable[[str], None]) -> None:
    """Wait for the end of a connection, and say what it was."""
    reason = NOT_LET_IN
    while (event := recv_monitor_message(monitor)["event"]) == zmq.EVENT_HANDSHAKE_SUCCEEDED:
        reason = GONE
    lost(NOT_ALLOWED if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH else reason)


def _lost(why: str) -> NoReturn:
    log(why)
    os._exit(LOST)


def log(text: str) -> None:
    """One line of this worker's log; on a full disk it is not written, which must not hide what it tells of."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def log_error() -> None:
    """The traceback of the error that is being handled, as `log` would write it."""
    log(traceback.format_exc().rstrip())


class Bench:
    """Where tasks are done, one after another."""

    def __init__(self, site: Site, gpu: Gpu | None, is_guest: bool = False) -> None:
        """``is_guest``: the files that envelopes name are not on this machine (`edge.luggage`)."""
        self._site, self._gpu, self.is_guest = site, gpu, is_guest
        self._sums = ExactSums(0)

    def perform(
        self, task: messages.Message, envelope: wire.Envelope, kept: messages.Kept | None = None
    ) -> tuple[messages.Message, messages.Kept | None]:
        """The reply to one task, and what goes back ahead of it; an exception becomes an `Error`."""
        try:
            if not self.is_guest:
                return self._perform(task, envelope)
            with luggage.unpacked(envelope, kept) as own:
                return self._perform(task, own)
        except Exception as error:
            log_error()
            return _error(error), None

    def note(self, task: messages.Message, reply: messages.Message) -> str:
        """What there is to tell beside a reply: once, after the first visit, how much memory it took."""
        is_visit = isinstance(task, messages.Train) and not isinstance(reply, messages.Error)
        return self._gpu.measure() if self._gpu is not None and is_visit else ""

    def _perform(
        self, task: messages.Message, envelope: wire.Envelope
    ) -> tuple[messages.Message, messages.Kept | None]:
        if self._gpu is not None:
            self._gpu.make_room(envelope.left)
        if isinstance(task, messages.Train):
            update = self._site.train(task, envelope.state_in, envelope.state_out)
            # read before the update is added up: what has failed must not be in the sums
            keeps = luggage.packed(task, envelope) if self.is_guest else None
            return self._added(update, envelope.share) if envelope.share > 0.0 else update, keeps
        if isinstance(task, messages.Collect):
            return self._collected(task.round), None
        if isinstance(task, messages.Evaluate):
            return self._site.evaluate(task, envelope.state_in), None
        assert isinstance(task, messages.Describe), task  # nothing else was let in
        return messages.Described(*self._site.describe(task.data)), None

    def _added(self, update: messages.Update, share: float) -> messages.Update:
        if update.round != self._sums.round:
            self._sums = ExactSums(update.round)
        return self._sums.put(update, share)

    def _collected(self, round: int) -> messages.Sums:
        if round != self._sums.round:
            return messages.Sums(round, 0, {})
        sums, self._sums = self._sums, ExactSums(round)
        return sums.message()


def _error(error: BaseException) -> messages.Error:
    return messages.Error(type(error).__name__, str(error)[: messages.MAX_ERROR_TEXT])


def serve(link: Link, open_bench: Callable[[], Bench]) -> str:
    """Make ready, and do one task after another until a bye: empty, or what the start failed of, or the bye's why."""
    try:
        bench = open_bench()
    except Exception as error:
        link.send(_error(error))
        while not isinstance(link.receive()[1], messages.Bye):
            pass
        return str(error) or type(error).__name__
    hand = _Hand(bench.is_guest)
    while hand.tasks or hand.take_in(link):
        task = hand.tasks[0]
        envelope, message, kept = task
        link.settle()
        began = time.monotonic()
        reply, keeps = bench.perform(message, envelope, kept)
        seconds = time.monotonic() - began
        note = bench.note(message, reply)
        if not hand.take_in(link):
            break
        if hand.tasks and hand.tasks[0] is task:  # or it was cancelled meanwhile
            hand.tasks.popleft()
            if keeps is not None:
                link.send(keeps, envelope.sequence)
            link.send(reply, envelope.sequence, seconds, note)
    return link.bye.why if link.bye is not None else ""


class _Hand:
    """The tasks that have come and are not answered yet, in their order; the first is next, or in progress."""

    def __init__(self, is_guest: bool) -> None:
        self.tasks: deque[tuple[wire.Envelope, messages.Message, messages.Kept | None]] = deque()
        self._is_guest = is_guest
        self._ahead: tuple[int, messages.Kept] | None = None  # what came last, for the task that comes next

    def take_in(self, link: Link) -> bool:
        """Heed what has come, and wait for a task if there is none; False after a bye."""
        while True:
            try:
                envelope, message = link.receive(wait=not self.tasks)
            except zmq.Again:
                return True
            ahead, self._ahead = self._ahead, None
            if isinstance(message, messages.Bye):
                return False
            if isinstance(message, messages.Ping):
                link.send(messages.Pong())
            elif isinstance(message, messages.Cancel):
                self._drop(envelope.sequence)
                link.send(messages.Pong(), envelope.sequence)
            elif isinstance(message, messages.Kept) and self._is_guest:
                self._ahead = envelope.sequence, message
            else:
                self._add(link, envelope, message, ahead)

    def _add(
        self,
        link: Link,
        envelope: wire.Envelope,
        message: messages.Message,
        ahead: tuple[int, messages.Kept] | None,
    ) -> None:
        reason = self._why_not(envelope.sequence, message)
        amiss = luggage.amiss(message, envelope, ahead) if self._is_guest else ""
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
        if isinstance(message, messages.Kept):
            return "a worker that reaches the files of the run has no use for a Kept"
        if sequence and any(task[0].sequence == sequence for task in self.tasks):
            return f"task {sequence} came twice"
        return f"more than {MAX_IN_HAND} tasks wait" if len(self.tasks) >= MAX_IN_HAND else ""

    def _drop(self, sequence: int) -> None:
        """Take a task out; it is gone already if its reply has crossed the cancel."""
        self.tasks = deque(task for task in self.tasks if task[0].sequence != sequence)


def main(argv: Sequence[str]) -> int:
    """``argv``: endpoint, identity, ``module:Class`` of the site, milliseconds between heartbeats."""
    endpoint, identity, site_name, heartbeat_ms = argv
    link = Link(endpoint, identity, int(heartbeat_ms), _lost)
    try:
        job = link.welcome()
    except zmq.Again:
        _lost(GONE)
    return 1 if serve(link, lambda: _logged_bench(job, site_name)) else 0


def _logged_bench(job: Job, site_name: str) -> Bench:
    try:
        return Bench(*open_site(job, site_name))
    except Exception:
        log_error()
        raise


def open_site(job: Job, site_name: str) -> tuple[Site, Gpu | None]:
    """What does the work (``module:Class``), and its share of a GPU."""
    gpu = None
    if job.device != CPU:
        from edge.gpus import Gpu  # and torch with it, which this file alone has no need of

        gpu = Gpu(job)
        job = replace(job, device=gpu.name)
    module, name = site_name.split(":")
    site: Site = getattr(importlib.import_module(module), name)(job)
    return site, gpu
