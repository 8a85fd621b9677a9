"""The server's store of vectors per client: what it refuses to record."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.records import names
from coordinator.records.client_vectors import ClientVectors
from edge.protocol.payload import Vector

ONES = {"head": Vector(np.ones(2, np.float32))}


def test_a_client_may_be_a_number_of_numpy_and_none_is_below_zero(tmp_path: Path) -> None:
    (tmp_path / names.VECTORS).mkdir()
    store = ClientVectors(tmp_path)
    store.put(int(np.int64(3)), "last", ONES)
    store.put(np.int64(4), "last", ONES)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="store: there is no client -1"):
        store.put(-1, "last", ONES)
    store.expected = {"last": {"head": 3}}
    refusal = r"store: slot last of shapes {'head': 2}, but store_shapes gives {'head': 3}"
    with pytest.raises(ValueError, match=refusal):
        store.put(3, "last", ONES)
    with pytest.raises(ValueError, match="but store_shapes gives None"):
        store.put(3, "first", ONES)
    store.publish()
    assert [type(client) for client in store.view().clients("last")] == [int, int]
