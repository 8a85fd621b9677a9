"""Workers that are sockets of the test's own process, behind a real pool: they say what the test wants them to say."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from msgspec import msgpack

from coordinator.records.schema import HostEvent
from coordinator.workers.pool import Pool
from coordinator.workers.sockets import RemoteAccess
from edge.protocol import messages, serialization
from edge.protocol.fixed_point import FixedPointSums
from edge.protocol.payload import Vector
from tests.edge.protocol.mutations import JOB, pack, payload


class Impostors:
    """In place of a launcher. They are honest, and add updates up where told to; subclasses override `say`."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._answers: deque[dict[str, Any]] = deque()
        self.sockets: dict[str, zmq.Socket[bytes]] = {}
        """Those of workers, by identity"""
        self._sums: dict[str, FixedPointSums] = {}
        self._strangers: list[zmq.Socket[bytes]] = []
        self.lives = 0
        """Workers that were started."""
        self.key: tuple[bytes, bytes] | None = None
        """With which they come, where they are remote workers"""
        self.remote_access: RemoteAccess | None = None
        """By which they come then"""

    # --- as coordinator.workers.launcher.WorkerLauncher ---

    def fileno(self) -> int:
        return self._read_end

    def adopt(self, folder: Path) -> None:
        pass

    def use(self, instructions: str) -> None:
        pass

    def spawn(self, identity: str, argv: Sequence[str], log: Path) -> None:
        if argv:
            self.endpoint = argv[0]
        self.sockets[identity] = self._connect(identity)
        self.lives += 1
        self._answer({"spawned": identity, "pid": os.getpid()})
        self.say(identity, messages.Hello())

    def end(self, identities: Sequence[str]) -> None:
        for identity in identities:
            if identity in self.sockets:
                self.sockets.pop(identity).close(0)
                self._answer({"exited": identity, "status": -15})

    def check(self) -> None:
        """Nothing here is ever stuck."""

    def answers(self) -> list[dict[str, Any]]:
        self.turn()
        with suppress(BlockingIOError):
            os.read(self._read_end, 1 << 16)
        found = list(self._answers)
        self._answers.clear()
        return found

    def close(self) -> None:
        self.end(list(self.sockets))
        for stranger in self._strangers:
            stranger.close(0)
        self._context.term()
        os.close(self._read_end)
        os.close(self._write_end)

    # --- for tests ---

    def say(self, identity: str, message: messages.Message, sequence: int = 0) -> None:
        """Send what an honest worker would."""
        self.send(identity, pack(message, serialization.Envelope(identity, sequence)))

    def send(self, identity: str, parts: Sequence[bytes]) -> None:
        """Send anything, as this worker, if it has not been ended meanwhile."""
        if parts and identity in self.sockets:
            self.sockets[identity].send_multipart(parts)

    def stranger(self, identity: str) -> zmq.Socket[bytes]:
        """A socket that the pool has not asked for."""
        self._strangers.append(self._connect(identity))
        return self._strangers[-1]

    def turn(self) -> None:
        """Hear and answer what has come."""
        for identity, socket in list(self.sockets.items()):
            while identity in self.sockets and socket.poll(0):
                envelope, header, *frames = socket.recv_multipart()
                self._heed(identity, serialization.Envelope.parse(envelope), header, frames)

    def _connect(self, identity: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        if identity:
            socket.setsockopt(zmq.IDENTITY, identity.encode())
        socket.setsockopt(zmq.LINGER, 0)
        if self.key is not None:
            socket.curve_publickey, socket.curve_secretkey = self.key
            socket.curve_serverkey = ImpostorRemoteWorkers.run[0]
        socket.connect(self.endpoint)
        return socket

    def _answer(self, answer: dict[str, Any]) -> None:
        self._answers.append(answer)
        os.write(self._write_end, b".")

    def _heed(self, identity: str, envelope: serialization.Envelope, header: bytes, frames: Sequence[bytes]) -> None:
        name = name_of(header)
        if name == "Shutdown":
            self.end([identity])
        elif name == "Ping":
            self.say(identity, messages.Pong())
        elif name == "Train":
            update = answer(client_of(header))
            if self.key is not None and envelope.state_out is not None:
                self.say(identity, keeps(update.client), envelope.sequence)
            if envelope.weight:
                update = self._sums.setdefault(identity, FixedPointSums(update.round)).put(update, envelope.weight)
            self.say(identity, update, envelope.sequence)
        elif name == "FetchPartial":
            self.say(identity, self._sums.pop(identity).message())


class ImpostorRemoteWorkers(Impostors):
    """They join with a key whenever none is there, and what their clients keep comes ahead of each update."""

    run = zmq.curve_keypair()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.key = zmq.curve_keypair()
        self.remote_access = RemoteAccess("tcp://127.0.0.1:*", *self.run, [self.key[0].decode()])

    def turn(self) -> None:
        """One at a time."""
        if not self.sockets:
            identity = f"remote-{self.lives}"
            self.lives += 1
            self.sockets[identity] = self._connect(identity)
            self.say(identity, messages.Hello())
        super().turn()


def keeps(client: int) -> messages.ClientState:
    """What a client keeps after each visit."""
    return messages.ClientState(client, {"model": {"a": Vector(np.full(3, client, np.float32))}})


def answer(client: int) -> messages.Update:
    """The right answer to a visit."""
    return messages.Update(client, 5, {"loss": 0.5}, payload(client))


def name_of(header: bytes) -> str:
    """The type of a message."""
    return str(msgpack.decode(header)[1])


def client_of(header: bytes) -> int:
    """Whose visit it is."""
    return int.from_bytes(msgpack.decode(header)[3]["client"], "big")


@contextmanager
def impostors_pool(workers: Impostors, logs: Path, kind: type[Pool] = Pool) -> Iterator[tuple[Pool, list[HostEvent]]]:
    """A pool with one such worker at a time, and what happens in it."""
    launcher: Any = workers
    events: list[HostEvent] = []

    def stopped() -> bool:
        workers.turn()
        return False

    try:
        remote_access = workers.remote_access
        with kind(
            JOB, 1 if remote_access is None else 0, launcher, logs, events.append, stopped, remote_access=remote_access
        ) as pool:
            if pool.remote_access is not None:
                workers.endpoint = pool.remote_access.endpoint
            yield pool, events
    finally:
        workers.close()
