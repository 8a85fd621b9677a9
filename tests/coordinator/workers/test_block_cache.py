"""What open tasks need, and what is sent to a worker once and then forgotten."""

import numpy as np

from coordinator.workers.block_cache import BlockCache, CachedPayloads
from edge.protocol import codec, messages
from edge.protocol.payload import Payload, Vector

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def test_each_version_is_sent_to_a_worker_once_and_to_its_replacement_again() -> None:
    shelves = BlockCache()
    shelves.submitted({("model", "stem"): A, ("model", "head"): B})
    shelves.submitted({("model", "head"): B})
    assert shelves.delivery(0, [A, B]) == ([A, B], [])
    assert shelves.delivery(0, [B]) == ([], [])
    assert shelves.delivery(1, [B]) == ([B], [])
    shelves = BlockCache()
    shelves.submitted({("model", "head"): A})
    shelves.delivery(0, [A])
    shelves.remove_worker(0)
    assert shelves.delivery(0, [A]) == ([A], [])


def test_a_version_outlives_its_tasks_until_a_newer_one_takes_its_place() -> None:
    shelves = BlockCache()
    shelves.submitted({("model", "head"): A})
    shelves.delivery(0, [A])
    shelves.over([A])
    shelves.submitted({("model", "stem"): B})
    assert shelves.delivery(0, [B]) == ([B], [])  # A is still the newest head
    shelves.submitted({("model", "head"): C})
    assert shelves.delivery(0, [C]) == ([C], [A])


def test_a_version_that_an_open_task_needs_is_not_forgotten() -> None:
    shelves = BlockCache()
    shelves.submitted({("model", "head"): A})
    shelves.submitted({("model", "head"): A})
    shelves.submitted({("model", "head"): B})
    shelves.over([A])
    shelves.delivery(0, [A])
    assert shelves.delivery(0, [B]) == ([B], [])
    shelves.over([A])
    assert shelves.delivery(0, [B]) == ([], [A])


def test_a_version_that_is_asked_for_again_before_it_was_forgotten_stays() -> None:
    shelves = BlockCache()
    shelves.submitted({("model", "head"): A})
    shelves.delivery(0, [A])
    assert shelves.over([A]) == []
    assert shelves.submitted({("model", "head"): B}) == [A]  # nobody may keep it, and worker 0 is to hear of that
    shelves.submitted({("teacher", "head"): A})
    assert shelves.delivery(0, [A]) == ([], [])
    assert shelves.delivery(1, [A]) == ([A], [])


def vector(number: float) -> Vector:
    return Vector(np.array([number], np.float32))


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
        assert codec.encode_header(task, "run-1", cached_payload.entries) == codec.encode(task, "run-1").header
