"""A step that is replayed does what the step itself would do, to the bit, over whole rounds and from visit to visit.

The graph here is a stand-in that calls the work which it was given: with the buffers, the step size, the losses and the
counts of the captured step, but no GPU. Whatever a later visit changes must reach it as it must reach a real graph.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coordinator.rounds.synchronous import run_rounds
from edge.methods.fedprox import FedProxCorrection
from edge.protocol.config import ModelConfig, TrainConfig
from edge.protocol.options.base import Options
from edge.protocol.options.fedprox import FedProxOptions
from edge.training.block_model import BlockModel
from edge.training.client_update import ClientUpdate, GradientCorrection
from edge.training.cuda_graphs import WARM_UP_STEPS, GraphStep, StepFactory
from edge.training.kernel_tape import KernelTape, kernel_tapes
from edge.training.sgd import Sgd
from tests.crossed import every
from tests.toy import Run, batch, direct, federation, play, store, tower, visit, whole

TRAIN = TrainConfig(lr=0.1, lr_decay=0.5, batch=32, local_epochs=1, momentum=0.9, weight_decay=1e-3, clip=1.0)

NORMALISED = ModelConfig("digits-cnn", width=4, norm="batch")


class Graphs:
    """Makes graphs whose work is called as it was captured, and counts them and their replays."""

    def __init__(self) -> None:
        self.made = self.replays = 0

    def __call__(self) -> Calls:
        self.made += 1
        return Calls(self)


class Calls:
    """One such graph."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs

    def capture(self, work: Callable[[], None]) -> None:
        self._work = work

    def replay(self) -> None:
        self._graphs.replays += 1
        self._work()


REPLAYED: list[tuple[str, dict[str, Any], int]] = [
    ("fedavg", {}, 1),
    ("fedmlb+fedprox", {"mu": 0.1, "order": "GL"}, 1),
    ("fedmlb+feddyn", {"clipped": "ce+linear"}, 1),
    # All 3 pathways in the first round, which sends the whole model, and as many as chosen in the others.
    ("fedbr", {"alpha": 2}, 2),
    ("fedavg-kd", {"form": "additive"}, 1),
    ("fedgkd", {}, 2),  # silent in the first round
    ("fedalign", {"multiple": 2}, 1),
    # In the first round no running statistics have been updated, and the frozen model uses those of batches.
    ("fedbr", {"alpha": 2, "period": 0, "model": NORMALISED}, 2),
    ("moon", {}, 1),
    # Each client has its own shift, at one address.
    ("calibrated", {}, 1),
    ("fedmlb+calibrated", {"form": "margin"}, 1),
]


@pytest.mark.parametrize(("method", "options", "kinds"), every(6, REPLAYED))
def test_a_run_of_replayed_steps_ends_in_the_same_bits(
    tmp_path: Path, method: str, options: dict[str, Any], kinds: int
) -> None:
    graphs, query = Graphs(), "SELECT round, client, flops, loss FROM visits"
    plain = play(tmp_path / "plain", method, rounds=3, train=TRAIN, **options)
    run = federation(tmp_path / "again", method, rounds=3, train=TRAIN, **options)
    site = direct(run).site
    site.stepper = StepFactory(site.net, site.job.train, graphs)
    again = Run(run, run_rounds(run))
    store(run).ledger.close()
    assert np.array_equal(again.model, plain.model)
    assert again.rows(query) == plain.rows(query)
    full_batches = 3 * sum(samples // 32 for samples in plain.federation.description.samples.tolist())
    assert (graphs.made, graphs.replays) == (kinds, full_batches - kinds * WARM_UP_STEPS)


@pytest.mark.parametrize(("method", "options", "kinds"), every(6, REPLAYED, first=1))
def test_a_run_of_taped_steps_ends_in_the_same_bits(
    tmp_path: Path, method: str, options: dict[str, Any], kinds: int
) -> None:
    made, tapes, query = list[KernelTape](), kernel_tapes(), "SELECT round, client, flops, loss FROM visits"

    def tape() -> KernelTape:
        made.append(tapes())
        return made[-1]

    run, again = (federation(tmp_path / name, method, rounds=3, train=TRAIN, **options) for name in ("plain", "taped"))
    direct(run).site.stepper = StepFactory(direct(run).site.net, TRAIN)
    direct(again).site.stepper = StepFactory(direct(again).site.net, TRAIN, tapes=tape)
    results = []
    for each in (run, again):
        results.append(Run(each, run_rounds(each)))
        store(each).ledger.close()
    assert np.array_equal(results[0].model, results[1].model)
    assert results[0].rows(query) == results[1].rows(query)
    assert len(made) >= kinds and all(tape.nbytes for tape in made)


def test_a_short_batch_runs_as_it_is_and_a_step_on_some_blocks_is_another_kind_of_step() -> None:
    nets, graphs, losses = (tower(), tower()), Graphs(), list[list[float]]()
    for net, made in zip(nets, (graphs, None), strict=True):
        client_side = ClientUpdate(Options())
        client_side.begin(net, whole(net), {}, visit(net))
        step = StepFactory(net, TrainConfig(batch=8), made).begin(visit(net), client_side, [])
        for only in (["b1"], None, ["b4"]):
            for size in (8, 8, 8, 8, 3, 8):
                step(client_side.loss, *batch(size, len(client_side.losses)), only=only)
        losses.append([loss.item() for loss in client_side.losses])
    assert (graphs.made, graphs.replays) == (3, 3 * (5 - WARM_UP_STEPS))
    assert losses[0] == losses[1]
    assert torch.equal(nets[0].flat, nets[1].flat)
    assert nets[0].executed.tolist() == nets[1].executed.tolist()


class Shrinking(ClientUpdate):
    """Halves gradients, before corrections."""

    capturable = True

    def correct(self, net: BlockModel) -> None:
        net.grad.mul_(0.5)


@pytest.mark.parametrize("graphs", [None, Graphs()])
def test_an_objective_corrects_gradients_before_its_corrections(graphs: Graphs | None) -> None:
    net, client_side, push = tower(), Shrinking(Options()), FedProxCorrection(FedProxOptions(mu=1.0, half=True))
    client_side.begin(net, whole(net), {}, visit(net))
    push.begin(net, {}, {}, visit(net))
    start = net.flat.clone()
    torch.autograd.backward(client_side.loss(net, *batch()))
    slope = net.grad.clone()
    step = StepFactory(net, TrainConfig(batch=8), graphs).begin(visit(net), client_side, [push])
    step(client_side.loss, *batch())
    assert torch.allclose(net.flat, start - 0.1 * 0.5 * slope)
    net.flat.copy_(start + 1.0)
    step.zero()
    step.apply()
    assert torch.allclose(net.flat, start + 1.0 - 0.1 * 1.0)  # the proximal term is not halved


class Silent(ClientUpdate):
    """Promises nothing."""


class Push(GradientCorrection):
    """Promises nothing either."""


@pytest.mark.parametrize(
    ("client_side", "corrections", "kind"),
    [
        (ClientUpdate(Options()), [], GraphStep),
        (ClientUpdate(Options()), [FedProxCorrection(FedProxOptions(mu=0.1, half=True))], GraphStep),
        (Silent(Options()), [], Sgd),
        (ClientUpdate(Options()), [FedProxCorrection(FedProxOptions(mu=0.1, half=True)), Push(Options())], Sgd),
    ],
)
def test_only_client_sides_that_promise_it_are_captured(
    client_side: ClientUpdate, corrections: list[GradientCorrection], kind: type
) -> None:
    net = tower()
    assert type(StepFactory(net, TrainConfig(), Graphs()).begin(visit(net), client_side, corrections)) is kind
    plain = StepFactory(net, TrainConfig()).begin(visit(net), client_side, corrections)
    assert isinstance(plain, Sgd) and plain.lr == 0.1 and isinstance(plain.lr, float)
