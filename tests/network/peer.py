"""One end of a network under test: sends and receives the project's own messages over ZeroMQ and notes when.

    python -m tests.network.peer server|clientN tcp://ADDRESS:PORT

Each line on standard input is a JSON list of steps, taken in order; a line with what each step saw answers it.
Never predicts anything. Times are CLOCK_MONOTONIC, which all network namespaces of a machine share.

    ["connect"]                                -> when; closes what was open, the first message goes as soon as it can
    ["greet", count]                           -> [[client, when its first message was there], ...]
    ["send", [[client, payload_nbytes], ...]]  -> [[client, when it was handed over, nbytes], ...]
    ["receive", count]                         -> [[client, when it was complete, nbytes, nbytes by its shapes], ...]
    ["sleep", seconds]                         -> null
    ["wake", pipe]                             -> null; lets another peer of this machine go on, which waits
    ["wait", pipe]                             -> null; waits for it; pipe: the path of a named pipe
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from edge.protocol import serialization
from edge.protocol.messages import Train, Update
from edge.protocol.payload import ITEM_NBYTES, MODEL, Payload, Vector, shapes

SERVER = "server"
RUN_ID = "network-under-test"
HELLO = b"hello"
SHARES = (1, 2, 4, 8, 16, 1)
"""How the numbers are divided among the blocks."""
CHOICE = {"alpha": 1}
NUMBERS = {"loss": 0.5, "samples": 64.0}


class Peer:
    """The server (ROUTER) or a client (DEALER)."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        self.context = zmq.Context()
        self.socket = self._open()
        if name == SERVER:
            self.socket.bind(address)

    def take(self, steps: Sequence[Sequence[Any]]) -> list[Any]:
        """Take all steps in order; their messages are encoded before the first of them."""
        ready = [
            [(client, self._encode(client, nbytes)) for client, nbytes in step[1]] if step[0] == "send" else None
            for step in steps
        ]
        return [
            getattr(self, step[0])(*([given] if given else step[1:])) for step, given in zip(steps, ready, strict=True)
        ]

    def connect(self) -> float:
        """A new connection."""
        self.socket.close()
        self.socket = self._open()
        at = time.monotonic()
        self.socket.connect(self.address)
        self.socket.send(HELLO)
        return at

    def greet(self, count: int) -> list[tuple[int, float]]:
        """Wait for ``count`` new connections."""
        seen = []
        for _ in range(count):
            name, hello = self.socket.recv_multipart()
            assert hello == HELLO, hello
            seen.append((_number(name), time.monotonic()))
        return seen

    def send(self, messages: Sequence[tuple[int, serialization.Encoded]]) -> list[tuple[int, float, int]]:
        """Hand all messages over at once."""
        sent = []
        for client, message in messages:
            to = [b"client%d" % client] if self.name == SERVER else []
            sent.append((client, time.monotonic(), message.nbytes))
            self.socket.send_multipart([*to, message.header, *message.frames], copy=False)
        return sent

    def receive(self, count: int) -> list[tuple[int, float, int, int]]:
        """Wait for ``count`` messages; they are looked into after the last."""
        arrived = []
        for _ in range(count):
            parts = self.socket.recv_multipart(copy=False)
            arrived.append((time.monotonic(), [part.buffer for part in parts]))
        return [self._account(at, parts) for at, parts in arrived]

    def sleep(self, seconds: float) -> None:
        """Take that long, as a client does that computes."""
        time.sleep(seconds)

    def wake(self, pipe: str) -> None:
        """Let the peer go on that waits at a named pipe."""
        Path(pipe).open("wb").close()  # waits until it is opened at its other end

    def wait(self, pipe: str) -> None:
        """Wait until another peer wakes this one."""
        Path(pipe).read_bytes()

    def _open(self) -> zmq.Socket[bytes]:
        opened = self.context.socket(zmq.ROUTER if self.name == SERVER else zmq.DEALER)
        opened.linger = 0
        if self.name == SERVER:
            opened.router_mandatory = 1
            # a client's new connection takes the place of its old one
            opened.router_handover = 1
        else:
            opened.setsockopt(zmq.IDENTITY, self.name.encode())
        return opened

    def _encode(self, client: int, payload_nbytes: int) -> serialization.Encoded:
        payload = _payload(payload_nbytes)
        if self.name == SERVER:
            return serialization.encode(Train(client=client, round=1, lr=0.1, choice=CHOICE, payload=payload), RUN_ID)
        return serialization.encode(Update(client=client, round=1, numbers=NUMBERS, payload=payload), RUN_ID)

    def _account(self, at: float, parts: list[memoryview]) -> tuple[int, float, int, int]:
        if self.name == SERVER:
            parts = parts[1:]
        message = serialization.decode(parts[0], parts[1:], RUN_ID)
        nbytes = sum(part.nbytes for part in parts)
        if isinstance(message, Train):
            return message.client, at, nbytes, serialization.train_nbytes(RUN_ID, CHOICE, shapes(message.payload))
        assert isinstance(message, Update), message
        return message.client, at, nbytes, serialization.update_nbytes(RUN_ID, NUMBERS, shapes(message.payload))


def _number(name: bytes) -> int:
    return int(name.removeprefix(b"client"))


def _payload(nbytes: int) -> Payload:
    unit = nbytes / ITEM_NBYTES / sum(SHARES)
    return {MODEL: {f"block{i}": Vector(np.ones(int(unit * share), np.float32)) for i, share in enumerate(SHARES)}}


def main() -> None:
    """Serve standard input until it closes."""
    name, address = sys.argv[1:]
    peer = Peer(name, address)
    print(json.dumps(["ready"]), flush=True)
    for line in sys.stdin:
        print(json.dumps(peer.take(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
