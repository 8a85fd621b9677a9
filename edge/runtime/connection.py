"""A worker's connection to the coordinator: messages that were checked, and the cache of blocks that came over it.

Long buffers are sent without a copy: the vectors of a reply may be views of memory that the next task overwrites, such
as the model's own flat vector. So the next task waits until they have been written out.
"""

from __future__ import annotations

import math
import mmap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zmq
from zmq.utils.monitor import recv_monitor_message

from edge.protocol import files, messages, serialization
from edge.protocol.config import Job
from edge.protocol.payload import ITEM_NBYTES, Vector
from edge.runtime.keys import KeyPair
from edge.runtime.log import log

READABLE = int(zmq.POLLIN)
HIGH_WATER = 320
"""Messages queued per direction; a coordinator sends no more to one worker (`HIGH_WATER` of its sockets)."""
COPY_NBYTES = 1 << 18
"""Shorter vectors are copied: libzmq's notice that it is done with a buffer takes longer. A visit that sends ten
vectors of 248 kB in all costs the worker 0.26 ms instead of 0.32 ms."""
MAX_REASON = 400
"""Characters of the reason for which a message was refused."""
REFUSAL_SECONDS = 1.0
"""Between two lines of the log about refused messages."""
COMES_DOWN = (
    messages.Welcome
    | messages.Ping
    | messages.Describe
    | messages.Tensors
    | messages.MappedTensors
    | messages.ClientState
    | messages.Train
    | messages.Visits
    | messages.Evaluate
    | messages.FetchPartial
    | messages.Cancel
    | messages.Shutdown
    | messages.FilePart
)
NUMBERED = messages.Describe | messages.ClientState | messages.Train | messages.Evaluate | messages.Cancel
"""Messages that belong to a task."""
WELCOME_MS = 100
"""Between two looks whether the welcome of a remote run still may come."""
NO_LIMIT = 0
MAX_RECEIVED = 256
GONE = "the coordinator is gone"
NOT_LET_IN = "no handshake: the key of the run there is not the one named in --server, or it is no run to join"
NOT_ALLOWED = "the run does not know this key: its public key must be named in --allow there"
FAILED_HANDSHAKES = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
EVENTS = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | FAILED_HANDSHAKES


class NoAnswerError(ConnectionError):
    """No welcome has come."""


@dataclass(frozen=True)
class Credentials:
    """The keys by which a worker and a coordinator on different machines authenticate each other."""

    own: KeyPair
    server: bytes
    """Public key of the coordinator."""


class CoordinatorConnection:
    """The connection to the coordinator, and the cache of blocks."""

    def __init__(
        self,
        endpoint: str,
        identity: str,
        heartbeat_ms: int,
        lost: Callable[[str], None],
        credentials: Credentials | None = None,
        welcome_seconds: float = math.inf,
        reuses_vectors: bool = True,
    ) -> None:
        """``lost``: called in a side thread with the reason, once, when the connection is lost or refused.

        ``welcome_seconds``: limit for the welcome; none for a local worker, whose coordinator may be busy.
        ``reuses_vectors``: whether vectors that are sent may be overwritten after `settle`, as a worker's are; of a
        node agent any number of messages is queued. ConnectionError for an endpoint that cannot be reached from here.
        """
        self._identity, self._run_id = identity, messages.NO_RUN
        self._welcome_seconds = welcome_seconds
        self._cached: dict[bytes, Vector] = {}
        self._refused, self._logged_at = 0, -REFUSAL_SECONDS
        self._unsent: list[zmq.MessageTracker] = []
        self._reuses_vectors = reuses_vectors
        self.shutdown: messages.Shutdown | None = None
        self._socket: zmq.Socket[bytes] = zmq.Context(io_threads=1).socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, identity.encode())
        self._socket.copy_threshold = COPY_NBYTES
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, HIGH_WATER if reuses_vectors else NO_LIMIT)
        self._socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, heartbeat_ms)
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 4 * heartbeat_ms if credentials is None else 0)
        self._socket.setsockopt(zmq.RCVTIMEO, -1 if welcome_seconds == math.inf else WELCOME_MS)
        if credentials is not None:
            self._socket.setsockopt(zmq.CURVE_PUBLICKEY, credentials.own.public)
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, credentials.own.secret)
            self._socket.setsockopt(zmq.CURVE_SERVERKEY, credentials.server)
            # libzmq would lose a connection over which one large frame comes for longer than four heartbeats
            keepalive = {zmq.TCP_KEEPALIVE: 1, zmq.TCP_KEEPALIVE_CNT: 3, zmq.TCP_MAXRT: 4 * heartbeat_ms}
            seconds = math.ceil(heartbeat_ms / 1000)
            keepalive |= {zmq.TCP_KEEPALIVE_IDLE: seconds, zmq.TCP_KEEPALIVE_INTVL: seconds}
            for option, value in keepalive.items():
                self._socket.setsockopt(option, value)
        monitor = self._socket.get_monitor_socket(EVENTS)
        threading.Thread(target=_watch, args=(monitor, lost), daemon=True).start()
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise ConnectionError(f"cannot connect: {error.strerror}") from None

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """The socket, for a poller."""
        return self._socket

    def welcome(self, workers: int = 1, is_lost: Callable[[], bool] = lambda: False) -> Job:
        """Send the hello, and wait for the job; `NoAnswerError` if none comes.

        ``workers``: of a node agent. ``is_lost``: whether the connection is, so that nothing will come.
        """
        self.send(messages.Hello(workers))
        deadline = time.monotonic() + self._welcome_seconds
        while True:
            try:
                envelope, message = self.receive()
            except zmq.Again:
                if is_lost() or time.monotonic() >= deadline:
                    raise NoAnswerError from None
                continue
            if isinstance(message, messages.Welcome):
                self._socket.setsockopt(zmq.RCVTIMEO, -1)
                self._run_id = message.job.run_id
                return message.job
            self.refuse(envelope.sequence, f"a {type(message).__name__} where a welcome was due")
            if time.monotonic() >= deadline:
                raise NoAnswerError

    def send(
        self, message: messages.Message, sequence: int = 0, wall_seconds: float = 0.0, telemetry: str = ""
    ) -> None:
        """Send a message; its vectors must not be overwritten until `settle` has returned."""
        encoded = serialization.encode(message, self._run_id)
        logged = message.logged if isinstance(message, messages.Update) else {}
        envelope = serialization.Envelope(
            self._identity, sequence, wall_seconds=wall_seconds, telemetry=telemetry, logged=logged
        )
        parts: list[bytes | memoryview] = [envelope.pack(), encoded.header, *encoded.frames]
        flags = [zmq.SNDMORE] * (len(parts) - 1) + [zmq.Flag(0)]
        if not self._reuses_vectors:
            self._socket.send_multipart(parts, copy=False)
            return
        # send_multipart would return the tracker of the last part alone
        trackers = [self._socket.send(*part, copy=False, track=True) for part in zip(parts, flags, strict=True)]
        self._unsent += [tracker for tracker in trackers if not tracker.done]

    def settle(self) -> None:
        """Wait until all vectors that were sent have been written out."""
        for tracker in self._unsent:
            tracker.wait()
        self._unsent.clear()

    def receive(self, wait: bool = True) -> tuple[serialization.Envelope, messages.Message]:
        """The next message that is not `Tensors`; without ``wait``, zmq.Again if there is none.

        Messages that do not follow the protocol are refused.
        """
        while True:
            parts = self._socket.recv_multipart(zmq.Flag(0) if wait else zmq.NOBLOCK, copy=False)
            envelope = None
            try:
                if len(parts) < 2:
                    raise messages.WireError(f"{len(parts)} parts where at least 2 were due")
                addressed = serialization.Envelope.parse(parts[0].buffer)
                if addressed.worker != self._identity:
                    raise messages.WireError(f"the envelope names {addressed.worker}")
                envelope = addressed
                message = self._message(envelope, [part.buffer for part in parts[1:]])
                new = vectors_of(message)
            except messages.WireError as error:
                self.refuse(envelope.sequence if envelope else 0, str(error))
                continue
            if isinstance(message, messages.Shutdown):
                self.shutdown = message
            if new is None:
                return envelope, message
            self._cached.update((vector.version, vector) for vector in new)

    def received(self) -> Iterator[tuple[serialization.Envelope, messages.Message]]:
        """Messages that have come, as `receive` returns them; a limited number of them."""
        with suppress(zmq.Again):
            for _ in range(MAX_RECEIVED):
                yield self.receive(wait=False)

    def cached(self, vector: Vector) -> Vector:
        """The vector of the cache with this version; ``vector`` itself if it has been evicted."""
        return self._cached.get(vector.version, vector)

    def await_shutdown(self, seconds: float) -> None:
        """Wait for a `Shutdown`, and ignore all other messages."""
        deadline = time.monotonic() + seconds
        while self.shutdown is None and self._socket.poll(max(0, round((deadline - time.monotonic()) * 1000))):
            deque(self.received(), 0)

    def is_readable(self) -> bool:
        """Whether there is a message; cheaper than the exception of `receive`."""
        return bool(int(self._socket.getsockopt(zmq.EVENTS)) & READABLE)

    def has_message(self, seconds: float) -> bool:
        """Whether there is a message, or one comes within ``seconds``."""
        return bool(self._socket.poll(round(seconds * 1000)))

    def close(self) -> None:
        """Close the connection; queued messages are dropped."""
        self._socket.disable_monitor()
        self._socket.close(0)

    def last_shutdown(self) -> messages.Shutdown | None:
        """The `Shutdown` among the messages that have come over a connection that is lost, if there is one."""
        with suppress(zmq.Again):
            while self.shutdown is None:
                self.receive(wait=False)
        return self.shutdown

    def refuse(self, sequence: int, reason: str) -> None:
        """Answer an invalid message with an `Error`, so that its task fails and is not waited for; log one a second."""
        self._refused += 1
        reason = messages.printable(reason, MAX_REASON)
        if time.monotonic() >= self._logged_at + REFUSAL_SECONDS:
            self._logged_at = time.monotonic()
            log(f"refused: {reason} ({self._refused} refused so far)")
        self.send(messages.Error("WireError", reason), sequence)

    def _message(self, envelope: serialization.Envelope, rest: Sequence[memoryview]) -> messages.Message:
        message = serialization.decode(rest[0], rest[1:], self._run_id, self._cached, COMES_DOWN)
        if isinstance(message, messages.MappedTensors) and not self._reuses_vectors:
            raise messages.WireError("a node agent maps no files of the run")
        if isinstance(message, NUMBERED) != (envelope.sequence > 0):
            raise messages.WireError(f"a {type(message).__name__} with the number {envelope.sequence}")
        for version in envelope.evict:
            self._cached.pop(version, None)
        return message


def vectors_of(message: messages.Message) -> Sequence[Vector] | None:
    """The vectors that a message brings to the cache; None for any other message. WireError for a wrong file.

    Those of files in memory are mapped, read-only.
    """
    if isinstance(message, messages.Tensors):
        return message.vectors
    if not isinstance(message, messages.MappedTensors):
        return None
    try:
        vectors = []
        for name, size in message.sizes.items():
            # Files that are gone are left out, since nobody needs them.
            with suppress(FileNotFoundError), files.opened(Path(message.folder, name)) as file:
                flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
                content = mmap.mmap(file.fileno(), size * ITEM_NBYTES, flags, mmap.PROT_READ)
                vectors.append(Vector(np.frombuffer(content, np.float32), bytes.fromhex(name)))
        return vectors
    except (OSError, ValueError) as error:  # the mapping of a file that is too short is a ValueError
        raise messages.WireError(f"MappedTensors: {message.folder}: {error}") from error


def _watch(monitor: zmq.Socket[bytes], lost: Callable[[str], None]) -> None:
    """Wait for the end of a connection, and call ``lost`` with the reason."""
    reason = NOT_LET_IN
    while (event := recv_monitor_message(monitor)["event"]) == zmq.EVENT_HANDSHAKE_SUCCEEDED:
        reason = GONE
    lost(NOT_ALLOWED if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH else reason)
