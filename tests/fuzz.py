"""Malformed messages against both sides of the protocol: ``python -m tests.fuzz --messages 100000 --seed 1``.

Three sides: the decoder alone; a pool with its ROUTER socket, which hears strangers and workers that misbehave; and a
worker process, which hears a coordinator that does. Each is asked for honest work in between and must do it right.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import zmq

from coordinator.crew import Worker
from coordinator.ledger import HostEvent
from coordinator.pool import Pool
from coordinator.tasks import PoolTask, Reply
from edge import messages, wire
from edge.payload import Payload, Vector
from tests.edge.mutations import DESCRIPTION, JOB, RUN, Parts, going_down, going_up, mutate, noise, pack, payload

ROOT = Path(__file__).parent.parent
SILENT_SECONDS = 60
"""Who has not answered honest work by then has stalled."""
BATCH = 50
"""Messages between two pieces of honest work."""
LIVES = 200
"""Workers of one pool, which never forgets one."""


@dataclass
class Outcome:
    """What came of malformed messages."""

    sent: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Refused messages by reason, without the values."""
    lines: int = 0
    """Lines that were logged about them."""
    seconds: float = 0.0
    grown_bytes: int = 0
    """By which resident memory grew after the first tenth of the messages."""

    @property
    def refused(self) -> int:
        return sum(self.reasons.values())

    def refuse(self, reason: str) -> None:
        plain = re.sub(r"b?'.*|b?\".*|[\[({].*", "..", reason)
        self.reasons[re.sub(r"-?\d+", "N", re.sub(r"\b(entry|vector) \S+", r"\1 ..", plain))[:60]] += 1


@contextmanager
def measured(outcome: Outcome, process: Callable[[], psutil.Process]) -> Iterator[Callable[[float], None]]:
    """Time and memory; what is yielded is told how much of all is done."""
    began, first = time.monotonic(), 0

    def done(share: float) -> None:
        nonlocal first
        if share >= 0.1 and not first:
            first = process().memory_info().rss

    yield done
    outcome.seconds = time.monotonic() - began
    outcome.grown_bytes = process().memory_info().rss - first


def malformed(draw: random.Random, valid: Sequence[Parts]) -> Parts:
    """A valid message mutated, or noise."""
    return noise(draw) if draw.random() < 0.1 else mutate(draw, draw.choice(valid))


# --- the decoder --------------------------------------------------------------------------------------------------


def fuzz_decoder(count: int, seed: int) -> Outcome:
    """`Envelope.parse` and `decode`, in both directions: a `WireError`, or a message that can be sent again."""
    draw, outcome = random.Random(seed), Outcome()
    held = {vector.version: vector for vector in payload()["model"].values()}
    up = [pack(message) for message in going_up()]
    down = [pack(message, frames=isinstance(message, messages.Blocks)) for message in going_down()]
    with measured(outcome, psutil.Process) as done:
        for number in range(count):
            goes_down = number % 2 == 1
            parts = malformed(draw, down if goes_down else up)
            outcome.sent += 1
            try:
                read(parts, held if goes_down else None)
            except messages.WireError as error:
                outcome.refuse(str(error))
            done(number / count)
    return outcome


def read(parts: Parts, held: dict[bytes, Vector] | None) -> None:
    """Decode a message, and check that it is one."""
    if len(parts) < 2:
        raise messages.WireError(f"{len(parts)} parts")
    wire.Envelope.parse(parts[0]).pack()
    message = wire.decode(parts[1], parts[2:], RUN, held)
    again = wire.encode(message, RUN)
    assert type(wire.decode(again.header, again.frames, RUN)) is type(message)


# --- a pool -------------------------------------------------------------------------------------------------------


class CountingPool(Pool):
    """Tells why it refuses, and never waits long: its workers are at work only while it does not wait."""

    outcome: Outcome

    def _turn(self, seconds: float) -> None:
        super()._turn(min(seconds, 0.001))

    def _refuse(self, worker: Worker | None, reason: str) -> None:
        self.outcome.refuse(reason.partition(": ")[2])
        super()._refuse(worker, reason)


class Impostors:
    """In place of a nursery: workers that are sockets of this process, and misbehave sooner or later.

    Every second one answers two visits before, and the others none or one: so no visit fails three times, and no two
    workers in a row end before they are ready.
    """

    def __init__(self, draw: random.Random, outcome: Outcome) -> None:
        self._draw, self._outcome = draw, outcome
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._read_end, self._write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._answers: deque[dict[str, Any]] = deque()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        self._steps: dict[str, int] = {}
        """identity -> at which of its messages it begins to misbehave"""
        self._strangers: list[zmq.Socket[bytes]] = []
        self._up = going_up()
        self._from_nobody = [pack(message) for message in self._up]
        self.lives = 0

    def fileno(self) -> int:
        return self._read_end

    def adopt(self, folder: Path) -> None:
        self.endpoint = f"ipc://{folder / 'pool'}"

    def spawn(self, identity: str, argv: Sequence[str], log: Path) -> None:
        self._sockets[identity] = self._connect(identity)
        self._steps[identity] = self._draw.choice((0, 1, 3, 3, 3)) if self.lives % 2 else 4
        self.lives += 1
        self._answer({"spawned": identity, "pid": os.getpid()})
        self._say(identity, messages.Hello())

    def end(self, identities: Sequence[str]) -> None:
        for identity in identities:
            if identity in self._sockets:
                self._sockets.pop(identity).close(0)
                self._answer({"exited": identity, "status": -15})

    def answers(self) -> list[dict[str, Any]]:
        self.turn()
        with suppress(BlockingIOError):
            os.read(self._read_end, 1 << 16)
        found = list(self._answers)
        self._answers.clear()
        return found

    def close(self) -> None:
        self.end(list(self._sockets))
        for stranger in self._strangers:
            stranger.close(0)
        self._context.term()
        os.close(self._read_end)
        os.close(self._write_end)

    def turn(self) -> bool:
        """Hear and answer what has come; as `Pool.stopped`."""
        for identity, socket in list(self._sockets.items()):
            while identity in self._sockets and socket.poll(0):
                envelope, header, *frames = socket.recv_multipart()
                self._heed(identity, wire.Envelope.parse(envelope), header, frames)
        return False

    def intrude(self) -> None:
        """Messages from nobody, and from one that has taken the name of a worker."""
        if not self._strangers:
            names = ["stranger\n\x1b[31m", next(iter(self._sockets)), ""]
            self._strangers = [self._connect(name) for name in names]
        for stranger in self._strangers:
            parts = malformed(self._draw, self._from_nobody)
            if parts and stranger.poll(0, zmq.POLLOUT):
                self._outcome.sent += 1
                stranger.send_multipart(parts)

    def _connect(self, identity: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        if identity:
            socket.setsockopt(zmq.IDENTITY, identity.encode())
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(self.endpoint)
        return socket

    def _answer(self, answer: dict[str, Any]) -> None:
        self._answers.append(answer)
        os.write(self._write_end, b".")

    def _heed(self, identity: str, envelope: wire.Envelope, header: bytes, frames: Sequence[bytes]) -> None:
        name = wire_name(header)
        if name == "bye":
            self.end([identity])
        elif name == "ping":
            self._say(identity, messages.Pong())
        elif name == "train":
            self._say(identity, answer(client_of(header)), envelope.sequence)

    def _say(self, identity: str, message: messages.Message, sequence: int = 0) -> None:
        """Say it, or something like it."""
        self._steps[identity] -= 1
        parts = pack(message, wire.Envelope(identity, sequence))
        if self._steps[identity] >= 0:
            self._sockets[identity].send_multipart(parts)
            return
        valid = [pack(other, wire.Envelope(identity, sequence)) for other in (message, *self._up)]
        changed = malformed(self._draw, valid)
        self._outcome.sent += 1
        if changed:
            self._sockets[identity].send_multipart(changed)
        self._sockets[identity].send_multipart([b""])  # whatever came before: this is refused


def answer(client: int) -> messages.Update:
    """The right answer to a visit."""
    return messages.Update(client, 5, {"loss": 0.5}, payload(client))


def wire_name(header: bytes) -> str:
    """The type of a message."""
    import msgpack

    return str(msgpack.unpackb(header)[1])


def client_of(header: bytes) -> int:
    """Whose visit it is."""
    import msgpack

    return int.from_bytes(msgpack.unpackb(header)[3]["client"], "big")


def fuzz_pool(count: int, seed: int) -> Outcome:
    """A pool that strangers and its own workers send malformed messages: every visit is answered, once."""
    draw, outcome = random.Random(seed), Outcome()
    with measured(outcome, psutil.Process) as done:
        while outcome.sent < count:
            _one_pool(draw, outcome, count)
            done(outcome.sent / count)
    return outcome


def _one_pool(draw: random.Random, outcome: Outcome, count: int) -> None:
    nursery, events = Impostors(draw, outcome), list[HostEvent]()
    with tempfile.TemporaryDirectory(prefix="f-") as logs:
        fake: Any = nursery
        deadline = time.monotonic() + SILENT_SECONDS

        def stopped() -> bool:
            assert time.monotonic() < deadline, "the pool has stalled"
            return nursery.turn()

        pool = CountingPool(JOB, 1, fake, Path(logs), events.append, stopped)
        pool.outcome = outcome
        with pool:
            while nursery.lives < LIVES and outcome.sent < count:
                nursery.intrude()
                deadline = time.monotonic() + SILENT_SECONDS
                clients = [draw.randrange(1000) for _ in range(3)]
                heard: list[int] = []
                _visit(pool, clients, heard)
                assert sorted(heard) == sorted(clients), (heard, clients)
        nursery.close()
    outcome.lines += sum(event.kind == "message_refused" for event in events)


def _visit(pool: Pool, clients: Sequence[int], heard: list[int]) -> None:
    def hear(task: PoolTask, reply: Reply) -> None:
        assert isinstance(reply, messages.Update)
        heard.append(reply.client)

    up = {"model": {"a": 3, "b": 1}}
    tasks = [PoolTask(messages.Train(client, 5, 0.1, {"act": 0}, payload()), up=up) for client in clients]
    pool.submit(tasks, hear).wait()


# --- a worker -----------------------------------------------------------------------------------------------------


class Site:
    """Answers a visit with the client's number."""

    def __init__(self, job: object) -> None:
        pass

    def describe(self, data: bool) -> tuple[Any, Payload]:
        return DESCRIPTION, payload()

    def train(self, task: messages.Train, state_in: str | None, state_out: str | None) -> messages.Update:
        return messages.Update(task.client, task.round, {"loss": 0.5}, payload(float(np.float32(task.client))))

    def evaluate(self, task: messages.Evaluate, state_in: str | None) -> messages.Score:
        return messages.Score(task.start, task.client, 0, task.stop - task.start, 0.5)


class Listener:
    """A coordinator that is a ROUTER socket, and one real worker process behind it."""

    def __init__(self, folder: Path) -> None:
        self.log, self.identity = folder / "worker.log", "worker-0-00ff"
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        endpoint = f"ipc://{folder / 'socket'}"
        self._router.bind(endpoint)
        code = "import sys; from edge.worker import main; sys.exit(main(sys.argv[1:]))"
        argv = [sys.executable, "-c", code, endpoint, self.identity, RUN, "tests.fuzz:Site", "5000"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(argv, stderr=log, cwd=ROOT)
        self.sent = 1

    def send(self, parts: Parts) -> None:
        self._router.send_multipart([self.identity.encode(), *parts])

    def hear(self) -> tuple[int, messages.Message]:
        """The next message, and its sequence."""
        assert self._router.poll(SILENT_SECONDS * 1000), f"the worker has stalled: {self.log.read_text()[-2000:]}"
        _, envelope, header, *frames = self._router.recv_multipart()
        return wire.Envelope.parse(envelope).sequence, wire.decode(header, frames, RUN)

    def visit(self, client: int, heard: Callable[[messages.Message], None]) -> messages.Message:
        """Have a visit done; what comes before its answer is ``heard``."""
        self.sent += 1
        sequence = 10**6 + self.sent
        task = messages.Train(client, 5, 0.1, {"act": 0}, payload(float(self.sent)))
        vectors = tuple(task.payload["model"].values())
        gone = tuple(vector.version for vector in payload(float(self.sent - 1))["model"].values())
        self.send(pack(messages.Blocks(vectors), wire.Envelope(self.identity, forget=gone)))
        self.send(pack(task, wire.Envelope(self.identity, sequence), frames=False))
        while True:
            got, message = self.hear()
            if got == sequence:
                return message
            heard(message)

    def close(self) -> int:
        """How the worker ends after a bye."""
        self.send(pack(messages.Bye(), wire.Envelope(self.identity)))
        try:
            return self.process.wait(SILENT_SECONDS)
        finally:
            self.process.kill()
            self._context.destroy(0)


def fuzz_worker(count: int, seed: int) -> Outcome:
    """A worker whose coordinator sends malformed messages, before the welcome and after: it still does its visits."""
    draw, outcome = random.Random(seed), Outcome()

    def heard(message: messages.Message) -> None:
        if isinstance(message, messages.Error) and message.kind == "WireError":
            outcome.refuse(message.text)

    with tempfile.TemporaryDirectory(prefix="f-") as folder:
        listener = Listener(Path(folder))
        assert isinstance(listener.hear()[1], messages.Hello)
        envelope = wire.Envelope(listener.identity, 7)
        valid = [pack(message, envelope, isinstance(message, messages.Blocks)) for message in going_down()]
        early = [parts for parts in valid if wire_name(parts[1]) != "welcome"]
        process = psutil.Process(listener.process.pid)
        with measured(outcome, lambda: process) as done:
            for _ in range(min(BATCH, count)):
                listener.send(malformed(draw, early))
                outcome.sent += 1
            listener.send(pack(messages.Welcome(JOB), wire.Envelope(listener.identity)))
            while outcome.sent < count:
                for _ in range(min(BATCH, count - outcome.sent)):
                    listener.send(malformed(draw, valid))
                    outcome.sent += 1
                client = draw.randrange(1000)
                reply = listener.visit(client, heard)
                assert isinstance(reply, messages.Update), reply
                assert (reply.client, reply.payload["model"]["a"].data.tolist()) == (client, [client] * 3)
                done(outcome.sent / count)
        assert listener.close() == 0
        outcome.lines = listener.log.read_text().count("refused: ")
    return outcome


# --- the command --------------------------------------------------------------------------------------------------

SIDES: dict[str, Callable[[int, int], Outcome]] = {"decoder": fuzz_decoder, "pool": fuzz_pool, "worker": fuzz_worker}


def show(name: str, outcome: Outcome) -> str:
    """A paragraph on one side."""
    head = f"{name}: {outcome.sent} messages in {outcome.seconds:.0f} s, {outcome.refused} refused for "
    head += f"{len(outcome.reasons)} reasons, {outcome.lines} lines logged, {outcome.grown_bytes / 1e6:+.1f} MB"
    return "\n".join([head, *(f"  {times:7d}  {reason}" for reason, times in outcome.reasons.most_common(15))])


def main() -> None:
    """Fuzz and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000, help="per side")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--side", choices=SIDES, action="append", help="default: all")
    asked = parser.parse_args()
    for name in asked.side or SIDES:
        print(show(name, SIDES[name](asked.messages, asked.seed)), flush=True)


if __name__ == "__main__":
    main()
