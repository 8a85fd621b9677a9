"""What open tasks need, and what is sent to a worker once and then forgotten."""

import errno
from pathlib import Path

import numpy as np
import pytest

from coordinator.workers import block_cache
from coordinator.workers.block_cache import SHARED_NBYTES, CachedPayloads
from edge.protocol import serialization
from edge.protocol.messages import MappedTensors, WireError
from edge.protocol.payload import Payload, Vector
from edge.runtime.connection import vectors_of
from tests.pools import BLOCK_NBYTES, Pools, model, sums, visit


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


# --- versions in files in memory --------------------------------------------------------------------------------------


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of the file system in memory."""
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setattr(block_cache, "MEMORY", folder)
    return folder


def versions(memory: Path) -> set[bytes]:
    return {bytes.fromhex(path.name) for path in memory.glob("fedbr-*.scratch/*")}


def of(payload: Payload) -> set[bytes]:
    return {vector.version for vector in payload["model"].values()}


def test_a_version_is_in_memory_once_for_all_workers_while_one_of_them_has_it(pools: Pools, memory: Path) -> None:
    first, second = model(), model()
    second["model"]["b"] = Vector(np.full(BLOCK_NBYTES // 4, 7.0, np.float32))
    with pools(2) as pool:
        assert sums(pool, [visit(n, payload=first) for n in range(8)]) == {n: [n, n + 1.0] for n in range(8)}
        assert pool.physical_bytes[0] < BLOCK_NBYTES / 20
        assert versions(memory) == of(first)
        while versions(memory) != of(second):  # until both have been told to evict the first one's b
            assert sums(pool, [visit(n, payload=second) for n in range(8)]) == {n: [n, n + 7.0] for n in range(8)}
    assert list(memory.iterdir()) == []


def test_short_vectors_and_those_for_which_there_is_no_room_are_sent(
    pools: Pools, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"model": {"a": Vector(np.zeros(SHARED_NBYTES // 4 - 1, np.float32))}}

    def write_half(descriptor: int, content: memoryview) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pools(1) as pool:
        assert sums(pool, [visit(3, payload=short)]) == {3: [3.0]}
        monkeypatch.setattr(block_cache, "_write_all", write_half)
        assert sums(pool, [visit(3)]) == {3: [3.0, 4.0]}
        assert versions(memory) == set()
        assert pool.physical_bytes[0] > 2 * BLOCK_NBYTES


def test_a_worker_maps_what_is_named_read_only_and_skips_what_is_gone(tmp_path: Path) -> None:
    numbers = np.arange(4, dtype=np.float32)
    here, gone = Vector(numbers).version.hex(), "00" * 16
    (tmp_path / here).write_bytes(numbers.tobytes())
    mapped = vectors_of(MappedTensors(str(tmp_path), {here: 4, gone: 4}))
    assert mapped is not None and [vector.data.tolist() for vector in mapped] == [[0.0, 1.0, 2.0, 3.0]]
    assert not mapped[0].data.flags.writeable
    with pytest.raises(WireError, match="mmap length is greater than file size"):
        vectors_of(MappedTensors(str(tmp_path), {here: 5}))
    with pytest.raises(WireError, match=r"MappedTensors: Expected `str` matching regex"):
        serialization.encode(MappedTensors(str(tmp_path), {"../other": 4}), "run-1")
