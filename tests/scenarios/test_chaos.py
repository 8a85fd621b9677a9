"""A short form of ``make chaos``: a run under fire ends in the same bits as one that was left alone."""

from __future__ import annotations

import pytest

from benchmarks.chaos import AGENTS, LOCAL, drill


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "drills", "rounds"),
    [pytest.param("fedbr", LOCAL, 10, id="local workers"), pytest.param("fedbuff", AGENTS, 20, id="node agents")],
)
def test_a_run_under_fire_ends_as_if_it_had_been_left_alone(method: str, drills: str, rounds: int) -> None:
    outcome = drill(method, rounds, faults=3, seed=1, drills=drills)
    assert outcome.same
    assert outcome.rounds == rounds
    assert sum(outcome.faults.values()) >= 1
