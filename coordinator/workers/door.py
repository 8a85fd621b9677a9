"""The ROUTER sockets of a pool: one for its own processes, and one with a lock for guests from other machines.

Both are in a folder that is open to this user alone. By the first come the workers that the pool has started. By the
second come, through a `coordinator.workers.listener`, those who prove by CURVE (https://rfc.zeromq.org/spec/26) that
theirs is one of the allowed keys. libzmq asks about each key by ZAP (https://rfc.zeromq.org/spec/27), is answered
between two turns of the pool's loop, and stamps the key and the number of the connection on every message that comes
over it. Nobody can thus speak in the name of another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from coordinator.workers import scheduler
from coordinator.workers.task import PoolError

HIGH_WATER = 5 * scheduler.MOST_IN_HAND
"""Messages queued per worker and direction: of each task in hand its blocks, what its client
kept, itself and its cancel, and some pings."""
MAX_FRAME_NBYTES = 1 << 32
"""Of messages of own workers, which are this user's processes."""
LAST_PART = zmq.NOBLOCK
FURTHER_PART = zmq.NOBLOCK | zmq.SNDMORE
ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_DOMAIN = "fedbr"
ALLOWED, REFUSED = b"200", b"400"
SEPARATOR = " "
"""Between the number of a connection and its key, in what libzmq stamps on a message; no letter of Z85."""


class UnreachableError(Exception):
    """A worker to which nothing can be sent; the text says why."""


@dataclass(frozen=True)
class Gate:
    """Where guests may come, and who."""

    endpoint: str
    """``tcp://HOST:PORT``"""
    public: bytes
    secret: bytes = field(repr=False)
    """The coordinator's own pair, in Z85."""
    allowed: Collection[str]
    """Public keys of guests, in Z85."""
    any_machine: bool = False
    """Whether guests may have other versions and processors, which give other last bits."""


class Came(NamedTuple):
    """One message."""

    identity: str
    key: str
    """The public key that was proved; empty at the door of the pool's own processes."""
    connection: int
    """Its number at the listener; 0 at the door of the pool's own processes."""
    parts: list[memoryview]


class Door:
    """One ROUTER socket, closed when ``exits`` is."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        heartbeat_seconds: float,
        exits: ExitStack,
        gate: Gate | None = None,
        most_nbytes: int = MAX_FRAME_NBYTES,
    ) -> None:
        """``most_nbytes``: of a frame. PoolError for an endpoint that cannot be had."""
        self.router = exits.enter_context(context.socket(zmq.ROUTER))
        milliseconds = round(heartbeat_seconds * 1000)
        for option, value in (
            (zmq.ROUTER_MANDATORY, 1),  # a full queue or an unknown peer is an error, not a silent loss
            (zmq.ROUTER_HANDOVER, 0),
            (zmq.SNDHWM, HIGH_WATER),
            (zmq.RCVHWM, HIGH_WATER),
            (zmq.LINGER, 2000),
            (zmq.BACKLOG, 4096),
            (zmq.HEARTBEAT_IVL, milliseconds),
            (zmq.HEARTBEAT_TIMEOUT, 4 * milliseconds),
            (zmq.MAXMSGSIZE, most_nbytes),
            (zmq.HANDSHAKE_IVL, 0),  # a listener counts the time
        ):
            self.router.setsockopt(option, value)
        self.is_locked = gate is not None
        if gate is not None:
            self.router.setsockopt(zmq.CURVE_SERVER, 1)
            self.router.setsockopt(zmq.CURVE_PUBLICKEY, gate.public)
            self.router.setsockopt(zmq.CURVE_SECRETKEY, gate.secret)
            self.router.setsockopt_string(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        self.monitor = exits.enter_context(self.router.get_monitor_socket(zmq.EVENT_DISCONNECTED))
        exits.callback(self.router.disable_monitor)
        try:
            self.router.bind(endpoint)
        except zmq.ZMQError as error:
            raise PoolError(f"cannot listen on {endpoint}: {error.strerror}") from None
        self.endpoint = self.router.getsockopt_string(zmq.LAST_ENDPOINT)

    def receive(self) -> Came | None:
        """The next message, if one has come."""
        if not int(self.router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:  # an exception costs more than to ask
            return None
        frames = [self.router.recv(zmq.NOBLOCK, copy=False)]
        while frames[-1].more:  # a message has come whole or not at all
            frames.append(self.router.recv(zmq.NOBLOCK, copy=False))
        connection, _, key = str(frames[-1].get("User-Id")).partition(SEPARATOR) if self.is_locked else ("0", "", "")
        identity, *parts = [frame.buffer for frame in frames]
        return Came(bytes(identity).decode(errors="replace"), key, int(connection), parts)

    def send(self, identity: str, parts: Sequence[bytes | zmq.Frame]) -> None:
        """Queue one message; UnreachableError for a peer that is gone, or whose queue is full."""
        try:
            self.router.send(identity.encode(), FURTHER_PART)
            for part in parts[:-1]:
                self.router.send(part, FURTHER_PART)
            self.router.send(parts[-1], LAST_PART)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            raise UnreachableError(error.strerror) from None

    def take_loss(self) -> None:
        """Take the news of one connection lost from `monitor`; libzmq does not say whose it was."""
        recv_monitor_message(self.monitor)


class Porter:
    """Answers libzmq's questions about keys; it must be there before the door that it serves."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        allowed: Collection[str],
        asked: Callable[[], tuple[int, str]],
        exits: ExitStack,
    ) -> None:
        """``asked``: (number, address) of the connection that a question is about."""
        self._allowed, self._asked = frozenset(allowed), asked
        self.socket = exits.enter_context(context.socket(zmq.REP))
        self.socket.bind(ZAP_ENDPOINT)

    def answer(self) -> str | None:
        """Answer one question; of a key that is refused, whose it is."""
        version, request, domain, _, _, mechanism, *credentials = self.socket.recv_multipart()
        key = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" else ""
        connection, address = self._asked()
        is_allowed = domain.decode() == ZAP_DOMAIN and key in self._allowed
        user = f"{connection}{SEPARATOR}{key}".encode()
        verdict = [ALLOWED, b"", user] if is_allowed else [REFUSED, b"this key is not allowed", b""]
        self.socket.send_multipart([version, request, *verdict, b""])
        return None if is_allowed else f"{address}, key {key}"
