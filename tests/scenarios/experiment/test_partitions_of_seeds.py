"""Every command that repeats runs over seeds gives each seed its own partition and fleet, unless a key fixes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from scenarios.experiment import budget, compare, sweep, tune
from scenarios.experiment.experiment import Experiment
from scenarios.experiment.grid import grid_of
from scenarios.papers import reproduce
from scenarios.papers.trial.plan import plan
from scenarios.run import builder

FEDAVG, HELD_OUT = "method=fedavg", "data.validation=0.2"
PLANS: dict[str, Callable[[Sequence[str]], Experiment]] = {
    "sweep": lambda words: sweep.plan(grid_of("digits", [FEDAVG, *words]), seeds=3),
    "compare": lambda words: compare.plan(grid_of("digits", [FEDAVG, *words]), seeds=3),
    "budget": lambda words: budget.plan(grid_of("digits", [FEDAVG, *words]), {"bytes": [1e6]}, seeds=3),
    "tune": lambda words: tune.plan(grid_of("digits", [HELD_OUT, "train.lr=0.1,1", *words]), seeds=3),
    "trial": lambda words: plan(grid_of("digits", ["variant=fedbr", *words]), "bandit", seeds=3),
    "reproduce": lambda words: reproduce.plan(
        "fedbr:fig3", "tiny", grid_of("fedbr:fig3", ["row=FedAvg", "panel=a", *words]), seeds=3
    ),
}


@pytest.mark.parametrize("command", PLANS)
def test_seeds_have_partitions_and_fleets_of_their_own_unless_a_key_fixes_one(command: str) -> None:
    def seeds(*words: str) -> list[tuple[int, int | None, int | None]]:
        scenarios = [run.loaded.scenario for run in PLANS[command](words).run_set.runs]
        return list(dict.fromkeys((each.seed, each.data.partition.seed, each.fleet.seed) for each in scenarios))

    assert seeds() == [(0, 0, 0), (1, 1, 1), (2, 2, 2)]
    assert seeds("data.partition.seed=0") == [(0, 0, 0), (1, 0, 1), (2, 0, 2)]
    assert seeds("fleet.seed=0") == [(0, 0, 0), (1, 1, 0), (2, 2, 0)]


def test_a_sweep_over_seeds_with_a_fleet_of_its_own_has_the_same_devices_and_links_in_every_run() -> None:
    def rates(*words: str) -> list[tuple[list[float], list[float]]]:
        varied = ["fleet.compute_spread=8", "fleet.rates=['1 Mbit/s', '9 Mbit/s']", *words]
        fleets = [builder.fleet(run.loaded) for run in PLANS["sweep"](varied).run_set.runs]
        return [(each.flops_per_second.tolist(), each.up.tolist()) for each in fleets]

    first, second, third = rates("fleet.seed=5")
    assert first == second == third
    first, second, third = rates()
    assert first != second and second != third
