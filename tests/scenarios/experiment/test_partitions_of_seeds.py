"""Every command that repeats runs over seeds gives each seed a partition of its own, unless a key fixes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from scenarios.experiment import budget, compare, sweep, tune
from scenarios.experiment.grid import read_words
from scenarios.experiment.run_set import RunSet
from scenarios.papers import reproduce
from scenarios.papers.trial.plan import TrialChoice, plan

PLANS: dict[str, Callable[[Sequence[str]], RunSet]] = {
    "sweep": lambda words: sweep.plan("digits", *read_words(["method=fedavg", *words]), seeds=3).run_set,
    "compare": lambda words: compare.plan("digits", words, "fedavg", seeds=3),
    "budget": lambda words: budget.plan("digits", words, "fedavg", {"bytes": [1e6]}, seeds=3),
    "tune": lambda words: tune.plan("digits", ["data.validation=0.2", *words], "fedavg", {}, seeds=3).run_set,
    "trial": lambda words: plan(TrialChoice("digits", words, "bandit", seeds=3, only="fedbr")).run_set,
    "reproduce": lambda words: reproduce.plan("fedbr:fig3", "tiny", "a,FedAvg", words, seeds=3).run_set,
}


@pytest.mark.parametrize("command", PLANS)
def test_seeds_have_partitions_of_their_own_unless_a_key_fixes_one(command: str) -> None:
    def seeds(*words: str) -> list[tuple[int, int | None]]:
        scenarios = [run.loaded.scenario for run in PLANS[command](words).runs]
        return [(each.seed, each.data.partition.seed) for each in scenarios]

    assert seeds() == [(0, 0), (1, 1), (2, 2)]
    assert seeds("data.partition.seed=0") == [(0, 0), (1, 0), (2, 0)]
