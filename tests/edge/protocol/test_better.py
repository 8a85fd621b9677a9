"""Directions of measures: who is better, what reaches a target, and the best of several."""

from __future__ import annotations

import math

import pytest

from edge.protocol.better import HIGHER, LOWER, Better


@pytest.mark.parametrize(("better", "good", "bad"), [(HIGHER, 0.9, 0.8), (LOWER, 0.8, 0.9)])
def test_a_better_value_is_preferred_and_reaches_what_is_as_good_or_worse(
    better: Better, good: float, bad: float
) -> None:
    assert [better.prefers(good, bad), better.prefers(bad, good), better.prefers(good, good)] == [True, False, False]
    assert [better.reaches(good, bad), better.reaches(good, good), better.reaches(bad, good)] == [True, True, False]
    assert better.best([bad, good, bad]) == good
    assert better.prefers(bad, better.worst)
    assert better.best([]) == better.worst


@pytest.mark.parametrize("better", Better)
def test_a_run_that_has_diverged_reaches_no_target(better: Better) -> None:
    assert not better.reaches(math.nan, 0.5)
    assert not better.prefers(math.nan, better.worst)
