"""The ROUTER sockets of a pool, for local and for remote workers, and the loop's wait for messages on them.

Both are in a folder that is open to this user alone. Workers that the pool has started use the first. Remote workers
reach the second through a `coordinator.workers.listener`, and prove by CURVE (https://rfc.zeromq.org/spec/26) that they
have an allowed key. libzmq asks about each key by ZAP (https://rfc.zeromq.org/spec/27), is answered between two turns
of the pool's loop, and stamps the key and the number of the connection on every message of that connection. So no
worker can speak in the name of another.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from coordinator.workers import scheduler
from coordinator.workers.listener import Listener
from coordinator.workers.task import PoolError

HIGH_WATER = 5 * scheduler.MAX_PREFETCH
"""Messages queued per worker and direction: of each task in hand its blocks, what its client
kept, itself and its cancel, and some pings."""
MAX_FRAME_NBYTES = 1 << 32
"""Of messages of own workers, which are this user's processes."""
LAST_PART = zmq.NOBLOCK
FURTHER_PART = zmq.NOBLOCK | zmq.SNDMORE
ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_DOMAIN = "fedbr"
ALLOWED, REJECTED = b"200", b"400"
SEPARATOR = " "
"""Between the number of a connection and its key, in what libzmq stamps on a message; no letter of Z85."""


class UnreachableError(Exception):
    """A worker to which nothing can be sent; the text says why."""


@dataclass(frozen=True)
class RemoteAccess:
    """Where remote workers may come, and who."""

    endpoint: str
    """``tcp://HOST:PORT``"""
    public: bytes
    secret: bytes = field(repr=False)
    """The coordinator's own pair, in Z85."""
    allowed: Collection[str]
    """Public keys of remote workers, in Z85."""
    any_machine: bool = False
    """Whether remote workers may have other versions and processors, which give other last bits."""


class Received(NamedTuple):
    """One message."""

    identity: str
    key: str
    """The public key that was proved; empty at the socket of the pool's own processes."""
    connection: int
    """Its number at the listener; 0 at the socket of the pool's own processes."""
    parts: list[memoryview]


class RouterSocket:
    """One ROUTER socket, closed when ``exits`` is."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        heartbeat_seconds: float,
        exits: ExitStack,
        remote_access: RemoteAccess | None = None,
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
        self.is_locked = remote_access is not None
        if remote_access is not None:
            self.router.setsockopt(zmq.CURVE_SERVER, 1)
            self.router.setsockopt(zmq.CURVE_PUBLICKEY, remote_access.public)
            self.router.setsockopt(zmq.CURVE_SECRETKEY, remote_access.secret)
            self.router.setsockopt_string(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        self.monitor = exits.enter_context(self.router.get_monitor_socket(zmq.EVENT_DISCONNECTED))
        exits.callback(self.router.disable_monitor)
        try:
            self.router.bind(endpoint)
        except zmq.ZMQError as error:
            raise PoolError(f"cannot listen on {endpoint}: {error.strerror}") from None
        self.endpoint = self.router.getsockopt_string(zmq.LAST_ENDPOINT)

    def receive(self) -> Received | None:
        """The next message, if one has come."""
        if not int(self.router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:  # an exception costs more than to ask
            return None
        frames = [self.router.recv(zmq.NOBLOCK, copy=False)]
        while frames[-1].more:  # a message has come whole or not at all
            frames.append(self.router.recv(zmq.NOBLOCK, copy=False))
        connection, _, key = str(frames[-1].get("User-Id")).partition(SEPARATOR) if self.is_locked else ("0", "", "")
        identity, *parts = [frame.buffer for frame in frames]
        return Received(bytes(identity).decode(errors="replace"), key, int(connection), parts)

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


class ZapAuthenticator:
    """Answers libzmq's questions about keys; it must be there before the socket that it serves."""

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
        verdict = [ALLOWED, b"", user] if is_allowed else [REJECTED, b"this key is not allowed", b""]
        self.socket.send_multipart([version, request, *verdict, b""])
        return None if is_allowed else f"{address}, key {key}"


OWN, REMOTE = "pool", "remote_workers"
"""Sockets in the folder of a pool."""
PROBE_SECONDS = 1.0
"""From a lost connection to the search for whose it was: libzmq forgets the peer meanwhile."""
MAX_SOCKET_PATH_NBYTES = 107  # sun_path of unix(7), less its closing zero


@dataclass(frozen=True)
class PollResult:
    """What a wait ended with."""

    sockets: list[RouterSocket]
    """Those at which messages have come."""
    rejected_key: str | None
    """Somebody whose key was refused."""
    is_told: bool
    """Whether the launcher has news."""


class Sockets:
    """A socket for the pool's own workers, and one for remote workers if there is a remote access."""

    def __init__(
        self,
        folder: Path,
        remote_access: RemoteAccess | None,
        most_nbytes: int,
        heartbeat_seconds: float,
        launcher: int,
        exits: ExitStack,
    ) -> None:
        """``folder``: for the sockets; ``most_nbytes``: of a remote worker's largest message, all of its parts
        together.

        ``launcher``: a file that can be read when it has news. PoolError.
        """
        path, remote_workers = folder / OWN, folder / REMOTE
        if len(os.fsencode(remote_workers)) > MAX_SOCKET_PATH_NBYTES:
            raise PoolError(f"{folder} is too long for a socket: set TMPDIR to a shorter folder")
        self.listener: Listener | None = None
        if remote_access is not None:  # it passes on the last bytes of sockets that are closed
            self.listener = Listener(remote_access.endpoint, remote_workers, most_nbytes, heartbeat_seconds, exits)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        exits.callback(context.term)
        self.own = RouterSocket(context, f"ipc://{path}", heartbeat_seconds, exits)
        self.remote_workers: RouterSocket | None = None
        self.remote_access = remote_access
        """As it was opened: with the port that was given to it."""
        self._porter: ZapAuthenticator | None = None
        if remote_access is not None and self.listener is not None:
            listener = self.listener
            self._porter = ZapAuthenticator(context, remote_access.allowed, lambda: listener.asked, exits)
            self.remote_workers = RouterSocket(
                context, f"ipc://{remote_workers}", heartbeat_seconds, exits, remote_access, most_nbytes
            )
            self.remote_access = replace(remote_access, endpoint=listener.endpoint)
            listener.start()
        self._launcher = launcher
        self._router_sockets = [
            router_socket for router_socket in (self.own, self.remote_workers) if router_socket is not None
        ]
        self._poller = zmq.Poller()
        sockets = [
            socket for router_socket in self._router_sockets for socket in (router_socket.router, router_socket.monitor)
        ]
        for source in (*sockets, *([self._porter.socket] if self._porter else []), launcher):
            self._poller.register(source, zmq.POLLIN)
        self._probe_at = float("inf")

    def wait(self, seconds: float) -> PollResult:
        """Until something happens, but no longer than ``seconds``."""
        happened = dict(self._poller.poll(round(seconds * 1000)))
        is_asked = self._porter is not None and self._porter.socket in happened
        stranger = self._porter.answer() if self._porter is not None and is_asked else None
        for router_socket in self._router_sockets:
            if router_socket.monitor in happened:
                router_socket.take_loss()
                self._probe_at = min(self._probe_at, time.monotonic() + PROBE_SECONDS)
        router_sockets = [router_socket for router_socket in self._router_sockets if router_socket.router in happened]
        if self.listener is not None and self.remote_workers not in router_sockets:
            self.listener.drained()
        return PollResult(router_sockets, stranger, self._launcher in happened)

    def is_to_probe(self) -> bool:
        """Whether it is time to find whose connection was lost; once per loss."""
        if self._probe_at > time.monotonic():
            return False
        self._probe_at = float("inf")
        return True
