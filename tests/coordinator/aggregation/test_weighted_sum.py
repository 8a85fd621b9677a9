"""Element-wise means of parts: each number over the clients that have it."""

from __future__ import annotations

import numpy as np

from coordinator.aggregation.weighted_sum import WeightedSum
from edge.protocol.payload import Floats


def floats(*numbers: float) -> Floats:
    return np.array(numbers, np.float32)


def test_each_number_is_the_mean_over_those_who_have_it_and_others_keep_their_value() -> None:
    total = WeightedSum()
    total.add(floats(1, 2, 3, 4), 1.0)  # a client with all four
    total.add_at(4, np.array([0, 2]), floats(5, 9), 3.0, None)
    mean = total.mean(floats(0, 0, 0, 0))
    assert mean is not None and mean.tolist() == [4.0, 2.0, 7.5, 4.0]  # (1 + 3·5)/4, 2, (3 + 3·9)/4, 4
    assert total.missing is None
    alone = WeightedSum()
    alone.add_at(3, np.array([2, 0]), floats(5, 7), 2.0, np.array([True, False]))  # the second does not count
    mean = alone.mean(floats(-1, -2, -3))
    assert mean is not None and mean.tolist() == [-1.0, -2.0, 5.0]
    assert alone.missing is not None and alone.missing.tolist() == [True, True, False]


def test_parts_that_are_whole_give_the_mean_of_whole_vectors_to_the_bit() -> None:
    rng = np.random.default_rng(0)
    vectors, weights = rng.standard_normal((5, 1000)).astype(np.float32), rng.random(5)
    whole, parts = WeightedSum(), WeightedSum()
    for vector, weight in zip(vectors, weights.tolist(), strict=True):
        whole.add(vector, weight)
        parts.add_at(1000, np.arange(1000), vector, weight, None)
    first, second = whole.mean(), parts.mean(np.zeros(1000, np.float32))
    assert first is not None and second is not None and np.array_equal(first, second)
