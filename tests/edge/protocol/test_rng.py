"""A stream is Philox's with a key that names it, to the bit."""

from __future__ import annotations

import copy
import hashlib

import numpy as np
import pytest

from edge.protocol.rng import keyed_generator


@pytest.mark.parametrize(("seed", "purpose", "round", "client"), [(0, "batches", 0, 0), (7, "gmbs", 12, 99_999)])
def test_the_key_is_a_hash_of_seed_purpose_round_and_client(seed: int, purpose: str, round: int, client: int) -> None:
    digest = hashlib.blake2b(f"{seed}|{purpose}|{round}|{client}".encode(), digest_size=16).digest()
    expected = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
    found = keyed_generator(seed, purpose, round, client)
    assert found.permutation(1000).tolist() == expected.permutation(1000).tolist()
    assert found.random(5).tolist() == expected.random(5).tolist()


def test_a_stream_is_copied_where_it_stands() -> None:
    stream = keyed_generator(0, "cohort", 3)
    stream.random(7)
    assert copy.deepcopy(stream).integers(1 << 40, size=9).tolist() == stream.integers(1 << 40, size=9).tolist()
