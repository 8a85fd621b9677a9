"""Statistics over seeds: intervals, paired differences and their test, Holm's correction, and seeds needed."""

from __future__ import annotations

import math

import pytest

from scenarios.experiment import statistics
from scenarios.run import progress


def test_an_interval_is_students_t_over_seeds_and_one_seed_has_none() -> None:
    assert progress.t_quantile(3) == pytest.approx(4.303, abs=5e-4)
    assert progress.t_quantile(2) == pytest.approx(12.706, abs=5e-4)
    # The deviation of 1, 2, 3 is 1: half the interval is 4.303 / sqrt(3).
    found = progress.with_interval([1.0, 2.0, 3.0])
    assert (found["mean"], found["deviation"], found["half_width"]) == (2.0, 1.0, pytest.approx(2.484, abs=5e-4))
    assert progress.with_interval([0.5])["half_width"] is None
    assert progress.with_interval([0.5, None])["mean"] is None


def test_a_difference_is_paired_over_the_seeds_that_both_have() -> None:
    found = statistics.paired({0: 0.5, 1: 0.7, 2: 0.9}, {1: 0.4, 2: 0.4, 3: 0.1})
    assert found is not None
    assert (found["seeds"], found["values"]) == ([1, 2], pytest.approx([0.3, 0.5]))
    # The deviation of 0.3 and 0.5 is sqrt(0.02): half the interval is 12.706 sqrt(0.02 / 2).
    assert found["half_width"] == pytest.approx(1.2706, abs=5e-5)
    assert statistics.paired({0: 0.5}, {1: 0.5}) is None


def test_a_paired_test_follows_students_t_and_counts_signs() -> None:
    found = statistics.tested({"values": [0.01, 0.02, 0.03], "mean": 0.02, "deviation": 0.01})
    # t = 0.02 / (0.01 / sqrt(3)) = sqrt(12); with two degrees of freedom, p = 1 - t / sqrt(t^2 + 2).
    assert found["p"] == pytest.approx(1 - math.sqrt(12 / 14))
    assert (found["higher"], found["lower"]) == (3, 0)
    mixed = statistics.tested({"values": [0.02, -0.02, 0.0], "mean": 0.0, "deviation": 0.02})
    assert (mixed["higher"], mixed["lower"], mixed["p"]) == (1, 1, 1.0)
    assert mixed["seeds_needed"] is None


def test_one_seed_and_the_same_difference_in_all_are_not_tested() -> None:
    one = statistics.tested({"values": [0.1], "mean": 0.1, "deviation": None})
    same = statistics.tested({"values": [0.1, 0.1], "mean": 0.1, "deviation": 1e-17})
    assert [(found["p"], found["seeds_needed"]) for found in (one, same)] == [(None, None), (None, None)]


def test_holm_multiplies_the_smallest_p_by_all_tests_and_never_falls_below_one_before() -> None:
    # Sorted 0.01, 0.03, 0.04: 3 * 0.01, then 2 * 0.03, then 0.04, which is not below 0.06; None is no test.
    assert statistics.holm([0.01, 0.04, None, 0.03]) == pytest.approx([0.03, 0.06, None, 0.06])
    assert statistics.holm([0.9, 0.6]) == [1.0, 1.0]


@pytest.mark.parametrize(("effect", "seeds"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10)])
def test_seeds_needed_are_those_of_gpower(effect: float, seeds: int) -> None:
    # G*Power 3.1: difference between two dependent means, two tails, alpha 0.05, power 0.8.
    assert statistics.seeds_needed(-effect, 1.0) == seeds
    assert statistics.power(effect, seeds - 1) < 0.8 <= statistics.power(effect, seeds)


def test_a_huge_difference_takes_two_seeds_and_a_tiny_one_more_than_anybody_runs() -> None:
    assert statistics.seeds_needed(1.0, 1e-9) == 2
    assert statistics.seeds_needed(1e-4, 1.0) is None
