"""Workers that come and go by the thousand leave nothing behind in what a coordinator knows of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.workers import registry as registries
from coordinator.workers.block_cache import CachedPayloads
from coordinator.workers.instructions import RequestPartial, SendTask, StartWorker
from coordinator.workers.registry import Worker, WorkerRegistry
from coordinator.workers.scheduler import TaskScheduler
from edge.protocol.payload import Vector

JOINS = 3000


class Launcher:
    """Starts and ends workers at once."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    def spawn(self, identity: str, argv: list[str], log: Path) -> None:
        self.said.append({"spawned": identity, "pid": 1})

    def end(self, identities: list[str]) -> None:
        self.said += [{"exited": identity, "status": -15} for identity in identities]

    def answers(self) -> list[dict[str, Any]]:
        said, self.said = self.said, []
        return said


def sizes(known: object) -> list[int]:
    """Of all collections in an object of ours, and in those that it holds."""
    names = sorted(getattr(type(known), "__slots__", None) or vars(known))
    return [size for name in names for size in _sizes(getattr(known, name))]


def _sizes(value: object) -> Iterator[int]:
    if isinstance(value, Sized) and not isinstance(value, str | bytes):
        yield len(value)
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _sizes(each)
    elif type(value).__module__.startswith("coordinator."):
        yield from sizes(value)


def registry(launcher: Any) -> WorkerRegistry:
    return WorkerRegistry(launcher, Path(), lambda identity: [])


def test_remote_workers_that_join_work_and_are_lost_leave_the_scheduler_as_it_was() -> None:
    scheduler = TaskScheduler(0)
    scheduler.submitted([(1, "task", 5.0), (2, "task", 5.0), (3, "task", 0.0)], {2: 1})
    found = []
    for _ in range(JOINS):
        agent = scheduler.joined("alice", 3)
        assert set(scheduler.ready(agent)) == {SendTask(agent, task) for task in (1, 2, 3)}
        scheduler.answered_all(agent, [(1, 0.5, True)])
        assert scheduler.collect([1]) == [RequestPartial(agent, 1)]
        scheduler.shrank(agent, 2)
        scheduler.doubted(agent, 2, "no number")
        scheduler.died(agent, "unreachable")
        scheduler.cancelled([])
        found.append(sizes(scheduler))
    assert found[0] == found[1] == found[-1]
    assert scheduler.workers == 0


def test_remote_workers_that_are_lost_are_unknown_once_their_tasks_are_requeued() -> None:
    known = registry(Launcher())
    for number in range(JOINS):
        remote_worker = Worker(number, 0, f"remote-{number}", None, "alice", 3)
        known.add(remote_worker)
        known.end(remote_worker, "it could not be reached")
        assert remote_worker.identity not in known.by_identity
        (event,) = known.events()
        assert known[number] is event.worker  # instructions name it until then
        known.forget(event.worker)
        if number == 0:
            before = sizes(known)
    assert sizes(known) == before
    assert known.alive == []
    assert known.newest is not None and known.newest.number == JOINS - 1


def test_the_last_local_workers_that_ended_are_remembered_for_their_late_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registries, "MOST_ENDED", 2)
    known = registry(Launcher())
    known.start(0, slot=0)
    identities = [known[0].identity]
    for number in range(1, 6):
        known.end(known[number - 1], "it was stuck")
        for event in known.events():
            if event.has_ended:
                known.forget(event.worker)
        known.start(number, slot=0)
        identities.append(known[number].identity)
    assert [known.authenticated(identity) is not None for identity in identities] == [False] * 3 + [True] * 3
    assert [worker.number for worker in known.alive] == [5]
    assert not known.is_loading


def test_local_workers_that_die_leave_the_scheduler_as_it_was() -> None:
    scheduler = TaskScheduler(1)
    scheduler.begin()
    found = []
    for worker in range(JOINS):
        scheduler.ready(worker)
        scheduler.submitted([(worker, "task", 5.0)])
        assert scheduler.died(worker, "SIGKILL", is_blameless=True)[-1] == StartWorker(worker + 1)
        scheduler.cancelled([worker])
        found.append(sizes(scheduler))
    assert found[0] == found[-1]


def test_blocks_of_a_round_do_not_keep_the_workers_that_had_them() -> None:
    cached_payloads = CachedPayloads(lambda version: None)
    of_the_round = cached_payloads.take({"model": {"a": Vector(np.ones(3, np.float32))}})
    before = sizes(cached_payloads)
    for worker in range(JOINS):
        assert len(cached_payloads.delivery(worker, of_the_round)[0]) == 1
        cached_payloads.remove_worker(worker)
    assert sizes(cached_payloads) == before
