"""Payloads that are built when their task is sent, on a thread of the pool's own, with real workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import Event

import numpy as np
import pytest
from msgspec import structs

from coordinator.workers.assignment import MAX_PREFETCH
from coordinator.workers.pool import PayloadBuilder
from coordinator.workers.task import PoolTask
from edge.protocol.messages import Train
from edge.protocol.payload import Payload, Vector
from tests.pools import Heard, Pools, model, visit


def built(client: int, build: Callable[[], Payload]) -> PoolTask:
    task = visit(client)
    assert isinstance(task.message, Train)
    return replace(task, message=structs.replace(task.message, payload={}), build=build)


def test_a_payload_is_built_once_on_another_thread_when_a_worker_can_use_it(pools: Pools) -> None:
    done, ahead, threads = Heard(), list[int](), set[str]()

    def build(client: int) -> Payload:
        threads.add(threading.current_thread().name)
        ahead.append(client)
        assert len(ahead) - len(done.replies) <= 2 * MAX_PREFETCH + 2
        return model(10.0 * client)

    with pools(2) as pool:
        pool.submit([built(client, partial(build, client)) for client in range(20)], done).wait()
    assert dict(done.replies) == {client: [11.0 * client, 11.0 * client + 1] for client in range(20)}
    assert sorted(ahead) == list(range(20))
    assert threads == {"payloads"}


# --- the builder alone ------------------------------------------------------------------------------------------------


def payload(number: float) -> Payload:
    return {"model": {"head": Vector(np.full(1, number, np.float32))}}


def test_payloads_are_built_in_order_for_the_worker_that_has_the_task_now() -> None:
    woken = Event()
    builder, may_build = PayloadBuilder(woken.set), Event()
    first, third = payload(1.0), payload(3.0)

    def make() -> Payload:
        may_build.wait()
        return first

    builder.request(7, 0, make)
    builder.request(8, 1, lambda: third)
    builder.request(7, 2, make)  # the task is another worker's now
    builder.remove_worker(1)
    last = builder.submit(lambda: payload(4.0))
    may_build.set()
    last.result()
    assert woken.is_set()
    assert list(builder.take_built()) == [(7, 2, first), (8, None, third)]
    builder.close()


def test_whatever_building_raises_is_raised_where_it_is_taken() -> None:
    builder = PayloadBuilder(lambda: None)
    empty: Payload = {}
    builder.request(1, 0, lambda: {"model": empty["no"]})
    builder.submit(dict).result()
    with pytest.raises(KeyError):
        list(builder.take_built())
    builder.close()
