"""Workers that come and go by the hundred leave nothing behind in what a coordinator knows of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from pathlib import Path
from typing import Any

from coordinator.workers.instructions import RequestPartial, SendTask
from coordinator.workers.registry import Worker, WorkerRegistry
from coordinator.workers.scheduler import TaskScheduler

JOINS = 300


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
