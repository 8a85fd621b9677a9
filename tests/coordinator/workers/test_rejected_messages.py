"""What a pool refuses of its own workers and of strangers, and that the work goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zmq
from msgspec import structs
from numpy.typing import NDArray

from coordinator.workers.messaging import MAX_MESSAGES_PER_TURN
from coordinator.workers.task import PoolTask, Reply, UpdateValidator
from edge.protocol import messages, serialization
from edge.protocol.fixed_point import sum_vector
from edge.protocol.payload import Payload, Vector, shapes
from tests.edge.protocol.mutations import RUN, pack, payload
from tests.impostors import Impostors, answer, impostors_pool

KEPT = messages.ClientState(1, payload())
UP = {"model": {"a": 3, "b": 1}}


class Once(Impostors):
    """The first worker says something else in place of its first update; those after it are honest."""

    def __init__(self, instead: Callable[[messages.Update, int], list[tuple[messages.Message, int]]]) -> None:
        super().__init__()
        self._instead = instead

    def say(self, identity: str, message: messages.Message, sequence: int = 0) -> None:
        if self.lives > 1 or not isinstance(message, messages.Update):
            super().say(identity, message, sequence)
            return
        for other, number in self._instead(message, sequence):
            super().say(identity, other, number)


class Heard:
    def __init__(self) -> None:
        self.numbers: dict[int, list[float]] = {}

    def __call__(self, task: PoolTask, reply: Reply) -> None:
        assert isinstance(reply, messages.Update) and reply.client not in self.numbers
        self.numbers[reply.client] = reply.payload["model"]["a"].data.tolist()


def visit(client: int, share: float = 0.0) -> PoolTask:
    message = messages.Train(client, 5, 0.1, {"act": 0}, payload())
    return PoolTask(message, weight=share, validator=UpdateValidator(up=UP))


def vectors(**arrays: NDArray[np.float64]) -> Payload:
    return {"model": {key: Vector(array.astype(np.float32)) for key, array in arrays.items()}}


SHORT = vectors(a=np.zeros(2), b=np.zeros(1))
OTHER_BLOCK = vectors(a=np.zeros(3), c=np.zeros(1))
MISSING = vectors(a=np.zeros(3))
VISIT, ASKED = "client 1, round 6, train", {"model": {"a": 3, "b": 1}}
Said = list[tuple[messages.Message, int]]
WRONG: list[tuple[Callable[[messages.Update, int], Said], str]] = [
    *(
        (
            lambda update, n, sent=sent: [(structs.replace(update, payload=sent), n)],
            f"{VISIT}: vectors {shapes(sent)} instead of {ASKED}",
        )
        for sent in (SHORT, OTHER_BLOCK, MISSING, {})
    ),
    (lambda update, n: [(structs.replace(update, client=2), n)], f"a Update that does not answer: {VISIT}"),
    (lambda update, n: [(structs.replace(update, round=4), n)], f"a Update that does not answer: {VISIT}"),
    (lambda update, n: [(messages.Score(0, 1, {}), n)], f"a Score that does not answer: {VISIT}"),
    (lambda update, n: [(update, n + 7)], "task 8 is not assigned to it"),
    (lambda update, n: [(structs.replace(update, client=2), n + 1)], "task 2 is not assigned to it"),
    (lambda update, n: [(update, 0)], "task 0 is not assigned to it"),
    (lambda update, n: [(update, n), (update, n)], "task 1 is not assigned to it"),
    (lambda update, n: [(messages.Pong(), n)], "task 1 was given up, but nobody cancelled it"),
    (lambda update, n: [(messages.Error("E", ""), 9)], "task 9 is not assigned to it"),
    (lambda update, n: [(messages.PartialSum(5, 1, {}), 0)], "sums that were not requested"),
    (lambda update, n: [(KEPT, n)], "a ClientState of a worker that reaches the files of the run"),
    (lambda update, n: [(messages.Capacity(1), 0)], "a capacity of 1 tasks at a time after one of 1"),
    (lambda update, n: [(messages.Shutdown(), n)], "message type: 'Shutdown' does not fit"),
    (lambda update, n: [(messages.Hello(), n)], "run id (this is run-1): '' does not fit"),
]


@pytest.mark.parametrize(("instead", "reason"), WRONG)
def test_a_wrong_reply_is_refused_with_its_reason_and_its_visit_done_elsewhere(
    instead: Callable[[messages.Update, int], Said], reason: str, tmp_path: Path
) -> None:
    heard = Heard()
    with impostors_pool(Once(instead), tmp_path) as (pool, events):
        order = pool.submit([visit(1), visit(2), visit(3)], heard)
        order.wait()
        assert heard.numbers == {client: [client] * 3 for client in (1, 2, 3)}
        assert pool.refused == 1
    (refused,) = [event.detail for event in events if event.kind == "message_refused"]
    assert refused.endswith(f": {reason} (1 refused so far)")
    (died,) = [event.detail for event in events if event.kind == "worker_died"]
    assert died.startswith("worker 0 was ended by SIGTERM: its message was refused") and died.endswith(reason)


def test_a_worker_greets_first_and_once(tmp_path: Path) -> None:
    """Each of the first two does one of them wrong, with the run id that was due."""

    class Rude(Impostors):
        def say(self, identity: str, message: messages.Message, sequence: int = 0) -> None:
            if self.lives == 1 and isinstance(message, messages.Hello):
                self.send(identity, pack(messages.Pong(), serialization.Envelope(identity), run_id=messages.NO_RUN))
            elif self.lives == 2 and isinstance(message, messages.Pong):
                self.send(identity, pack(messages.Hello(), serialization.Envelope(identity), run_id=RUN))
            else:
                super().say(identity, message, sequence)

    heard = Heard()
    with impostors_pool(Rude(), tmp_path) as (pool, events):
        pool.submit([visit(1)], heard).wait()
        assert (heard.numbers, pool.refused) == ({1: [1.0] * 3}, 2)
    died = [event.detail.rpartition(": ")[2] for event in events if event.kind == "worker_died"]
    assert died == ["a Pong before the hello", "a Hello after the hello"]


UNASKED: dict[str, tuple[Callable[[messages.PartialSum], messages.PartialSum], str]] = {
    "round": (lambda sums: structs.replace(sums, round=4), "sums of 2 updates of round 5 instead of 2 of round 6"),
    "clients": (lambda sums: structs.replace(sums, clients=3), "sums of 3 updates of round 6 instead of 2 of round 6"),
    "shape": (
        lambda sums: structs.replace(sums, totals={"model": {"a": np.zeros(2, np.int64)}}),
        "client 1, round 6, train: sums {'model': {'a': 2}} instead of {'model': {'a': 3, 'b': 1}}",
    ),
}


@pytest.mark.parametrize("wrong", UNASKED)
def test_wrong_sums_are_refused_and_the_visits_in_them_done_elsewhere(wrong: str, tmp_path: Path) -> None:
    change, reason = UNASKED[wrong]

    class WrongSums(Impostors):
        def say(self, identity: str, message: messages.Message, sequence: int = 0) -> None:
            changed = self.lives == 1 and isinstance(message, messages.PartialSum)
            super().say(identity, change(message) if changed else message, sequence)  # type: ignore[arg-type]

    heard: list[int] = []
    with impostors_pool(WrongSums(), tmp_path) as (pool, events):
        order = pool.submit([visit(1, 0.5), visit(2, 0.5)], lambda task, reply: heard.append(reply.client))  # type: ignore[union-attr]
        order.wait()
        totals = {key: sum_vector(total).tolist() for key, total in order.collect()["model"].items()}
    assert (heard, totals) == ([1, 2], {"a": [1.5, 1.5, 1.5], "b": [2.5]})
    (refused,) = [event.detail for event in events if event.kind == "message_refused"]
    assert refused.endswith(f": {reason} (1 refused so far)")


def test_an_update_that_comes_whole_though_it_could_be_added_is_refused(tmp_path: Path) -> None:
    heard: list[int] = []
    with impostors_pool(Once(lambda update, n: [(answer(1), n)]), tmp_path) as (pool, events):
        order = pool.submit([visit(1, 1.0)], lambda task, reply: heard.append(len(reply.payload)))
        order.wait()
        assert sum_vector(order.collect()["model"]["b"]).tolist() == [2.0]
    assert heard == [0]
    (refused,) = [event.detail for event in events if event.kind == "message_refused"]
    assert refused.endswith("client 1, round 6, train: an update that its worker was to add up (1 refused so far)")


def test_nothing_counts_that_comes_after_a_refusal_and_no_control_characters_reach_the_log(tmp_path: Path) -> None:
    def instead(update: messages.Update, number: int) -> list[tuple[messages.Message, int]]:
        poisoned = structs.replace(update, payload=payload(99.0))
        return [(structs.replace(update, client=7), number), *[(poisoned, number)] * 20]

    heard = Heard()
    with impostors_pool(Once(instead), tmp_path) as (pool, events):
        pool.submit([visit(1)], heard).wait()
        assert (heard.numbers, pool.refused) == ({1: [1.0] * 3}, 21)
    assert len([event for event in events if event.kind == "message_refused"]) == 1
    assert len([event for event in events if event.kind == "worker_died"]) == 1
    strangers = Impostors()
    with impostors_pool(strangers, tmp_path) as (pool, events):
        strangers.stranger("x\n\x1b[31m").send_multipart([b""])
        while not pool.refused:
            pool.submit([visit(1)], Heard()).wait()
    (refused,) = [event.detail for event in events if event.kind == "message_refused"]
    assert refused == "from x\\n\\x1b[31m: not a worker of this pool (1 refused so far)"


class Flooded(Once):
    """Strangers send more in a turn than the pool hears in one, and the first worker ends with its visit undone."""

    def __init__(self) -> None:
        super().__init__(lambda update, number: [])
        self.crowd: list[zmq.Socket[bytes]] = []

    def say(self, identity: str, message: messages.Message, sequence: int = 0) -> None:
        super().say(identity, message, sequence)
        if self.lives == 1 and isinstance(message, messages.Update):
            self.crowd = [self.stranger(f"stranger-{n}") for n in range(8)]
            self._shout(times=250)
            time.sleep(0.3)  # so that they are all there
            self.end([identity])

    def turn(self) -> None:
        super().turn()
        self._shout(times=MAX_MESSAGES_PER_TURN // 4)

    def _shout(self, times: int) -> None:
        for stranger in self.crowd * times:
            if stranger.poll(0, zmq.POLLOUT):
                stranger.send_multipart([b"", b""])


def test_a_flood_of_messages_does_not_hide_the_death_of_a_worker(tmp_path: Path) -> None:
    heard = Heard()
    began = time.monotonic()
    with impostors_pool(Flooded(), tmp_path) as (pool, events):
        pool.submit([visit(1)], heard).wait()
        assert heard.numbers == {1: [1.0] * 3}
        assert pool.refused > 100
    assert len([event for event in events if event.kind == "message_refused"]) <= 2 + time.monotonic() - began
