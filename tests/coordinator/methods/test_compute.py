"""One compute plan per visit is what the clock charges and what the worker counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coordinator.methods.compute import Compute, fedavg_passes
from coordinator.methods.registry import resolve
from coordinator.rounds.run import RunFailed
from edge.protocol.config import PartitionConfig, TrainConfig
from edge.protocol.options.base import Options
from tests.toy import Run, one_example, play

TRAIN = TrainConfig(lr=0.1, batch=32, local_steps=7)
IID = PartitionConfig("iid")
SECONDS = "SELECT compute_end_s - down_end_s FROM visits ORDER BY visit"


def run(folder: Path, name: str, **how: object) -> Run:
    return play(folder, f"tests.plugins.drawn:{name}", train=TRAIN, partition=IID, **how)


def test_a_spec_foresees_what_its_client_side_draws(tmp_path: Path) -> None:
    flops = [
        value for (value,) in run(tmp_path, "DRAWN", rounds=3).rows("SELECT flops FROM visits ORDER BY round, client")
    ]
    assert len(flops) == 12
    assert len(set(flops)) == 6  # visits differ, and each was as foreseen


def test_a_plan_that_is_an_expectation_is_charged_and_bounds_the_workers_count(tmp_path: Path) -> None:
    expected = run(tmp_path / "expected", "EXPECTED")
    assert len(set(expected.rows("SELECT flops FROM visits"))) < 3  # the plan's, which differ with the examples alone
    with pytest.raises(RunFailed, match=r"client \d, round 1: executed .* the spec of tests.plugins.drawn:TOO_LITTLE"):
        run(tmp_path / "little", "TOO_LITTLE")


def test_each_phase_of_training_has_the_overhead_of_its_steps(tmp_path: Path) -> None:
    both, one = (run(tmp_path / name, name, rounds=1) for name in ("TWO_PHASES", "ONE_FORESEEN"))
    fleet = both.federation.clock.fleet
    overheads = [7 * fleet.devices[device].step_seconds for device in fleet.device_of.tolist()]
    longer = np.array(both.rows(SECONDS))[:, 0] - np.array(one.rows(SECONDS))[:, 0]
    assert longer == pytest.approx(overheads)
    assert both.rows("SELECT DISTINCT steps FROM visits") == [(14,)]


def test_batches_are_those_of_local_training() -> None:
    context = one_example(1, np.zeros((1, 4)), Options())
    for train, samples, sizes in (
        (TrainConfig(batch=4, local_epochs=2), 10, [4, 4, 2, 4, 4, 2]),
        (TrainConfig(batch=4, drop_last=True), 10, [4, 4]),
        (TrainConfig(batch=4, local_steps=4), 5, [4, 1, 4, 1]),
        (TrainConfig(batch=4), 0, []),
    ):
        plan = train.plan(samples)
        found = type(context)(context.layout, None, {}, train, plan, samples, context.flops).batches
        assert found == sizes
        assert sum(found) == plan.samples


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (Compute(np.ones((3, 4)), 1, np.ones(2)), r"passes has shape \(3, 4\); the model's is \(2, 4\)"),
        (Compute(-np.ones((2, 4)), 1, np.ones(2)), "passes has a number that is negative or not finite"),
        (Compute(np.ones((2, 4)), 1, np.ones(2), further_flops=float("nan")), "further_flops = nan"),
        (Compute(np.ones((2, 4)), 1, np.ones(2), further_flops=-25.0), "further_flops = -25.0.* at least 0"),
        (Compute(np.ones((2, 4)), -1, np.ones(2)), "steps = -1"),
    ],
)
def test_a_plan_that_no_visit_can_have_is_refused(compute: Compute, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compute.check(3 * np.ones((2, 4)))


def test_a_frozen_suffix_of_fedmlb_stores_activations_and_a_teacher_does_not() -> None:
    mlb, teacher = (resolve(name) for name in ("fedmlb", "fedavg-kd"))
    stored = [
        method.objective.costs.compute(one_example(3, np.zeros((3, 4)), method.options())).stored_forwards.tolist()
        for method in (mlb, teacher)
    ]
    assert stored == [[1, 2, 3], [1, 1, 1]]
    assert fedavg_passes(2).tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
