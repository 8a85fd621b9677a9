"""Real worker processes that only add, pools of them, and remote workers that speak the protocol by hand."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
import zmq
from zmq.utils.monitor import recv_monitor_message

from coordinator.records.schema import HostEvent
from coordinator.workers.launcher import WorkerLauncher
from coordinator.workers.pool import Pool
from coordinator.workers.sockets import RemoteAccess
from coordinator.workers.task import PoolTask, Reply
from edge.protocol import messages, serialization
from edge.protocol.config import DataConfig, Job, ModelConfig, ModelProfile, TrainConfig
from edge.protocol.payload import BlockShape, Layout, Payload, Vector

SITE, TRAINER = f"{__name__}:Site", "edge.training.trainer:LocalTrainer"
BLOCK_NBYTES = 400_000
HANDED_OVER_NBYTES = 8_000_000
NORMAL, KILL, KILL_ONCE, RAISE, RAISE_ONCE, SLEEP, STOP_ONCE, REUSE, AWAIT, FILL, OVERFILL, SHORT_LAST = range(12)


class OutOfMemoryError(RuntimeError):
    """As torch's."""


class Site:
    """Adds the client's number to every vector, or does what the task's ``act`` says.

    REUSE: its vectors are views of one flat vector that the next task overwrites; SHORT_LAST: the last is a short one.
    AWAIT: it waits for a file, state_in.
    FILL: there is memory for it on slot 0 alone; OVERFILL: nowhere.
    """

    def __init__(self, job: Job) -> None:
        if job.seed == 13:
            raise FileNotFoundError("no such data set")
        self.flat = np.zeros((2, HANDED_OVER_NBYTES // 4), np.float32)
        self.slot = job.worker_slot

    def describe(self, data: bool) -> tuple[ModelProfile, Payload]:
        clients = 2 if data else 0
        counts = np.full(clients, 3)
        layout = Layout((BlockShape("b", 2),))
        initial: Payload = {"model": {"b": Vector(np.array([1.0, 2.0], np.float32))}}
        flops, activations = np.ones((1, 4)), np.ones(1)
        about = ("hash", "made up", 1, 4, counts, counts.reshape(clients, 1), counts)
        return ModelProfile(layout, "toy", flops, activations, *about), initial

    def train(self, task: messages.Train, state_in: str | None, state_out: str | None) -> messages.Update:
        act = task.choice["act"]
        first = state_out is None or not Path(state_out).exists()
        if state_out is not None:
            Path(state_out).touch()
        if act == KILL or (act == KILL_ONCE and first):
            os.kill(os.getpid(), signal.SIGKILL)
        if act == STOP_ONCE and first:
            os.kill(os.getpid(), signal.SIGSTOP)
        if act == RAISE or (act == RAISE_ONCE and first):
            raise ValueError("that cannot be trained")
        if act == SLEEP:
            time.sleep(60)
        if act == OVERFILL or (act == FILL and self.slot > 0):
            raise OutOfMemoryError("no room beside others")
        if act == AWAIT:
            assert state_in is not None
            await_file(Path(state_in))
        client = task.client
        if act in (REUSE, SHORT_LAST):
            self.flat.fill(client)
            last = self.flat[1] if act == REUSE else self.flat[1, :2]
            return messages.Update(client, task.round, {}, {"model": {"a": Vector(self.flat[0]), "b": Vector(last)}})
        up = {key: Vector(vector.data + np.float32(client)) for key, vector in task.payload["model"].items()}
        return messages.Update(client, task.round, {"pid": os.getpid()}, {"model": up})

    def clipped(self, update: messages.Update) -> messages.Update:
        return update

    def evaluate(self, task: messages.Evaluate, state_in: str | None) -> messages.Score:
        correct = int(sum(vector.data[0] for vector in task.payload["model"].values()))
        count = task.stop - task.start
        return messages.Score(
            task.start, task.client, {messages.CORRECT: (correct, count), messages.CROSS_ENTROPY: (0.5, count)}
        )


def job(seed: int = 0) -> Job:
    model, objective = ModelConfig("toy"), "nowhere:Nothing"
    return Job("run-1", seed, "cpu", "", model, DataConfig("digits"), TrainConfig(), objective)


def model(value: float = 0.0) -> Payload:
    return {"model": {key: Vector(np.full(BLOCK_NBYTES // 4, value + n, np.float32)) for n, key in enumerate("ab")}}


def visit(
    client: int,
    act: int = NORMAL,
    payload: Payload | None = None,
    state_out: Path | None = None,
    state_in: Path | None = None,
    flops: float = 0.0,
) -> PoolTask:
    message = messages.Train(client, 5, 0.1, {"act": act}, payload or model())
    return PoolTask(message, str(state_in) if state_in else None, str(state_out) if state_out else None, flops=flops)


def await_file(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.002)


class Heard:
    """What hears replies: (client, first number of each vector that came back), in order of arrival."""

    def __init__(self) -> None:
        self.replies: list[tuple[int, list[float]]] = []

    def __call__(self, task: PoolTask, reply: Reply) -> None:
        assert isinstance(task.message, messages.Train) and isinstance(reply, messages.Update)
        numbers = [float(vector.data[0]) for vector in reply.payload["model"].values()]
        self.replies.append((task.message.client, numbers))

    @property
    def clients(self) -> list[int]:
        return [client for client, _ in self.replies]


def sums(pool: Pool, tasks: list[PoolTask]) -> dict[int, list[float]]:
    """client -> first number of each vector that came back."""
    heard = Heard()
    pool.submit(tasks, heard).wait()
    assert len(heard.replies) == len(tasks)
    return dict(sorted(heard.replies))


class Pools:
    """Opens pools, keeps their events, and checks that each leaves neither a process nor a folder."""

    def __init__(self, launcher: WorkerLauncher, logs: Path, folder: Path) -> None:
        self.launcher, self.logs, self.folder = launcher, logs, folder
        self.events: list[HostEvent] = []
        self.stopped: Callable[[], bool] = lambda: False

    @contextmanager
    def __call__(
        self, workers: int = 1, asked: Job | None = None, site: str = SITE, heartbeat_seconds: float = 5.0
    ) -> Iterator[Pool]:
        """So many workers for a job: by default they only add."""
        stopped, record = lambda: self.stopped(), self.events.append
        asked = asked or job()
        try:
            with Pool(asked, workers, self.launcher, self.logs, record, stopped, site, heartbeat_seconds) as pool:
                yield pool
        finally:
            assert [pid for pid in self.pids() if psutil.pid_exists(pid)] == []
            assert list(self.folder.glob("fedbr-*")) == []

    def kill(self) -> None:
        """Kill all workers that have started and are not known to have died."""
        dead = {event.worker for event in self.of("worker_died")}
        for event in self.of("worker_started"):
            if event.worker not in dead:
                os.kill(int(event.detail.removeprefix("pid ")), signal.SIGKILL)

    def pids(self) -> list[int]:
        return [int(event.detail.removeprefix("pid ")) for event in self.of("worker_started")]

    def of(self, kind: str) -> list[HostEvent]:
        return [event for event in self.events if event.kind == kind]


# --- remote workers ---------------------------------------------------------------------------------------------------

RUN, ALICE, BOB, EVE = (zmq.curve_keypair() for _ in range(4))
SECONDS = 20.0
AUTH, NO_DETAIL = zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
DROPPED = zmq.EVENT_DISCONNECTED


_WRONG: list[BaseException] = []
"""What went wrong in a `meanwhile` that has not ended: nobody waits for what it would have done."""
HOST_SECONDS = 90.0
"""Of a `Host`, after which no test waits for it."""


class Host:
    """A pool that listens, and what happened in it."""

    def __init__(self, workers: int, launcher: WorkerLauncher, logs: Path) -> None:
        self.events: list[HostEvent] = []
        allowed = [public.decode() for public, _ in (ALICE, BOB)]
        remote_access = RemoteAccess("tcp://127.0.0.1:*", *RUN, allowed)
        self.pool = Pool(job(), workers, launcher, logs, self.events.append, self._check, SITE, 0.5, remote_access)
        self._deadline = time.monotonic() + HOST_SECONDS

    def _check(self) -> bool:
        """Never stopped. Raises what went wrong meanwhile, and, once it is too late, AssertionError with what has
        happened so far."""
        if _WRONG:
            raise _WRONG[0]
        assert time.monotonic() < self._deadline, f"no end within {HOST_SECONDS:g} s; so far: {self.events}"
        return False

    @property
    def endpoint(self) -> str:
        assert self.pool.remote_access is not None
        return self.pool.remote_access.endpoint

    def of(self, kind: str) -> list[str]:
        return [event.detail for event in self.events if event.kind == kind]

    def until(self, happened: Callable[[], object]) -> None:
        """Have the pool listen until this holds; it does so whenever it is asked something."""
        deadline = time.monotonic() + SECONDS
        while not happened():
            assert time.monotonic() < deadline, self.events
            self.pool.submit([], lambda task, reply: None)
            time.sleep(0.005)


Opener = Callable[[int], Host]


class Peer:
    """Somebody at the other end, with whatever keys and name: speaks the protocol by hand."""

    def __init__(
        self, endpoint: str, keys: tuple[bytes, bytes] | None, name: str = "remote-1", server: bytes = RUN[0]
    ) -> None:
        self.name, self.run_id = name, messages.NO_RUN
        self.envelope = serialization.Envelope(name)
        """Of what was heard last."""
        self._held: dict[bytes, Vector] = {}
        self._context = zmq.Context[Any]()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 500  # who leaves has been heard out, where anybody listens
        self._socket.rcvtimeo = round(SECONDS * 1000)
        self._socket.setsockopt(zmq.IDENTITY, name.encode())
        if keys is not None:
            self._socket.curve_publickey, self._socket.curve_secretkey = keys
            self._socket.curve_serverkey = server
        self._monitor = self._socket.get_monitor_socket(AUTH | NO_DETAIL | DROPPED)
        self._socket.connect(endpoint)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close()
        self._context.term()

    def say(self, message: messages.Message, sequence: int = 0, envelope_name: str = "") -> None:
        encoded = serialization.encode(message, self.run_id)
        envelope = serialization.Envelope(envelope_name or self.name, sequence).pack()
        self.send([envelope, encoded.header, *encoded.frames])

    def send(self, parts: Sequence[bytes | memoryview]) -> None:
        self._socket.send_multipart(parts)

    def hear(self) -> tuple[int, messages.Message]:
        """(sequence, message), blocks aside."""
        while True:
            first, header, *frames = self._socket.recv_multipart()
            self.envelope = serialization.Envelope.parse(first)
            message = serialization.decode(header, frames, self.run_id, self._held)
            if not isinstance(message, messages.Tensors):
                return self.envelope.sequence, message
            self._held |= {vector.version: vector for vector in message.vectors}

    def join(self, workers: int = 1) -> Self:
        """Greet, and be ready for a task, or for several at a time."""
        self.say(messages.Hello(workers))
        _, welcome = self.hear()
        assert isinstance(welcome, messages.Welcome)
        self.run_id = welcome.job.run_id
        assert self.hear() == (0, messages.Ping())
        self.say(messages.Pong())
        return self

    def decline(self, why: str) -> messages.Message:
        """Greet, but fail to get ready; what is answered."""
        self.say(messages.Hello())
        _, welcome = self.hear()
        assert isinstance(welcome, messages.Welcome)
        self.run_id = welcome.job.run_id
        self.hear()
        self.say(messages.Error("JoinError", why))
        return self.hear()[1]

    def serve(self, count: int) -> Self:
        """Do so many visits as `Site` does."""
        for _ in range(count):
            sequence, task = self.hear()
            self.say(answer(task), sequence)
        return self

    def failure(self) -> zmq.Event:
        """How the connection ended."""
        assert self._monitor.poll(round(SECONDS * 1000))
        return zmq.Event(recv_monitor_message(self._monitor)["event"])

    @property
    def hears_nothing(self) -> bool:
        return self._socket.poll(200) == 0


def answer(task: messages.Message) -> messages.Update:
    assert isinstance(task, messages.Train)
    up = {key: Vector(vector.data + task.client) for key, vector in task.payload["model"].items()}
    return messages.Update(task.client, task.round, {}, {"model": up})


@contextmanager
def meanwhile(act: Callable[[], object]) -> Iterator[None]:
    """Somebody else acts while we do what is in the block; what goes wrong there is raised here."""

    def run() -> None:
        try:
            act()
        except BaseException as error:
            _WRONG.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
        thread.join(SECONDS)
        assert not thread.is_alive(), "what was to be done meanwhile is not done yet"
        if _WRONG:
            raise _WRONG[0]
    finally:
        _WRONG.clear()
