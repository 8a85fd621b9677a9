"""Payloads are built on a thread of their own, in order; the end of a run does not wait for a long one."""

from __future__ import annotations

from threading import Event

import numpy as np
import pytest

from coordinator.workers import pool
from coordinator.workers.pool import PayloadBuilder
from edge.protocol.payload import Payload, Vector


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


def test_closing_leaves_a_long_build_alone_and_drops_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "CLOSE_SECONDS", 0.01)
    woken, began, may_end, built = Event(), Event(), Event(), Event()
    builder = PayloadBuilder(woken.set)

    def make() -> Payload:
        began.set()
        may_end.wait()
        return {}

    builder.request(1, 0, make)
    builder.submit(lambda: built.set() or {})  # type: ignore[func-returns-value]
    began.wait()
    builder.close()
    may_end.set()
    builder._thread.join()
    assert not woken.is_set()  # its sockets are closed
    assert not built.is_set()
