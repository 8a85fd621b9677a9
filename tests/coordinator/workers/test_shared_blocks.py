"""Block versions in files in memory: once for all workers of a machine, sent where there is no room, and never left."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from coordinator.workers import block_cache
from coordinator.workers.block_cache import SHARED_NBYTES
from edge.protocol import serialization
from edge.protocol.messages import MappedTensors, WireError
from edge.protocol.payload import Payload, Vector
from edge.runtime.connection import vectors_of
from tests.pools import BLOCK_NBYTES, Pools, model, sums, visit


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
