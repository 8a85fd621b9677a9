"""A short form of ``make chaos``: a run under fire ends in the same bits as one that was left alone."""

from __future__ import annotations

import random

import pytest

from benchmarks.chaos import AGENTS, LOCAL, drill
from benchmarks.drills import AGENT, AGENT_STOPPED, WEIGHTS, draw_faults, lost_after


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


def test_of_five_faults_on_agents_one_is_a_stop_which_takes_long() -> None:
    assert [draw_faults(faults, random.Random(1)).count(AGENT_STOPPED) for faults in (4, 5, 20)] == [0, 1, 1]
    assert set(draw_faults(100, random.Random(1))) == {AGENT_STOPPED, *WEIGHTS}


def test_a_killed_agent_is_lost_at_the_first_loss_before_the_next_fault() -> None:
    """The loss at 20.5 belongs to the fault at 20, and that at 31 to no kill: the one at 30 was never recorded."""
    strikes = [(AGENT, 10.0), (AGENT_STOPPED, 20.0), (AGENT, 30.0), ("other", 30.5), (AGENT, 40.0)]
    assert lost_after(AGENT, strikes, [9.0, 10.25, 12.0, 20.5, 31.0, 41.5]) == [0.25, 1.5]
