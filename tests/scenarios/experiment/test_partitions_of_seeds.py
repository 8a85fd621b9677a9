"""Every command that repeats runs over seeds gives each seed a partition of its own, unless a key fixes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from scenarios.experiment import budget, compare, sweep, tune
from scenarios.experiment.experiment import Experiment
from scenarios.experiment.grid import grid_of
from scenarios.papers import reproduce
from scenarios.papers.trial.plan import TrialRequest, plan

FEDAVG, HELD_OUT = "method=fedavg", "data.validation=0.2"
PLANS: dict[str, Callable[[Sequence[str]], Experiment]] = {
    "sweep": lambda words: sweep.plan(grid_of("digits", [FEDAVG, *words]), seeds=3),
    "compare": lambda words: compare.plan(grid_of("digits", [FEDAVG, *words]), seeds=3),
    "budget": lambda words: budget.plan(grid_of("digits", [FEDAVG, *words]), {"bytes": [1e6]}, seeds=3),
    "tune": lambda words: tune.plan(grid_of("digits", [HELD_OUT, "train.lr=0.1,1", *words]), seeds=3),
    "trial": lambda words: plan(TrialRequest(grid_of("digits", ["variant=fedbr", *words]), "bandit", seeds=3)),
    "reproduce": lambda words: reproduce.plan(
        "fedbr:fig3", "tiny", grid_of("fedbr:fig3", ["row=FedAvg", "panel=a", *words]), seeds=3
    ),
}


@pytest.mark.parametrize("command", PLANS)
def test_seeds_have_partitions_of_their_own_unless_a_key_fixes_one(command: str) -> None:
    def seeds(*words: str) -> list[tuple[int, int | None]]:
        scenarios = [run.loaded.scenario for run in PLANS[command](words).run_set.runs]
        return list(dict.fromkeys((each.seed, each.data.partition.seed) for each in scenarios))

    assert seeds() == [(0, 0), (1, 1), (2, 2)]
    assert seeds("data.partition.seed=0") == [(0, 0), (1, 0), (2, 0)]
