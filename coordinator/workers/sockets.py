"""The ROUTER sockets of a pool, for local and for remote workers, and the event loop's wait for messages on them.

Both are in a folder that is open to this user alone. Workers that the pool has started use the first. Remote workers
reach the second through a `coordinator.workers.listener`, and prove by CURVE (https://rfc.zeromq.org/spec/26) that they
have an allowed key. libzmq requests the check of each key by ZAP (https://rfc.zeromq.org/spec/27), gets a reply between
two turns of the event loop, and adds the key and the number of the connection to every message of that connection. So
no worker can send in the name of another.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from coordinator.workers import assignment
from coordinator.workers.listener import Listener
from coordinator.workers.task import PoolError

HIGH_WATER = 5 * assignment.MAX_PREFETCH
"""Messages queued per worker and direction: for each prefetched task its blocks, its client state, the task and its
cancel, and some pings."""
NO_LIMIT = 0
"""Of messages queued for a node agent: the scheduler bounds them, by the number of the agent's workers."""
MAX_FRAME_NBYTES = 1 << 32
"""Largest frame of local workers, which are this user's processes."""
READABLE = int(zmq.POLLIN)
LAST_PART = zmq.NOBLOCK
FURTHER_PART = zmq.NOBLOCK | zmq.SNDMORE
ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_DOMAIN = "fedbr"
ALLOWED, REJECTED = b"200", b"400"
SEPARATOR = " "
"""Between connection number and key in the user id that libzmq adds to a message; no letter of Z85."""


class UnreachableError(Exception):
    """Nothing can be sent to a worker; the text has the reason."""


@dataclass(frozen=True)
class RemoteAccess:
    """The port for remote workers, and the keys that may use it."""

    endpoint: str
    """``tcp://HOST:PORT``"""
    public: bytes
    secret: bytes = field(repr=False)
    """The coordinator's own key pair, in Z85."""
    allowed: Collection[str]
    """Public keys of remote workers, in Z85."""
    any_machine: bool = False
    """Whether remote workers may have other versions and processors, whose results are not bit-identical."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Public key -> what its owner calls it, for messages."""
    next_worker_seconds: float | None = None
    """Wait for another worker once all are lost; None: as long as the pool finds right."""


class Received(NamedTuple):
    """One message."""

    identity: str
    key: str
    """The public key that was proved; empty at the socket of local workers."""
    connection: int
    """Number of the connection at the listener; 0 at the socket of local workers."""
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
        """``most_nbytes``: of a frame. PoolError for an endpoint that cannot be bound."""
        self.router = exits.enter_context(context.socket(zmq.ROUTER))
        milliseconds = round(heartbeat_seconds * 1000)
        for option, value in (
            (zmq.ROUTER_MANDATORY, 1),  # a full queue or an unknown peer is an error, not a silent loss
            (zmq.ROUTER_HANDOVER, 0),
            (zmq.SNDHWM, HIGH_WATER if remote_access is None else NO_LIMIT),
            (zmq.RCVHWM, HIGH_WATER),
            (zmq.LINGER, 2000),
            (zmq.BACKLOG, 4096),
            (zmq.HEARTBEAT_IVL, milliseconds),
            (zmq.HEARTBEAT_TIMEOUT, 4 * milliseconds if remote_access is None else 0),  # the listener hears every byte
            (zmq.MAXMSGSIZE, most_nbytes),
            (zmq.HANDSHAKE_IVL, 0),  # the listener limits this time
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
        """The next message, if there is one."""
        if not int(self.router.getsockopt(zmq.EVENTS)) & READABLE:  # cheaper than an exception
            return None
        frames = [self.router.recv(zmq.NOBLOCK, copy=False)]
        while frames[-1].more:  # messages arrive whole or not at all
            frames.append(self.router.recv(zmq.NOBLOCK, copy=False))
        connection, _, key = str(frames[-1].get("User-Id")).partition(SEPARATOR) if self.is_locked else ("0", "", "")
        identity, *parts = [frame.buffer for frame in frames]
        return Received(bytes(identity).decode(errors="replace"), key, int(connection), parts)

    def send(self, identity: str, parts: Sequence[bytes | zmq.Frame]) -> None:
        """Queue one message; UnreachableError for a peer without a connection, or with a full queue."""
        try:
            self.router.send(identity.encode(), FURTHER_PART)
            for part in parts[:-1]:
                self.router.send(part, FURTHER_PART)
            self.router.send(parts[-1], LAST_PART)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            raise UnreachableError(error.strerror) from None


class ZapAuthenticator:
    """Replies to libzmq's requests to check keys; it must be made before the socket that it serves."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        allowed: Collection[str],
        listener: Listener,
        exits: ExitStack,
    ) -> None:
        self._allowed, self._listener = frozenset(allowed), listener
        self.socket = exits.enter_context(context.socket(zmq.REP))
        self.socket.bind(ZAP_ENDPOINT)

    def reply(self) -> str | None:
        """Reply to one request; if the key is rejected, returns its address and itself."""
        version, request, domain, _, _, mechanism, *credentials = self.socket.recv_multipart()
        key = z85.encode(credentials[0]).decode() if mechanism == b"CURVE" else ""
        connection, address = self._listener.checked_connection
        is_allowed = domain.decode() == ZAP_DOMAIN and key in self._allowed
        user = f"{connection}{SEPARATOR}{key}".encode()
        status = [ALLOWED, b"", user] if is_allowed else [REJECTED, b"this key is not allowed", b""]
        self.socket.send_multipart([version, request, *status, b""])
        return None if is_allowed else f"{address}, key {key}"


OWN, REMOTE = "pool", "remote_workers"
"""Names of the sockets in the folder of a pool."""
PROBE_SECONDS = 1.0
"""From a lost connection to the pings that find whose it was: libzmq forgets the peer meanwhile."""
MAX_SOCKET_PATH_NBYTES = 107  # sun_path of unix(7), less its closing zero


@dataclass(frozen=True)
class PollResult:
    """What is to be handled after a wait."""

    sockets: list[RouterSocket]
    """Sockets with messages."""
    rejected_key: str | None
    """Address and key of a connection whose key was rejected."""
    launcher_has_events: bool
    is_watched_ready: bool
    """Whether the socket of `Sockets.watch` has messages."""


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
        """``folder``: for the sockets; ``most_nbytes``: of a remote worker's largest message, all parts together.

        ``launcher``: a descriptor that is readable when the launcher has events. PoolError.
        """
        path, remote_workers = folder / OWN, folder / REMOTE
        if len(os.fsencode(remote_workers)) > MAX_SOCKET_PATH_NBYTES:
            raise PoolError(f"{folder} is too long for a socket: set TMPDIR to a shorter folder")
        self.listener: Listener | None = None
        if remote_access is not None:  # entered first: it passes on the last bytes of sockets that are closed
            self.listener = Listener(remote_access.endpoint, remote_workers, most_nbytes, heartbeat_seconds, exits)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        exits.callback(context.term)
        self.own = RouterSocket(context, f"ipc://{path}", heartbeat_seconds, exits)
        self.remote_workers: RouterSocket | None = None
        self.remote_access = remote_access
        """As it was opened: with the port number that the system chose."""
        self._authenticator: ZapAuthenticator | None = None
        if remote_access is not None and self.listener is not None:
            self._authenticator = ZapAuthenticator(context, remote_access.allowed, self.listener, exits)
            self.remote_workers = RouterSocket(
                context, f"ipc://{remote_workers}", heartbeat_seconds, exits, remote_access, most_nbytes
            )
            self.remote_access = replace(remote_access, endpoint=self.listener.endpoint)
            self.listener.start()
        self._router_sockets = [self.own] if self.remote_workers is None else [self.own, self.remote_workers]
        self._launcher = launcher
        self._wakes = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        exits.callback(os.close, self._wakes)
        self._watched: zmq.Socket[bytes] | None = None
        self._probe_at = float("inf")
        self._poller = zmq.Poller()
        sockets = [socket for each in self._router_sockets for socket in (each.router, each.monitor)]
        authenticators = [] if self._authenticator is None else [self._authenticator.socket]
        for readable in (*sockets, *authenticators, self._launcher, self._wakes):
            self._poller.register(readable, zmq.POLLIN)

    def watch(self, socket: zmq.Socket[bytes]) -> None:
        """Wait for messages of a further socket as well, which others receive."""
        assert self._watched is None, "one socket is watched"
        self._watched = socket
        self._poller.register(socket, zmq.POLLIN)

    def wake(self) -> None:
        """End the present `wait`, or the next one. Any thread may call it."""
        os.eventfd_write(self._wakes, 1)

    def wait(self, seconds: float) -> PollResult:
        """Wait for messages or events, but no longer than ``seconds``."""
        ready = dict(self._poller.poll(round(seconds * 1000)))
        if self._wakes in ready:
            os.eventfd_read(self._wakes)
        rejected_key = None
        if self._authenticator is not None and self._authenticator.socket in ready:
            rejected_key = self._authenticator.reply()
        for router_socket in self._router_sockets:
            if router_socket.monitor in ready:
                recv_monitor_message(router_socket.monitor)  # of a lost connection; libzmq does not say whose it was
                self._probe_at = min(self._probe_at, time.monotonic() + PROBE_SECONDS)
        router_sockets = [router_socket for router_socket in self._router_sockets if router_socket.router in ready]
        if self.listener is not None and self.remote_workers not in router_sockets:
            self.listener.drained()
        return PollResult(router_sockets, rejected_key, self._launcher in ready, self._watched in ready)

    def has_lost(self, connection: int) -> bool:
        """Whether a remote worker's connection is closed, even if its socket has connected again since."""
        return connection > 0 and self.listener is not None and not self.listener.is_open(connection)

    def is_to_probe(self) -> bool:
        """Whether it is time to find whose connection was lost; True once per loss."""
        if self._probe_at > time.monotonic():
            return False
        self._probe_at = float("inf")
        return True
