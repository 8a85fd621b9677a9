"""What a pool offers to a node agent: groups that grow, tasks that fail alone, another socket to wait for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import zmq

from coordinator.workers.task import PoolTask, Reply
from edge.protocol import messages
from edge.protocol.payload import Payload, Vector
from tests.pools import AWAIT, NORMAL, RAISE, Pools, sums, visit

ZERO: Payload = {"model": {"a": Vector(np.zeros(1, np.float32))}}


def halved(client: int, act: int = NORMAL, gate: Path | None = None) -> PoolTask:
    """A visit that weighs a half, and whose update is the client's number."""
    return replace(visit(client, act, ZERO, state_in=gate), weight=0.5)


def test_tasks_join_a_group_that_is_open_and_one_that_is_withdrawn_was_never_in_it(
    pools: Pools, tmp_path: Path
) -> None:
    heard: list[int] = []

    def on_reply(task: PoolTask, reply: Reply) -> None:
        assert isinstance(reply, messages.Update) and reply.payload == {}
        heard.append(reply.client)

    first, second, third = halved(2), halved(4, AWAIT, tmp_path / "gate"), halved(6)
    with pools(1) as pool:
        group = pool.submit([first], on_reply)
        group.wait()
        pool.submit([second, third], on_reply, group)
        pool.withdraw(third)
        pool.withdraw(third)  # no-op
        (tmp_path / "gate").touch()
        while (partial := group.try_collect()) is None:
            pool.turn(0.05)
    assert heard == [2, 4]
    assert partial.clients == group.tasks == 2
    assert (partial.totals["model"]["a"] * 2.0**-46).tolist() == [3.0]


def test_a_task_that_three_workers_failed_over_tells_who_cares_and_the_pool_goes_on(pools: Pools) -> None:
    failed: list[str] = []
    task = replace(halved(1, RAISE), on_failure=lambda task, reason: failed.append(f"{task.weight:g}: {reason}"))
    with pools(1) as pool:
        group = pool.submit([task], lambda task, reply: None)
        group.wait()
        assert sums(pool, [visit(3)]) == {3: [3.0, 4.0]}
    why = "worker 0: ValueError: that cannot be trained"
    told = [reason.partition(" (")[0] for reason in failed]
    assert told == [f"0.5: client 1, round 6, train: given up after 3 workers; the last: {why}"]
    assert group.tasks == 0


def test_another_socket_is_waited_for_as_well(pools: Pools) -> None:
    heard: list[bytes] = []
    with zmq.Context() as context, context.socket(zmq.PAIR) as ours, context.socket(zmq.PAIR) as theirs:
        ours.bind("inproc://pair")
        theirs.connect("inproc://pair")
        with pools(1) as pool:
            pool.watch(ours, lambda: heard.append(ours.recv()))
            theirs.send(b"one")
            while not heard:
                pool.turn(10.0)
    assert heard == [b"one"]
