"""One compute plan per visit is what the clock charges and what the worker counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from coordinator.methods.compute import Compute, ComputeContext, fedavg_passes, forward_passes, trained
from coordinator.methods.registry import resolve
from coordinator.methods.spec import Costs
from coordinator.rounds.policy import RoundPolicy
from coordinator.rounds.run import RunFailed
from edge.protocol.config import PartitionConfig, TrainConfig
from edge.protocol.payload import Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import Batches, ClientUpdate, Step, VisitContext
from tests.toy import Run, objective, one_example, play

TRAIN = TrainConfig(lr=0.1, batch=32, local_steps=7)
IID = PartitionConfig("iid")


MOST_FORWARDS = 3


def drawn(context: ComputeContext) -> Compute:
    """The draws of the client side, in its order: further forward passes of each batch."""
    rng = context.rng("drawn")
    further = sum(int(rng.integers(MOST_FORWARDS)) * examples for examples in context.batches)
    plain = trained(context, fedavg_passes(context.blocks))
    return replace(plain, passes=plain.passes + forward_passes(context.blocks, further))


def expected(context: ComputeContext) -> Compute:
    """The mean of the draws."""
    mean = (MOST_FORWARDS - 1) / 2
    passes = fedavg_passes(context.blocks) + forward_passes(context.blocks, mean)
    return replace(trained(context, passes), exact=False)


def too_little(context: ComputeContext) -> Compute:
    """Less than a tenth of what is executed."""
    return replace(trained(context, fedavg_passes(context.blocks) / 100), exact=False)


def two_phases(context: ComputeContext) -> Compute:
    """Twice the local epochs."""
    return replace(trained(context, 2 * fedavg_passes(context.blocks)), steps=2 * context.plan.steps)


class DrawnForwards(ClientUpdate):
    """FedAvg, with a drawn number of further forward passes of each batch."""

    def begin(self, net: BlockModel, down: Payload, state: Payload, visit: VisitContext) -> None:
        super().begin(net, down, state, visit)
        self.draws = visit.rng("drawn")

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            for _ in range(int(self.draws.integers(MOST_FORWARDS))):
                net.run(x)
        return super().loss(net, x, y)


class TwoPhases(ClientUpdate):
    """FedAvg's training, twice."""

    def train(self, net: BlockModel, batches: Batches, step: Step) -> None:
        for _ in range(2):
            super().train(net, batches, step)


METHODS = {
    name: objective(name, f"{__name__}:{client}", costs=Costs(compute=plan))
    for name, client, plan in (
        ("drawn", "DrawnForwards", drawn),
        ("expected", "DrawnForwards", expected),
        ("too-little", "DrawnForwards", too_little),
        ("two-phases", "TwoPhases", two_phases),
        ("one-foreseen", "TwoPhases", lambda context: replace(two_phases(context), steps=context.plan.steps)),
    )
}


def run(folder: Path, name: str, **how: object) -> Run:
    return play(folder, METHODS[name], train=TRAIN, partition=IID, **how)


def test_a_plan_that_is_an_expectation_is_charged_and_bounds_the_workers_count(tmp_path: Path) -> None:
    expected = run(tmp_path / "expected", "expected")
    assert len(set(expected.rows("SELECT flops FROM visits"))) < 3  # the plan's, which differ with the examples alone
    with pytest.raises(RunFailed, match=r"client \d, round 1: executed .* the spec of too-little"):
        run(tmp_path / "little", "too-little")


@pytest.mark.parametrize("rules", [RoundPolicy(), RoundPolicy("fedbuff", buffer=3)], ids=lambda rules: rules.policy)
def test_visits_with_partial_work_are_charged_for_the_epochs_that_they_do(tmp_path: Path, rules: RoundPolicy) -> None:
    train = TrainConfig(lr=0.1, batch=32, local_epochs=4, partial_work=0.9)
    made = play(tmp_path, train=train, partition=IID, rounds=3, rules=rules)  # refuses other counts of its workers
    key, held = "round" if rules.policy == "sync" else "visit", made.federation.description.samples
    visits = made.rows(f"SELECT {key}, client, samples, flops FROM visits WHERE kind = 'train' ORDER BY visit")
    epochs = [train.of_visit(made.federation.job.seed, number, client).local_epochs for number, client, *_ in visits]
    assert len(set(epochs)) > 2
    assert [samples for *_, samples, _ in visits] == [n * held[row[1]] for n, row in zip(epochs, visits, strict=True)]
    per_example = visits[0][3] / visits[0][2]
    assert [flops for *_, flops in visits] == pytest.approx([per_example * row[2] for row in visits])


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (Compute(np.ones((3, 4)), 1, np.ones(2)), r"passes has shape \(3, 4\); the model's is \(2, 4\)"),
        (Compute(-np.ones((2, 4)), 1, np.ones(2)), "passes has a number that is negative or not finite"),
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
