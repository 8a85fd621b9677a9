"""Sums of integers mod 2^32: masks cancel to the bit, and the quantisation is the only loss."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edge.protocol.fixed_point import FixedPointSums, sum_vector
from edge.protocol.messages import Update
from edge.protocol.payload import MODEL, Payload, Vector
from edge.protocol.secure_sum import SecureSum, most_levels

LEVELS = SecureSum(8.0, 1 << 22, 1000.0)


def test_numbers_become_levels_by_hand() -> None:
    assert LEVELS.ratio(1000) == 1.0
    assert LEVELS.ratio(1) == 4194 / 2**22  # 4194.304
    numbers = np.array([0.0, 8.0, -8.0, 1.0], np.float32)
    assert LEVELS.quantised(numbers, 1.0).tolist() == [2**21, 2**22, 0, 2**21 + 2**18]
    assert LEVELS.quantised(numbers, 0.5).tolist() == [2**21, 3 * 2**20, 2**20, 2**21 + 2**17]
    assert LEVELS.mean(np.array([2**21 + 2**22]), [1.0, 1.0]).tolist() == [4.0]


def test_the_sum_of_masked_vectors_is_the_sum_in_the_clear_to_the_bit() -> None:
    rng, clients, size = np.random.default_rng(5), 7, 1000
    vectors = [rng.normal(0, 0.5, size).astype(np.float32) for _ in range(clients)]
    ratios = [LEVELS.ratio(float(weight)) for weight in rng.integers(1, 1000, clients)]
    clear = [LEVELS.quantised(vector, ratio) for vector, ratio in zip(vectors, ratios, strict=True)]
    # Client i adds the stream that it shares with j if i < j, and takes it off if i > j; each has a mask of its own.
    streams = {(i, j): rng.integers(0, 2**32, size) for i in range(clients) for j in range(i + 1, clients)}
    own = [rng.integers(0, 2**32, size) for _ in range(clients)]
    masked = []
    for i in range(clients):
        mask = own[i] + sum(streams[i, j] for j in range(i + 1, clients)) - sum(streams[j, i] for j in range(i))
        masked.append(((clear[i] + mask) % 2**32).astype(np.uint32))
        assert not np.array_equal(masked[i], clear[i])
    received = np.zeros(size, np.uint32)
    for vector in masked:
        received = received + vector  # wraps at 2^32
    unmasked = (received.astype(np.int64) - sum(own)) % 2**32
    assert np.array_equal(unmasked, sum(clear))
    mean = LEVELS.mean(unmasked, ratios)
    exact = sum(ratio * vector.astype(np.float64) for ratio, vector in zip(ratios, vectors, strict=True))
    # Each is rounded to a level of 16 / 2^22, by half of one at most.
    assert np.abs(mean - exact / math.fsum(ratios)).max() <= clients * 2**-19 / math.fsum(ratios)


def test_workers_add_levels_up_and_the_sum_becomes_a_mean_in_fixed_point() -> None:
    def update(client: int, number: float) -> Update:
        payload: Payload = {MODEL: {"b": Vector(np.full(3, number, np.float32))}}
        return Update(client, 4, {"loss": 0.0}, payload)

    one, other = FixedPointSums(4, LEVELS), FixedPointSums(4, LEVELS)
    assert one.put(update(0, 1.0), 1.0).payload == {}
    one.put(update(1, 3.0), 0.5)
    other.put(update(2, -2.0), 0.5)
    one.merge(other.message())
    totals = LEVELS.means(one.message().totals, [1.0, 0.5, 0.5])
    assert sum_vector(totals[MODEL]["b"]).tolist() == [0.75] * 3  # (1 + 1.5 - 1) / 2
    assert one.put(update(3, 8.0), 1.0).payload  # out of range: sent whole, to be refused by name


@pytest.mark.parametrize(("clients", "levels"), [(1, 2**22), (1023, 2**22), (1024, 2**21), (10_000, 2**18)])
def test_levels_of_a_cohort_add_up_to_less_than_the_modulus(clients: int, levels: int) -> None:
    assert most_levels(clients) == levels
    assert clients * levels < 2**32
