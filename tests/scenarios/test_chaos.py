"""A short form of ``make chaos``: a run under fire ends in the same bits as one that was left alone."""

from __future__ import annotations

import pytest

from benchmarks.chaos import drill
from tests import warm


@pytest.mark.parametrize("method", ["fedbr", "fedbuff"])
def test_a_run_under_fire_ends_as_if_it_had_been_left_alone(method: str) -> None:
    outcome = drill(method, rounds=10, faults=3, seed=1, undisturbed=warm.run)
    assert outcome.same
    assert outcome.rounds == 10
    assert sum(outcome.faults.values()) >= 1
