"""The TCP port of remote workers: a thread that passes bytes between their connections and the ROUTER socket behind it.

libzmq bounds neither the number of connections, nor the bytes that a peer sends before CURVE has authenticated it, nor
the parts of a message together. So libzmq listens in a folder of this user alone, and this thread on the network.

Until its handshake is over a connection is unknown. It may send a greeting and two short commands, within
`HANDSHAKE_SECONDS`. Unknown connections are bounded per address and in all: one too many is closed at once, and
counted. The commands that contain keys are passed on one by one, so that libzmq's request to check a key is known to be
about this connection (`Listener.checked_connection`).

Afterwards the bytes of a connection are counted as they pass, and credited when its messages are taken from the ROUTER
socket. A connection that has sent as much as the largest message of the run waits until a message is taken; if there is
none to take, its message is too large, and it is closed. So is one with a frame that announces more.

A connection without any bytes for four heartbeats is closed. libzmq would count whole frames instead, and close one
whose single frame takes longer to arrive, such as a large block over a slow link.

Bytes are passed on as they are: they are encrypted, and this thread has no keys.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from coordinator.workers.task import PoolError
from coordinator.workers.zmtp import READY, Frames, Handshake, RefusedError, cost, frame_cost

HANDSHAKE_SECONDS = 10.0
"""Limit of a handshake; time in which the keys of other connections are checked does not count."""
MOST_UNKNOWN = 256
"""Unknown connections in all; fewer where few files may be open."""
MOST_UNKNOWN_PER_ADDRESS = 64
"""Unknown connections from one address, but never more than half of all."""
MOST_CONNECTIONS = 4096
"""Connections in all; fewer where few files may be open."""
FILES_PER_CONNECTION = 3
"""Both of its ends in this thread, and libzmq's."""
SPARE_FILES = 64
"""Files for everything else of a run: further local workers, ledger, checkpoints, logs."""
CHUNK_NBYTES = 1 << 18
TICK_SECONDS = 0.25
TOO_LARGE_SECONDS = 1.0
"""Time after which a connection is closed that has sent the largest message's bytes, while no message is ready."""
REPORT_SECONDS = 10.0
"""Between two reports of connections that were closed."""
SILENT_HEARTBEATS = 4
"""Heartbeats without any bytes after which a connection is closed."""
LAST_BYTES_SECONDS = 1.0
"""Time for the last bytes to be passed on when the pool closes."""
HEARTBEAT_NBYTES = 1024
"""Bytes allowed per heartbeat: pings and pongs are never taken."""
NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@dataclass(eq=False)
class Connection:
    """One connection of a remote worker. Only the listener's thread changes it, but for `credited`."""

    number: int
    address: str
    worker: socket.socket
    since: float
    router: socket.socket | None = None
    """The connection to the ROUTER socket; None until the worker has begun its greeting."""
    handshake: Handshake = field(default_factory=Handshake)
    key_command: bytes = b""
    """The command that contains its key, while it is queued."""
    is_known: bool = False
    """Whether its key is an allowed one."""
    is_left: bool = False
    """Whether the worker's end is closed, and only libzmq's reply about its key is awaited."""
    from_worker: Frames = field(default_factory=Frames)
    from_router: Frames = field(default_factory=Frames)
    to_worker: bytearray = field(default_factory=bytearray)
    to_router: bytearray = field(default_factory=bytearray)
    sent: int = 0
    """Bytes of all frames of messages that the worker has sent (`frame_cost`)."""
    credited: int = 0
    """Bytes of those that were taken."""
    full_since: float | None = None
    """When reading from it was suspended."""
    heard_at: float = 0.0
    """When its last bytes were read, or could not be."""


class Listener:
    """Accepts remote workers and relays their bytes to a ROUTER socket, until ``exits`` is closed."""

    def __init__(
        self, endpoint: str, router: Path, most_nbytes: int, heartbeat_seconds: float, exits: ExitStack
    ) -> None:
        """``endpoint``: tcp://HOST:PORT; ``router``: the file of the ROUTER's socket, which may be bound later.

        ``most_nbytes``: of the largest message's parts together. PoolError where it cannot listen.
        """
        self._router = str(router)
        self.most_nbytes = most_nbytes
        self._heartbeat_rate = HEARTBEAT_NBYTES / heartbeat_seconds
        self._silent_seconds = SILENT_HEARTBEATS * heartbeat_seconds
        process = psutil.Process()
        soft, _ = process.rlimit(psutil.RLIMIT_NOFILE)
        free = MOST_CONNECTIONS * FILES_PER_CONNECTION if soft < 0 else soft - process.num_fds() - SPARE_FILES
        self._most = max(2, min(MOST_CONNECTIONS, free // FILES_PER_CONNECTION))
        self._most_unknown = max(2, min(MOST_UNKNOWN, self._most // 2))
        self._most_per_address = min(MOST_UNKNOWN_PER_ADDRESS, max(1, self._most_unknown // 2))
        self._server = exits.enter_context(_listening(endpoint))
        host, port = self._server.getsockname()[:2]
        self.endpoint = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        exits.callback(os.close, self._woken)
        exits.callback(os.close, self._wake)
        self._selector = selectors.DefaultSelector()
        exits.callback(self._selector.close)
        self._selector.register(self._server, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._connections: dict[int, Connection] = {}
        self._numbers = 0
        self._unknown = Counter[str]()  # address -> connections that are not known
        self._queue: deque[Connection] = deque()  # those whose keys are to be checked
        self._checked: Connection | None = None
        self._closed, self._reported, self._reported_at, self._last_closed = 0, 0, float("-inf"), ""
        self._drained_at = self._checked_at = float("-inf")
        self._accepts_at: float | None = None  # when accepting is tried again
        self._is_ending = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)
        exits.callback(self._end)

    def start(self) -> None:
        """Begin to accept; the ROUTER socket is bound."""
        self._thread.start()

    # --- for the pool, in its own thread --------------------------------------------------------------------------

    @property
    def checked_connection(self) -> tuple[int, str]:
        """(number, address) of the connection whose key libzmq checks now; (0, "") if there is none."""
        connection = self._checked
        return (0, "") if connection is None else (connection.number, connection.address)

    def taken(self, number: int, parts: Sequence[memoryview]) -> None:
        """Credit a connection with a message that was taken from the ROUTER socket."""
        connection = self._connections.get(number)
        if connection is not None:
            connection.credited += sum(cost(part.nbytes) for part in parts)
            if connection.full_since is not None:
                self._wake_up()

    def is_open(self, number: int) -> bool:
        """Whether a connection is. What its worker has sent over one that is not may be lost."""
        return number in self._connections

    def drained(self) -> None:
        """Note that the ROUTER socket has no message. Raises the error that ended the thread, if one did."""
        self._drained_at = time.monotonic()
        if self._failure is not None:
            raise self._failure

    def closed_connections(self) -> str:
        """A report of connections that were closed, with the last reason; '' if there is none, or too soon."""
        now, closed = time.monotonic(), self._closed
        if closed == self._reported or now < self._reported_at + REPORT_SECONDS:
            return ""
        more, self._reported, self._reported_at = closed - self._reported, closed, now
        return f"{more} closed, {closed} so far; the last: {self._last_closed}"

    def _wake_up(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b".")

    def _end(self) -> None:
        """End the thread, when the bytes that the closed ROUTER socket has sent are passed on."""
        self._is_ending = True
        self._wake_up()
        if self._thread.is_alive():
            self._thread.join()

    # --- connections come and go ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # raised by `drained`, in the pool's thread
            self._failure = error
        finally:
            for connection in list(self._connections.values()):
                self._checked = None
                self._drop(connection)

    def _serve(self) -> None:
        ends_at = float("inf")
        while True:
            for key, events in self._selector.select(TICK_SECONDS):
                if key.fileobj is self._server:
                    self._accept()
                elif key.fileobj == self._woken:
                    os.read(self._woken, 4096)
                else:
                    self._handle(key.data, key.fileobj, events)
            now = time.monotonic()
            if self._is_ending:
                ends_at = min(ends_at, now + LAST_BYTES_SECONDS)
                if now >= ends_at or not any(connection.is_known for connection in self._connections.values()):
                    return
            self._check_connections(now)

    def _accept(self) -> None:
        try:
            worker, (address, *_) = self._server.accept()
        except OSError as error:
            if error.errno in NO_FILES:  # an immediate retry would fail, too
                self._selector.unregister(self._server)
                self._accepts_at = time.monotonic() + 1.0
            return
        problem = ""
        if self._unknown[address] >= self._most_per_address:
            problem = f"{self._unknown[address]} connections from there have shown no key yet"
        elif self._unknown.total() >= self._most_unknown:
            problem = f"{self._unknown.total()} connections have shown no key yet"
        elif len(self._connections) >= self._most:
            problem = f"{self._most} connections are open"
        if problem:
            worker.close()
            self._record(f"from {address}: {problem}")
            return
        worker.setblocking(False)
        worker.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._numbers += 1
        connection = Connection(self._numbers, address, worker, time.monotonic())
        self._connections[connection.number] = connection
        self._unknown[address] += 1
        self._selector.register(worker, selectors.EVENT_READ, connection)

    def _record(self, reason: str) -> None:
        self._last_closed = reason
        self._closed += 1

    def _refuse(self, connection: Connection, reason: str) -> None:
        self._record(f"from {connection.address}: {reason}")
        self._leave(connection)

    def _leave(self, connection: Connection) -> None:
        """Close the worker's end. If its key is being checked, wait for libzmq's reply, which is about no other."""
        if connection is not self._checked:
            self._drop(connection)
        elif not connection.is_left:
            connection.is_left = True
            connection.to_worker.clear()
            self._close(connection.worker)

    def _drop(self, connection: Connection) -> None:
        if self._connections.pop(connection.number, None) is None:
            return
        if not connection.is_known:
            self._forget_unknown(connection)
        if not connection.is_left:
            self._close(connection.worker)
        if connection.router is not None:
            self._close(connection.router)
        if connection is self._checked:
            self._check_next()
        elif connection in self._queue:
            self._queue.remove(connection)

    def _forget_unknown(self, connection: Connection) -> None:
        self._unknown[connection.address] -= 1
        if not self._unknown[connection.address]:
            del self._unknown[connection.address]

    def _close(self, end: socket.socket) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(end)
        end.close()

    def _check_connections(self, now: float) -> None:
        if self._accepts_at is not None and now >= self._accepts_at:
            self._accepts_at = None
            self._selector.register(self._server, selectors.EVENT_READ)
        was_paused = now - self._checked_at > self._silent_seconds / 2  # such as a process that was stopped
        self._checked_at = now
        for connection in list(self._connections.values()):
            is_read = connection.full_since is None and not connection.to_router
            if was_paused or not is_read:
                connection.heard_at = now
            is_queued = connection is self._checked or bool(connection.key_command)
            if connection.full_since is not None:
                if not self._is_full(connection, now):
                    connection.full_since = None
                    self._watch(connection)
                elif self._drained_at > connection.full_since + TOO_LARGE_SECONDS:
                    self._refuse(connection, f"a message of more than {self.most_nbytes} bytes, the most that any has")
            elif not connection.is_known and not is_queued and now > connection.since + HANDSHAKE_SECONDS:
                self._refuse(connection, f"no handshake within {HANDSHAKE_SECONDS:g} s")
            elif connection.is_known and now > connection.heard_at + self._silent_seconds:
                self._refuse(connection, f"nothing was heard for {self._silent_seconds:g} s")

    # --- bytes pass -----------------------------------------------------------------------------------------------

    def _handle(self, connection: Connection, end: object, events: int) -> None:
        """Read from an end of a connection, or write to it, as it is ready."""
        if connection.number not in self._connections:
            return  # closed since it was selected
        is_worker = end is connection.worker
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(connection)
            if events & selectors.EVENT_READ:
                readable = connection.worker if is_worker else connection.router
                assert readable is not None
                data = readable.recv(CHUNK_NBYTES)
                if not data:
                    raise ConnectionResetError
                if is_worker:
                    connection.heard_at = time.monotonic()
                takes = self._from_worker if is_worker else self._from_router
                takes(connection, data)
                self._flush(connection)
        except BlockingIOError:
            pass
        except RefusedError as error:
            self._refuse(connection, str(error))
        except OSError:
            if is_worker:
                self._leave(connection)
            else:
                self._drop(connection)
        self._watch(connection)

    def _from_worker(self, connection: Connection, data: bytes) -> None:
        if connection.is_known:
            for frame in connection.from_worker.feed(data):
                if frame.nbytes > self.most_nbytes:
                    raise RefusedError(f"a frame of {frame.nbytes} bytes; the largest message has {self.most_nbytes}")
                connection.sent += frame_cost(frame.nbytes)
            connection.to_router += data
            if self._is_full(connection, time.monotonic()):
                connection.full_since = time.monotonic()
            return
        passing = connection.handshake.feed(data)
        while passing:
            connection.from_worker.feed(passing)
            if connection.handshake.is_over:
                connection.key_command = passing
                self._queue.append(connection)
                self._check_next()
            else:
                if connection.router is None:
                    connection.router = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                    connection.router.setblocking(False)
                    connection.router.connect(self._router)
                    self._selector.register(connection.router, selectors.EVENT_READ, connection)
                connection.to_router += passing
            passing = connection.handshake.feed(b"")

    def _check_next(self) -> None:
        """Let libzmq see the next key, if it has answered about the one before."""
        if self._checked is not None and self._checked.number in self._connections:
            return
        self._checked = self._queue.popleft() if self._queue else None
        if self._checked is not None:
            self._checked.to_router += self._checked.key_command
            self._checked.key_command = b""
            self._watch(self._checked)

    def _from_router(self, connection: Connection, data: bytes) -> None:
        frames = connection.from_router.feed(data)
        connection.to_worker += b"" if connection.is_left else data
        if connection is not self._checked or not frames:
            return
        # libzmq's reply: the key is allowed, or it is not
        self._checked = None
        if frames[0].head == READY and not connection.is_left:
            connection.is_known = True
            self._forget_unknown(connection)
        elif connection.is_left:
            self._drop(connection)
        self._check_next()

    def _is_full(self, connection: Connection, now: float) -> bool:
        allowed = self.most_nbytes + self._heartbeat_rate * (now - connection.since)
        return connection.sent - connection.credited >= allowed

    def _flush(self, connection: Connection) -> None:
        """Pass on the bytes that the ends take now.

        A closed end is found when it is read, so that its last bytes are passed on before; it takes none itself.
        """
        for end, data in ((connection.worker, connection.to_worker), (connection.router, connection.to_router)):
            if data and end is not None:
                try:
                    del data[: end.send(data)]
                except BlockingIOError:
                    pass
                except ConnectionError:
                    data.clear()

    def _watch(self, connection: Connection) -> None:
        """Select an end for reading if its bytes can be passed on, and for writing if bytes wait for it."""
        if connection.number not in self._connections:
            return
        room = not connection.to_router and connection.full_since is None
        ends = [(connection.worker, room, connection.to_worker)] if not connection.is_left else []
        if connection.router is not None:
            ends.append((connection.router, not connection.to_worker, connection.to_router))
        for end, reads, data in ends:
            events = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if data else 0)
            is_selected = end in self._selector.get_map()
            if not events and is_selected:
                self._selector.unregister(end)
            elif events and is_selected:
                self._selector.modify(end, events, connection)
            elif events:
                self._selector.register(end, events, connection)


def _listening(endpoint: str) -> socket.socket:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    host = host.strip("[]")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            None if host == "*" else host, 0 if port == "*" else int(port),
            type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE,
        )[0]  # fmt: skip
        server = socket.create_server(address[:2], family=family, backlog=MOST_UNKNOWN)
    except (OSError, UnicodeError) as error:
        raise PoolError(f"cannot listen on {endpoint}: {getattr(error, 'strerror', None) or error}") from None
    server.setblocking(False)
    return server
