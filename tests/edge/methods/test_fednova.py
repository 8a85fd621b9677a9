"""FedNova's client side: what it reports is how far steps really lead on gradients that are all 1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from edge.methods.fednova import FedNovaUpdate, normaliser
from edge.methods.fedprox import FedProxCorrection
from edge.protocol.config import TrainConfig, TrainingPlan
from edge.protocol.options.base import Options, joined
from edge.protocol.options.fednova import FedNovaOptions
from edge.protocol.options.fedprox import FedProxOptions
from edge.training.block_model import BlockModel
from edge.training.client_update import ClientUpdate
from edge.training.sgd import Sgd
from tests.toy import batch, gradient, tower, visit, whole


def nova(net: BlockModel, steps: int, lr: float, train: TrainConfig, **others: Any) -> FedNovaUpdate:
    """FedNova's client side at the start of a visit of so many steps, with options of corrections beside its own."""
    types = (FedNovaOptions, FedProxOptions) if others else (FedNovaOptions,)
    client_side = FedNovaUpdate(joined(types)(**others))
    client_side.begin(
        net, whole(net), {}, replace(visit(net), plan=TrainingPlan(steps, steps * 8, steps), lr=lr, train=train)
    )
    return client_side


@pytest.mark.parametrize("momentum", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
@pytest.mark.parametrize("prox", [{}, {"mu": 0.5, "half": True}, {"mu": 0.5, "half": False}])
def test_the_normaliser_is_how_far_steps_on_an_even_slope_lead(momentum: dict[str, Any], prox: dict[str, Any]) -> None:
    net, train, lr = tower(), TrainConfig(**momentum), 0.25
    client_side, start = nova(net, 7, lr, train, **prox), net.flat.clone()
    corrections = [FedProxCorrection(FedProxOptions(**prox))] if prox else []
    for one in corrections:
        one.begin(net, whole(net), {}, visit(net))
    step = Sgd(net, train, lr, [one.correct for one in corrections])
    for _ in range(7):  # every gradient is 1
        step(lambda net, x, y: torch.stack([p.sum() for m in net.modules for p in m.parameters()]).sum(), *batch())
    assert torch.allclose((start - net.flat) / lr, torch.tensor(client_side.normaliser), rtol=1e-5)
    assert client_side.end(net, visit(net))[2]["normaliser"] == client_side.normaliser


def test_the_normaliser_in_closed_form() -> None:
    for steps in (0, 1, 2, 10):
        assert normaliser(steps, TrainConfig()) == steps
        for rho in (0.5, 0.9):
            closed = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
            assert normaliser(steps, TrainConfig(momentum=rho)) == pytest.approx(closed)
        # With ever less momentum it is the number of steps.
        assert normaliser(steps, TrainConfig(momentum=1e-9)) == pytest.approx(steps)
        assert normaliser(steps, TrainConfig(), 0.2) == pytest.approx(sum(0.8**k for k in range(steps)))


def test_a_pull_that_takes_back_the_whole_way_is_refused() -> None:
    why = r"^train\.lr = 0\.25: with the proximal term's mu = 8 the normaliser of 2 steps is 0; lr times mu must be"
    with pytest.raises(ValueError, match=why):
        nova(tower(), 2, 0.25, TrainConfig(), mu=4.0, half=False)
    assert nova(tower(), 0, 0.25, TrainConfig(), mu=8.0).normaliser == 0


def test_local_training_is_fedavgs() -> None:
    net = tower()
    client_side = nova(net, 1, 0.1, TrainConfig())
    assert np.array_equal(gradient(client_side, net, *batch()), gradient(ClientUpdate(Options()), net, *batch()))
