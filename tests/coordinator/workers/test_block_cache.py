"""What open tasks need, and what is sent to a worker once and then forgotten."""

import numpy as np

from coordinator.workers.block_cache import CachedPayloads
from edge.protocol.payload import Vector


def vector(number: float) -> Vector:
    return Vector(np.array([number], np.float32))


A, B, C = vector(1.0), vector(2.0), vector(3.0)


def test_each_version_is_sent_to_a_worker_once_and_to_its_replacement_again() -> None:
    cached = CachedPayloads(lambda version: None)
    both, head = cached.take({"model": {"stem": A, "head": B}}), cached.take({"model": {"head": B}})
    assert cached.delivery(0, both) == ([A, B], [])
    assert cached.delivery(0, head) == ([], [])
    assert cached.delivery(1, head) == ([B], [])
    cached.remove_worker(0)
    assert cached.delivery(0, both) == ([A, B], [])


def test_a_version_outlives_its_tasks_until_a_newer_one_takes_its_place() -> None:
    cached = CachedPayloads(lambda version: None)
    first = cached.take({"model": {"head": A}})
    cached.delivery(0, first)
    cached.release(first)
    assert cached.delivery(0, cached.take({"model": {"stem": B}})) == ([B], [])  # A is still the newest head
    assert cached.delivery(0, cached.take({"model": {"head": C}})) == ([C], [A.version])


def test_a_version_that_an_open_task_needs_is_not_forgotten() -> None:
    cached = CachedPayloads(lambda version: None)
    first, second = cached.take({"model": {"head": A}}), cached.take({"model": {"head": A}, "teacher": {}})
    third = cached.take({"model": {"head": B}})
    cached.release(first)
    cached.delivery(0, second)
    assert cached.delivery(0, third) == ([B], [])
    cached.release(second)
    fourth = cached.take({"model": {"head": B}, "teacher": {}})
    assert cached.delivery(0, fourth) == ([], [A.version])


def test_a_version_that_is_asked_for_again_before_it_was_forgotten_stays() -> None:
    obsolete: list[bytes] = []
    cached = CachedPayloads(obsolete.append)
    first = cached.take({"model": {"head": A}})
    cached.delivery(0, first)
    cached.release(first)
    assert obsolete == []
    cached.take({"model": {"head": B}})
    assert obsolete == [A.version]  # nobody may keep it, and worker 0 is to hear of that
    again = cached.take({"teacher": {"head": A}})
    assert cached.delivery(0, again) == ([], [])
    assert cached.delivery(1, again) == ([A], [])
