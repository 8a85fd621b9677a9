"""Replies that wait for their turn are few in memory, and come back from the file as they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.rounds.reorder_buffer import ReorderBuffer
from edge.protocol.messages import Update
from edge.protocol.payload import MODEL, Vector, sha256


def reply(client: int, size: int = 1000) -> Update:
    rng = np.random.default_rng(client)
    head, body = (Vector(rng.standard_normal(n).astype(np.float32)) for n in (size, 7))
    return Update(client, 3, {"loss": client / 10}, {MODEL: {"head": head}, "control": {"body": body}})


def test_what_comes_back_is_what_was_put_in_wherever_it_was_meanwhile(tmp_path: Path) -> None:
    with ReorderBuffer(2, tmp_path) as held:
        for client in range(6):
            held.add(reply(client))
        assert len(held._in_memory) == 2
        for client in (5, 0, 3, 1, 4, 2):
            back, before = held.take(client), reply(client)
            assert sha256(back.payload) == sha256(before.payload)
            assert (back.client, back.round, back.numbers) == (client, 3, {"loss": client / 10})
            assert list(back.payload) == ["model", "control"]
            assert client not in held


def test_the_file_has_no_name_and_its_places_are_used_again(tmp_path: Path) -> None:
    with ReorderBuffer(0, tmp_path) as held:
        for client in range(50):
            held.add(reply(client))
            if client >= 3:
                held.take(client - 3)
        assert held._end == 4 * 4028  # never more than four at a time
        assert list(tmp_path.iterdir()) == []


def test_a_reply_without_vectors_needs_no_file_and_a_disk_that_refuses_is_an_error_of_the_system(
    tmp_path: Path,
) -> None:
    with ReorderBuffer(0, tmp_path / "nowhere") as held:
        held.add(Update(4, 0, {"loss": 1.0}, {}))
        assert held.take(4) == Update(4, 0, {"loss": 1.0}, {})
    with ReorderBuffer(0, tmp_path / "nowhere") as held, pytest.raises(FileNotFoundError):
        held.add(reply(0))
