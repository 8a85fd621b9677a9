"""A step that is replayed does what the step itself would do, to the bit, over whole rounds and from visit to visit.

The graph here is a stand-in that calls the work which it was given: with the buffers, the step size, the losses and the
counts of the captured step, but no GPU. Whatever a later visit changes must reach it as it must reach a real graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from coordinator.rounds.synchronous import run_rounds
from edge.methods.fedprox import FedProxCorrection
from edge.protocol.config import TrainConfig
from edge.training.block_model import BlockModel
from edge.training.client_update import ClientUpdate, GradientCorrection
from edge.training.cuda_graphs import WARM_UP_STEPS, GraphStep, StepFactory
from edge.training.sgd import Sgd
from tests.toy import Run, batch, direct, federation, play, store, tower, visit, whole

TRAIN = TrainConfig(lr=0.1, lr_decay=0.5, batch=32, local_epochs=2, momentum=0.9, weight_decay=1e-3, clip=1.0)


class Calls:
    """A graph whose work is called, as it was captured: with all that it held of the visit that it was captured in."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs

    def capture(self, work: Callable[[], None]) -> None:
        self._work = work

    def replay(self) -> None:
        self._graphs.replays += 1
        self._work()


class Graphs:
    """Makes graphs, and counts them and their replays."""

    def __init__(self) -> None:
        self.made = self.replays = 0

    def __call__(self) -> Calls:
        self.made += 1
        return Calls(self)


def replayed(folder: Path, graphs: Graphs, method: str, **how: Any) -> Run:
    """A run as `play` gives it, whose steps are replayed."""
    run = federation(folder, method, **how)
    site = direct(run).site
    site.stepper = StepFactory(site.net, site.job.train, graphs)
    try:
        return Run(run, run_rounds(run))
    finally:
        store(run).ledger.close()


@pytest.mark.parametrize(
    ("method", "options", "kinds"),
    [
        ("fedavg", {}, 1),
        ("fedmlb+fedprox", {"mu": 0.1, "order": "GL"}, 1),
        ("scaffold", {}, 1),
        ("fedmlb+feddyn", {"clipped": "ce+linear"}, 1),
        # All 3 pathways in the first round, which sends the whole model, and as many as chosen in the others.
        ("fedbr", {"alpha": 2}, 2),
        ("fedbr", {"alpha": 1, "drop": "exact"}, 2),
        ("fedavg-kd", {"form": "additive"}, 1),
        ("fedavg-fitnet", {}, 1),
        ("fedntd", {}, 1),
        ("fedgkd", {}, 2),  # silent in the first round
        ("fednova", {}, 1),
    ],
)
def test_a_run_of_replayed_steps_ends_in_the_same_bits(
    tmp_path: Path, method: str, options: dict[str, Any], kinds: int
) -> None:
    graphs, query = Graphs(), "SELECT round, client, flops, loss FROM visits"
    plain = play(tmp_path / "plain", method, rounds=3, train=TRAIN, **options)
    again = replayed(tmp_path / "again", graphs, method, rounds=3, train=TRAIN, **options)
    assert np.array_equal(again.model, plain.model)
    assert again.rows(query) == plain.rows(query)
    full_batches = 3 * 2 * sum(samples // 32 for samples in plain.federation.description.samples.tolist())
    assert (graphs.made, graphs.replays) == (kinds, full_batches - kinds * WARM_UP_STEPS)


# --- one visit --------------------------------------------------------------------------------------------------------


def steps(
    half: ClientUpdate, stepper: StepFactory, net: BlockModel, batches: list[tuple[Tensor, Tensor]], **how: Any
) -> list[float]:
    """The losses of a visit that starts where the net stands."""
    about = replace(visit(net), **how)
    half.begin(net, whole(net), {}, about)
    step = stepper.begin(about, half, [])
    for x, y in batches:
        step(half.loss, x, y)
    return [loss.item() for loss in half.losses]


BATCHES = [batch(8, seed) for seed in range(5)]


def test_a_short_batch_runs_as_it_is() -> None:
    graphs, net = Graphs(), tower()
    stepper = StepFactory(net, TrainConfig(batch=8), graphs)
    noted = steps(ClientUpdate({}), stepper, net, [*BATCHES[:4], batch(3, 9), BATCHES[4]])
    assert (graphs.made, graphs.replays) == (1, 5 - WARM_UP_STEPS)
    plain = tower()
    assert (
        steps(ClientUpdate({}), StepFactory(plain, TrainConfig()), plain, [*BATCHES[:4], batch(3, 9), BATCHES[4]])
        == noted
    )
    assert torch.equal(net.flat, plain.flat)
    assert net.executed.tolist() == plain.executed.tolist()


def test_a_step_on_some_blocks_is_another_kind_of_step() -> None:
    nets, graphs = (tower(), tower()), Graphs()
    for net, made in zip(nets, (graphs, None), strict=True):
        half = ClientUpdate({})
        half.begin(net, whole(net), {}, visit(net))
        step = StepFactory(net, TrainConfig(batch=8), made).begin(visit(net), half, [])
        for only in (["b1"], None, ["b4"]):
            for x, y in BATCHES:
                step(half.loss, x, y, only=only)
    assert graphs.made == 3
    assert torch.equal(nets[0].flat, nets[1].flat)


@pytest.mark.parametrize("lr", [0.1, 0.03, 1e-3])
def test_a_step_size_in_a_tensor_gives_the_same_bits(lr: float) -> None:
    number, tensor = tower(), tower()
    for step in (Sgd(number, TRAIN, lr), Sgd(tensor, TRAIN, torch.tensor(lr))):
        for x, y in BATCHES:
            step(lambda net, x, y: F.cross_entropy(net.run(x), y), x, y)
    assert torch.equal(number.flat, tensor.flat)


class Fading(ClientUpdate):
    """Breaks the promise: its loss depends on the round."""

    capturable = True

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        return self.record_loss(F.cross_entropy(net.run(x), y)) / (1 + self.visit.round)


def test_a_replay_knows_nothing_of_a_visit_but_what_is_promised() -> None:
    net, plain = tower(), tower()
    replaying, as_it_is = StepFactory(net, TrainConfig(batch=8), Graphs()), StepFactory(plain, TrainConfig(batch=8))
    for round, same in ((0, True), (1, False)):
        steps(Fading({}), replaying, net, BATCHES, round=round)
        steps(Fading({}), as_it_is, plain, BATCHES, round=round)
        assert torch.equal(net.flat, plain.flat) is same


# --- who is captured --------------------------------------------------------------------------------------------------


class Silent(ClientUpdate):
    """Overrides, and promises nothing."""

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        return self.record_loss(F.cross_entropy(net.run(x), y) if float(x.sum()) > 0 else net.run(x).sum())


class Push(GradientCorrection):
    """Promises nothing either."""


@pytest.mark.parametrize(
    ("half", "corrections", "kind"),
    [
        (ClientUpdate({}), [], GraphStep),
        (ClientUpdate({}), [FedProxCorrection({"mu": 0.1, "half": True})], GraphStep),
        (Silent({}), [], Sgd),
        (ClientUpdate({}), [FedProxCorrection({"mu": 0.1, "half": True}), Push({})], Sgd),
    ],
)
def test_only_halves_that_promise_it_are_captured(
    half: ClientUpdate, corrections: list[GradientCorrection], kind: type
) -> None:
    net = tower()
    assert type(StepFactory(net, TrainConfig(), Graphs()).begin(visit(net), half, corrections)) is kind
    plain = StepFactory(net, TrainConfig()).begin(visit(net), half, corrections)
    assert isinstance(plain, Sgd) and plain.lr == 0.1 and isinstance(plain.lr, float)
