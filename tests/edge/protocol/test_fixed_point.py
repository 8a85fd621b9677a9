"""Sums in integers: the same to the bit in any order, as near to the mean as matters, and never beyond their range."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from edge.protocol.fixed_point import (
    FRACTION_BITS,
    LIMIT,
    FixedPointSums,
    add_weighted,
    not_summable,
    sum_vector,
)
from edge.protocol.messages import PartialSum, Totals, Update
from edge.protocol.payload import Floats, Payload, Vector

ONE = 2**46
BELOW = float(np.nextafter(np.float32(2**15), np.float32(0)))
"""The largest number that may be added: 2^15 - 2^-9."""


def floats(*numbers: float) -> Floats:
    return np.array(numbers, dtype=np.float32)


def total_of(vectors: list[Floats], shares: list[float]) -> NDArray[np.int64]:
    total = np.zeros(vectors[0].size, np.int64)
    for vector, share in zip(vectors, shares, strict=True):
        add_weighted(total, vector, share)
    return total


def update(client: int, *numbers: float, round: int = 5, key: str = "head") -> Update:
    return Update(client, round, {"loss": 0.5}, {"model": {key: Vector(floats(*numbers))}})


# --- one vector -------------------------------------------------------------------------------------------------------


def test_a_number_counts_as_the_nearest_multiple_of_2_to_the_minus_46() -> None:
    total = total_of([floats(1.0, -2.0, 0.0), floats(3.0, 6.0, 2.0**-46)], [0.25, 0.75])
    assert total.tolist() == [5 * ONE // 2, 4 * ONE, 1]  # 0.75 of the smallest unit is rounded to 1
    assert sum_vector(total).dtype == np.float32
    assert sum_vector(total).tolist() == [2.5, 4.0, 2.0**-46]


def test_a_mean_has_the_same_bits_in_any_order_and_is_that_of_float64_within_1e_9() -> None:
    rng = np.random.default_rng(3)
    vectors = [rng.normal(0.0, 0.05, 500).astype(np.float32) for _ in range(30)]
    shares = (weights := rng.integers(1, 200, 30)) / weights.sum()
    whole = total_of(vectors, list(shares))
    order = rng.permutation(30)
    halves = [total_of([vectors[i] for i in half], [shares[i] for i in half]) for half in (order[:11], order[11:])]
    assert np.array_equal(halves[0] + halves[1], whole)
    mean = np.average(np.array(vectors, np.float64), axis=0, weights=weights)
    assert np.abs(whole / 2.0**FRACTION_BITS - mean).max() < 1e-9
    assert np.abs(sum_vector(whole) - mean).max() < 1e-6
    weighted = [vector * np.float64(share) for vector, share in zip(vectors, shares, strict=True)]
    assert not np.array_equal(sum(weighted), sum(weighted[i] for i in order))  # which floating point does not give


@pytest.mark.parametrize("clients", [1, 3, 7, 1000])
def test_shares_that_add_up_to_1_never_overflow(clients: int) -> None:
    share = 1 / clients
    total = total_of([floats(BELOW, -BELOW)] * clients, [share] * clients)
    each = round(BELOW * (share * ONE))  # Python's integers have no end
    assert total.tolist() == [clients * each, -clients * each]
    assert abs(clients * each) <= 2**61 + clients
    assert sum_vector(total).tolist() == [BELOW, -BELOW]


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ([1.0, float("nan")], "is not finite (training diverged?)"),
        ([float("-inf"), 1.0], "is not finite (training diverged?)"),
        (
            [LIMIT, 0.0],
            "is too large for aggregate.sum = fixed_point (32768; numbers must be below 32768; training diverged?)",
        ),
        ([BELOW, -BELOW], None),
    ],
)
def test_numbers_that_cannot_be_added_up(numbers: list[float], problem: str | None) -> None:
    assert not_summable(floats(*numbers)) == problem
    without_a_limit = not_summable(floats(*numbers), float("inf"))
    assert without_a_limit == (problem if problem and "finite" in problem else None)


# --- the updates of a round -------------------------------------------------------------------------------------------


def plain(totals: Totals) -> dict[str, dict[str, list[float]]]:
    return {slot: {key: (t / ONE).tolist() for key, t in named.items()} for slot, named in totals.items()}


def test_what_is_added_up_comes_back_without_its_vectors() -> None:
    sums = FixedPointSums(5)
    assert sums.put(update(3, 1.0, 2.0), 0.5) == Update(3, 5, {"loss": 0.5}, {})
    assert sums.put(update(1, 3.0, 4.0), 0.5) == Update(1, 5, {"loss": 0.5}, {})
    assert (sums.message().round, sums.message().clients) == (5, 2)
    assert plain(sums.message().totals) == {"model": {"head": [2.0, 3.0]}}


def test_an_update_that_cannot_be_added_comes_back_whole_and_leaves_nothing() -> None:
    sums = FixedPointSums(5)
    sums.put(update(3, 1.0, 2.0), 0.5)
    both: Payload = {"model": {"head": Vector(floats(1.0, 1.0))}, "control": {"c": Vector(floats(np.nan))}}
    for bad in (update(1, 1.0, LIMIT), Update(1, 5, {}, both)):
        assert sums.put(bad, 0.5) is bad
    assert sums.clients == 1
    assert plain(sums.message().totals) == {"model": {"head": [0.5, 1.0]}}


def test_sums_are_merged_with_those_of_the_same_round_and_shapes() -> None:
    ours, theirs = FixedPointSums(5), FixedPointSums(5)
    ours.put(update(3, 1.0), 0.25)
    theirs.put(update(4, 2.0), 0.25)
    theirs.put(update(5, 4.0), 0.5)
    ours.merge(theirs.message())
    assert (ours.clients, plain(ours.message().totals)) == (3, {"model": {"head": [2.75]}})
    with pytest.raises(ValueError, match="sums of round 7 instead of 6"):
        ours.merge(replace(theirs.message(), round=6))
    with pytest.raises(ValueError, match=r"sums of round 6: shapes {'model': {'head': 2}} instead of"):
        ours.merge(PartialSum(5, 1, {"model": {"head": np.zeros(2, np.int64)}}))
