"""What open tasks need, and what is sent to a worker once and then forgotten."""

import numpy as np

from coordinator.workers.block_cache import CachedPayloads
from edge.protocol import messages, serialization
from edge.protocol.payload import Payload, Vector


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


def test_tasks_with_the_same_vectors_share_a_cached_payload_until_the_last_is_over() -> None:
    obsolete: list[bytes] = []
    cached_payloads = CachedPayloads(obsolete.append)
    stem, head, newer = vector(1.0), vector(2.0), vector(3.0)
    payloads: list[Payload] = [{"model": {"stem": stem, "head": head}} for _ in range(2)]
    first, second = map(cached_payloads.take, payloads)
    assert first is second
    assert cached_payloads.delivery(0, first) == ([stem, head], [])
    assert cached_payloads.delivery(0, second) == ([], [])
    assert cached_payloads.delivery(1, second) == ([stem, head], [])
    cached_payloads.release(first)
    third = cached_payloads.take({"model": {"stem": stem, "head": newer}})
    assert third is not first
    assert obsolete == []  # the older head is still needed by the second task
    cached_payloads.release(second)
    assert obsolete == [head.version]
    assert cached_payloads.delivery(0, third) == ([newer], [head.version])


def test_cached_payloads_differ_by_slot_and_by_key_and_a_replaced_worker_is_sent_everything_again() -> None:
    cached_payloads = CachedPayloads(lambda version: None)
    one = vector(1.0)
    payloads: list[Payload] = [{"model": {"a": one}}, {"model": {"b": one}}, {"teacher": {"a": one}}, {}]
    taken = [cached_payloads.take(payload) for payload in payloads]
    assert len({id(cached_payload) for cached_payload in taken}) == 4
    assert [len(cached_payloads.delivery(0, cached_payload)[0]) for cached_payload in taken] == [1, 0, 0, 0]
    cached_payloads.remove_worker(0)
    assert cached_payloads.delivery(1, taken[0]) == ([one], [])


def test_the_entries_of_a_cached_payload_make_the_header_of_each_task() -> None:
    payload: Payload = {"model": {"stem": vector(1.0), "head": vector(2.0)}, "teacher": {"head": vector(3.0)}}
    cached_payload = CachedPayloads(lambda version: None).take(payload)
    for client in (1, 2**40):
        task = messages.Train(client, 3, 0.1, {"alpha": 2}, payload)
        assert (
            serialization.encode_header(task, "run-1", cached_payload.entries)
            == serialization.encode(task, "run-1").header
        )
