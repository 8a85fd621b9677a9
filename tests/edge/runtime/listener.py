"""A coordinator that is a socket of the test's own process, and one real worker process behind it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from msgspec import msgpack

from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.pool import Pool
from edge.protocol import client_state, messages, serialization
from edge.protocol.payload import Payload, Vector
from edge.protocol.scratch import scratch
from edge.runtime.connection import CoordinatorConnection
from edge.runtime.worker import LOST
from scenarios.cluster.task_forwarder import StateFiles, TaskForwarder
from tests.edge.protocol.mutations import DESCRIPTION, RUN, Parts, pack, payload

ROOT = Path(__file__).parents[3]
SILENT_SECONDS = 60
"""A worker that has not answered by then has stalled."""


class Site:
    """Answers a visit with the client's number, after as many tenths of a second as it is told."""

    def __init__(self, job: object) -> None:
        pass

    def describe(self, data: bool) -> tuple[Any, Payload]:
        return DESCRIPTION, payload()

    def train(self, task: messages.Train, state_in: str | None, state_out: str | None) -> messages.Update:
        time.sleep(task.choice.get("tenths", 0) / 10)
        return messages.Update(task.client, task.round, {"loss": 0.5}, payload(float(np.float32(task.client))))

    def clipped(self, update: messages.Update) -> messages.Update:
        return update

    def evaluate(self, task: messages.Evaluate, state_in: str | None) -> messages.Score:
        count = task.stop - task.start
        return messages.Score(
            task.start, task.client, {messages.CORRECT: (0, count), messages.CROSS_ENTROPY: (0.5, count)}
        )


class KeepingSite(Site):
    """Its clients keep the sum of their numbers: that of all visits so far, in a vector of three."""

    def train(self, task: messages.Train, state_in: str | None, state_out: str | None) -> messages.Update:
        if state_out is not None:
            before = client_state.read(state_in)["model"]["a"].data if state_in is not None else np.zeros(3, np.float32)
            client_state.write(state_out, {"model": {"a": Vector(before + np.float32(task.client))}})
        return super().train(task, None, None)


def node_agent(argv: Sequence[str]) -> int:
    """A node agent of one worker behind a socket without keys."""
    endpoint, identity, *_ = argv
    link = CoordinatorConnection(endpoint, identity, 5000, lambda why: os._exit(LOST), reuses_vectors=False)
    job = link.welcome()
    with (
        WorkerLauncher((__name__,)) as launcher,
        scratch() as folder,
        Pool(job, 1, launcher, folder, print, bool, f"{__name__}:KeepingSite") as pool,
    ):
        forwarder = TaskForwarder(link, pool, StateFiles(folder / "states"), [], workers=1)
        while link.shutdown is None:
            forwarder.turn()
    return 0


class Listener:
    """The coordinator: it hears and says what the test wants."""

    def __init__(self, folder: Path, main: str = "edge.runtime.worker:main") -> None:
        """``main``: what the worker process runs; its temporary files lie in ``folder / "tmp"``."""
        self.log, self.identity = folder / "worker.log", "worker-0-00ff"
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        endpoint = f"ipc://{folder / 'socket'}"
        self._router.bind(endpoint)
        module, function = main.split(":")
        code = f"import sys; from {module} import {function}; sys.exit({function}(sys.argv[1:]))"
        argv = [sys.executable, "-c", code, endpoint, self.identity, "tests.edge.runtime.listener:Site", "5000"]
        with self.log.open("wb") as log:
            self.temporary = folder / "tmp"
            self.temporary.mkdir()
            environment = os.environ | {"TMPDIR": str(self.temporary)}
            self.process = subprocess.Popen(argv, stderr=log, cwd=ROOT, env=environment)
        self.sent = 1
        self._run_id = messages.NO_RUN

    def send(self, parts: Parts) -> None:
        self._router.send_multipart([self.identity.encode(), *parts])

    def hear(self) -> tuple[int, messages.Message]:
        """The next message, and its sequence."""
        assert self._router.poll(SILENT_SECONDS * 1000), f"the worker has stalled: {self.log.read_text()[-2000:]}"
        _, envelope, header, *frames = self._router.recv_multipart()
        if msgpack.decode(header)[2] == RUN:  # it has got its welcome, and names the run from now on
            self._run_id = RUN
        return serialization.Envelope.parse(envelope).sequence, serialization.decode(header, frames, self._run_id)

    def visit(
        self,
        client: int,
        heard: Callable[[messages.Message], None],
        kept: Payload | None = None,
        out: str | None = None,
    ) -> messages.Message:
        """Have a visit done, after what its client has ``kept``; what comes before its answer is ``heard``.

        ``out``: where the client is to keep something, as the envelope has it.
        """
        self.sent += 1
        sequence = 10**6 + self.sent
        task = messages.Train(client, 5, 0.1, {"act": 0}, payload(float(self.sent)))
        vectors = tuple(task.payload["model"].values())
        gone = tuple(vector.version for vector in payload(float(self.sent - 1))["model"].values())
        self.send(pack(messages.Tensors(vectors), serialization.Envelope(self.identity, evict=gone)))
        mine = serialization.Envelope(self.identity, sequence, None if kept is None else "before", out)
        if kept is not None:
            self.send(pack(messages.ClientState(client, kept), mine))
        self.send(pack(task, mine, frames=False))
        while True:
            got, message = self.hear()
            if got == sequence and not isinstance(message, messages.ClientState):
                return message
            heard(message)

    def close(self) -> int:
        """How the worker ends after a bye."""
        self.send(pack(messages.Shutdown(), serialization.Envelope(self.identity)))
        try:
            return self.process.wait(SILENT_SECONDS)
        finally:
            self.process.kill()
            self._context.destroy(0)
