"""Malformed messages against both sides of the protocol: ``python -m tests.fuzz --messages 100000 --seed 1``.

The decoder alone, and codecs alone; a pool with its ROUTER socket, which hears strangers and workers that misbehave, or
remote workers that do; its port, to which anybody may send anything before a key is known; and a worker process, or a
remote worker's, which hears a coordinator that does. Each is asked for honest work in between and must do it right;
where there are remote workers, what clients keep travels with it.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import re
import socket
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil
import zmq

from coordinator.workers import messaging, scheduler
from coordinator.workers.pool import Pool
from coordinator.workers.registry import Worker
from coordinator.workers.task import PoolTask, Reply, UpdateValidator
from edge.protocol import client_state, messages, serialization
from edge.protocol.codecs.registry import make_codec
from edge.protocol.fixed_point import sum_vector
from edge.protocol.payload import Vector
from tests.edge.protocol.codecs import chains
from tests.edge.protocol.mutations import (
    BYE,
    JOB,
    RUN,
    Parts,
    going_down,
    going_up,
    mutate,
    noise,
    pack,
    payload,
    run_of,
)
from tests.edge.runtime.listener import SILENT_SECONDS, Listener
from tests.handshakes import GREETING, HELLO, INITIATE
from tests.impostors import ImpostorRemoteWorkers, Impostors, impostors_pool, keeps

ROOT = Path(__file__).parent.parent
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
    up = [(run_of(message), pack(message)) for message in going_up()]
    going = [
        (message, isinstance(message, messages.Tensors | messages.ClientState)) for message in (*going_down(), BYE)
    ]
    down = [(run_of(message), pack(message, frames=frames)) for message, frames in going]
    with measured(outcome, psutil.Process) as done:
        for number in range(count):
            goes_down = number % 2 == 1
            run_id, valid = draw.choice(down if goes_down else up)
            parts = malformed(draw, [valid])
            outcome.sent += 1
            try:
                read(parts, held if goes_down else None, run_id)
            except messages.WireError as error:
                outcome.refuse(str(error))
            done(number / count)
    return outcome


def read(parts: Parts, held: dict[bytes, Vector] | None, run_id: str = RUN) -> None:
    """Decode a message, and check that it is one."""
    if len(parts) < 2:
        raise messages.WireError(f"{len(parts)} parts")
    serialization.Envelope.parse(parts[0]).pack()
    message = serialization.decode(parts[1], parts[2:], run_id, held)
    again = serialization.encode(message, run_id)
    assert type(serialization.decode(again.header, again.frames, run_id)) is type(message)


def fuzz_codecs(count: int, seed: int) -> Outcome:
    """Frames of all codecs: a `WireError`, or a vector of finite numbers."""
    draw, outcome = random.Random(seed), Outcome()
    codecs = [(make_codec(stages), [chains.frame(stages, seed) for seed in range(3)]) for stages in chains.CHAINS]
    with measured(outcome, psutil.Process) as done:
        for number in range(count):
            codec, valid = draw.choice(codecs)
            outcome.sent += 1
            try:
                numbers = codec.decode(chains.mutated(draw, draw.choice(valid)), chains.TENSORS, chains.stream())
                assert numbers.shape == (chains.COUNT,) and np.isfinite(numbers).all()
            except messages.WireError as error:
                outcome.refuse(str(error))
            done(number / count)
    return outcome


# --- a pool -------------------------------------------------------------------------------------------------------


class CountingPool(Pool):
    """Tells why it refuses, and never waits long: its workers are at work only while it does not wait."""

    outcome = Outcome()
    deadline = float("inf")

    def turn(self, seconds: float) -> None:
        assert time.monotonic() < self.deadline, "the pool has stalled"
        super().turn(min(seconds, 0.001))

    def _open(self, folder: Path, stack: ExitStack) -> None:
        super()._open(folder, stack)
        refuse = self._handler.refuse

        def tell(worker: Worker | None, reason: str) -> None:
            self.outcome.refuse(reason.partition(": ")[2])
            refuse(worker, reason)

        stack.enter_context(patch.object(self._handler, "refuse", tell))


class Misbehaving(Impostors):
    """Sooner or later each sends something malformed, and is ended.

    Every second one answers two visits before, and the others none or one. What a worker has added up is lost with it,
    so that of workers which add up only ``left`` may misbehave before all are honest.
    """

    def __init__(self, draw: random.Random, outcome: Outcome) -> None:
        super().__init__()
        self._draw, self._outcome = draw, outcome
        self.left = 1
        self._honest: dict[str, int] = {}
        """identity -> messages until it misbehaves"""
        self._ready: set[str] = set()
        self._intruders: list[zmq.Socket[bytes]] = []
        self._from_nobody = [pack(message) for message in going_up()]

    def say(self, identity: str, message: messages.Message, sequence: int = 0) -> None:
        """Say it, or something like it."""
        if identity not in self._honest:
            self._honest[identity] = self.patience()
        if isinstance(message, messages.Pong) and identity in self._ready:  # the pool has looked who is still there
            super().say(identity, message, sequence)
            return
        if isinstance(message, messages.Pong):
            self._ready.add(identity)
        self._honest[identity] -= 1
        if self._honest[identity] >= 0 or not self.left:
            super().say(identity, message, sequence)
            return
        self.left -= 1
        run_id, envelope = run_of(message), serialization.Envelope(identity, sequence)
        valid = [pack(other, envelope, run_id=run_id) for other in (message, *going_up())]
        self._outcome.sent += 1
        self.send(identity, malformed(self._draw, valid))
        self.send(identity, [b""])  # whatever came before: this is refused

    def patience(self) -> int:
        """Messages that the next worker sends before it misbehaves."""
        return self._draw.choice((0, 1, 3, 3, 3)) if self.lives % 2 == 0 else 4

    def intrude(self) -> None:
        """Messages from nobody, and from one that has taken the name of a worker."""
        if not self._intruders:
            self._intruders = [self.stranger(name) for name in ("stranger\n\x1b[31m", next(iter(self.sockets)), "")]
        for intruder in self._intruders:
            parts = malformed(self._draw, self._from_nobody)
            if parts and intruder.poll(0, zmq.POLLOUT):
                self._outcome.sent += 1
                intruder.send_multipart(parts)


class MisbehavingRemoteWorkers(ImpostorRemoteWorkers, Misbehaving):
    """Each is let in before it misbehaves, since nobody else could be told to leave."""

    def patience(self) -> int:
        """Its hello and its pong; then what a client keeps, and its update, in turn."""
        return self._draw.choice((1, 2, 2, 3, 3, 4, 5))

    def intrude(self) -> None:
        """Nobody comes without a key."""


def fuzz_pool(count: int, seed: int, kind: type[Misbehaving] = Misbehaving) -> Outcome:
    """A pool that strangers and its own workers send malformed messages: every visit is answered, once."""
    draw, outcome = random.Random(seed), Outcome()
    # more of them may fail over one visit than a run puts up with
    with patch.object(scheduler, "TRIES", 100), measured(outcome, psutil.Process) as done:
        while outcome.sent < count:
            _one_pool(kind(draw, outcome), draw, outcome, count)
            done(outcome.sent / count)
    return outcome


def fuzz_host(count: int, seed: int) -> Outcome:
    """A pool whose remote workers misbehave: what clients keep is written as an honest one brings it."""
    with patch.object(messaging, "MOST_OFFENCES", math.inf):  # they all have one key
        return fuzz_pool(count, seed, MisbehavingRemoteWorkers)


def _one_pool(workers: Misbehaving, draw: random.Random, outcome: Outcome, count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="f-") as logs, impostors_pool(workers, Path(logs), CountingPool) as opened:
        pool, events = opened
        assert isinstance(pool, CountingPool)
        pool.outcome = outcome
        while workers.lives < LIVES and outcome.sent < count:
            workers.intrude()
            # none is the client of the mutated updates: one that fits by chance may be whole, and diverged
            clients = [draw.randrange(2, 1000) for _ in range(3)]
            pool.deadline = time.monotonic() + SILENT_SECONDS
            heard: list[int] = []
            share = draw.choice((0.0, 0.25))
            workers.left = 1 if share else len(clients)
            _visit(pool, clients, heard, share, Path(logs))
            assert sorted(heard) == sorted(clients), (heard, clients)
    outcome.lines += sum(event.kind == "message_refused" for event in events)


def _visit(pool: Pool, clients: Sequence[int], heard: list[int], share: float, folder: Path) -> None:
    """Have visits done; with a share, their updates are added up by workers, and must add up.

    Where there are remote workers, clients keep what they have written before, too.
    """

    def hear(task: PoolTask, reply: Reply) -> None:
        assert isinstance(reply, messages.Update)
        heard.append(reply.client)

    down, up = payload(), {"model": {"a": 3, "b": 1}}
    asked = [messages.Train(client, 5, 0.1, {"act": 0}, down) for client in clients]
    tasks = [PoolTask(message, weight=share, validator=UpdateValidator(up=up)) for message in asked]
    if pool.remote_access is not None:
        before = str(folder / "before")
        client_state.write(before, keeps(1).payload)
        tasks = [
            replace(
                task,
                state_in=before,
                state_out=str(folder / f"after-{number}"),
                validator=UpdateValidator(up=up, client_state_shapes={"model": {"a": 3}}),
            )
            for number, task in enumerate(tasks)
        ]
    order = pool.submit(tasks, hear)
    order.wait()
    for task, client in zip(tasks, clients, strict=True):
        if task.state_out is not None:
            assert client_state.read(task.state_out)["model"]["a"].data.tolist() == [client] * 3
            Path(task.state_out).unlink()
    if share:
        total = sum_vector(order.collect()["model"]["a"])
        assert total.tolist() == [sum(clients) * share] * 3, (total, clients)


# --- the port of a pool -------------------------------------------------------------------------------------------


def fuzz_port(count: int, seed: int) -> Outcome:
    """Handshakes that go wrong, from connections without a key: no remote worker is lost, and every visit is
    answered."""
    draw, outcome, workers = random.Random(seed), Outcome(), ImpostorRemoteWorkers()
    with tempfile.TemporaryDirectory(prefix="f-") as logs, impostors_pool(workers, Path(logs), CountingPool) as opened:
        pool, events = opened
        listener = pool._sockets.listener
        assert isinstance(pool, CountingPool) and listener is not None
        host, _, port = listener.endpoint.removeprefix("tcp://").rpartition(":")
        closed = lambda reason: outcome.refuse(reason.partition(": ")[2])  # noqa: E731
        left: list[socket.socket] = []
        with patch.object(listener, "_record", closed), measured(outcome, psutil.Process) as done:
            while outcome.sent < count:
                for _ in range(min(BATCH, count - outcome.sent)):
                    left.append(socket.create_connection((host, int(port))))
                    left[-1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    with suppress(OSError):
                        left[-1].sendall(handshake(draw))
                    outcome.sent += 1
                    if len(left) > 8:  # some stay for a while, in whatever they have begun
                        left.pop(draw.randrange(len(left))).close()
                pool.deadline = time.monotonic() + SILENT_SECONDS
                heard: list[int] = []
                _visit(pool, [draw.randrange(2, 1000)], heard, 0.0, Path(logs))
                assert len(heard) == 1
                done(outcome.sent / count)
        for each in left:
            each.close()
        assert workers.lives == 1, events
    return outcome


def handshake(draw: random.Random) -> bytes:
    """What a stranger sends: a greeting and commands in which something is wrong."""
    parts = [GREETING, HELLO, INITIATE, draw.randbytes(draw.randrange(400))][: draw.randrange(1, 5)]
    sent = bytearray(b"".join(parts))
    for _ in range(draw.choice((0, 1, 1, 3, 30))):
        place = draw.randrange(len(sent))
        if draw.random() < 0.5:
            sent[place] = draw.randrange(256)
        else:
            sent[place:place] = draw.randbytes(draw.randrange(1, 20))
    return bytes(sent[: draw.randrange(1, len(sent) + 1)] if draw.random() < 0.3 else sent)


# --- a worker -----------------------------------------------------------------------------------------------------


def fuzz_remote_worker(count: int, seed: int) -> Outcome:
    """The same of a node agent, to which what clients keep is sent, and which gives it back."""
    return fuzz_worker(count, seed, is_remote=True)


def fuzz_worker(count: int, seed: int, is_remote: bool = False) -> Outcome:
    """A worker whose coordinator sends malformed messages, before the welcome and after: it still does its visits."""
    draw, outcome, kept = random.Random(seed), Outcome(), list[messages.ClientState]()

    def heard(message: messages.Message) -> None:
        if isinstance(message, messages.Error) and message.kind == "WireError":
            outcome.refuse(message.text)
        if isinstance(message, messages.ClientState):
            kept.append(message)

    with tempfile.TemporaryDirectory(prefix="f-") as folder:
        listener = Listener(
            Path(folder), "tests.edge.runtime.listener:node_agent" if is_remote else "edge.runtime.worker:main"
        )
        assert isinstance(listener.hear()[1], messages.Hello)
        files = ("before", "after") if is_remote else (None, None)
        envelope = serialization.Envelope(listener.identity, 7, *files)
        down = [(message, isinstance(message, messages.Tensors | messages.ClientState)) for message in going_down()]
        late = [pack(message, envelope, frames, RUN) for message, frames in down]
        early = [
            pack(message, envelope, frames, messages.NO_RUN)
            for message, frames in down
            if not isinstance(message, messages.Welcome)
        ]
        process = psutil.Process(listener.process.pid)
        with measured(outcome, lambda: process) as done:
            for _ in range(min(BATCH, count)):
                listener.send(malformed(draw, early))
                outcome.sent += 1
            listener.send(pack(messages.Welcome(JOB), serialization.Envelope(listener.identity)))
            while outcome.sent < count:
                for _ in range(min(BATCH, count - outcome.sent)):
                    if is_remote and draw.random() < 0.5:  # whatever comes next may need it, or not
                        listener.send(pack(messages.ClientState(1, payload()), envelope))
                    listener.send(malformed(draw, late))
                    outcome.sent += 1
                client = draw.randrange(2, 1000)
                reply = listener.visit(client, heard, payload() if is_remote else None, files[1])
                assert isinstance(reply, messages.Update), reply
                mine = [one.payload["model"]["a"].data.tolist() for one in kept if one.client == client]
                assert mine == ([[client + 1.0] * 3] if is_remote else [])
                kept.clear()
                assert (reply.client, reply.payload["model"]["a"].data.tolist()) == (client, [client] * 3)
                done(outcome.sent / count)
        assert listener.close() == 0
        outcome.lines = listener.log.read_text().count("refused: ")
    return outcome


# --- the command --------------------------------------------------------------------------------------------------

SIDES: dict[str, Callable[[int, int], Outcome]] = {
    "decoder": fuzz_decoder,
    "codecs": fuzz_codecs,
    "pool": fuzz_pool,
    "host": fuzz_host,
    "port": fuzz_port,
    "worker": fuzz_worker,
    "remote_worker": fuzz_remote_worker,
}
LOCKED = ("host", "port", "remote_worker")
"""Sides where each refusal costs a new connection: they get a tenth of the messages."""


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
    logging.getLogger("fedbr").addHandler(logging.NullHandler())  # each worker that is ended would be a line
    for name in asked.side or SIDES:
        count = asked.messages // 10 if name in LOCKED else asked.messages
        print(show(name, SIDES[name](count, asked.seed)), flush=True)


if __name__ == "__main__":
    main()
