"""pFedMe's client side on f(θ) = ½‖θ − 1‖², where every step can be done by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from edge.methods.pfedme import PERSONAL, PFedMeUpdate
from edge.protocol.config import TrainConfig
from edge.protocol.options.pfedme import PFedMeOptions
from edge.protocol.payload import MODEL, Vector
from edge.training.block_model import BlockModel
from edge.training.sgd import Sgd
from tests.toy import batch, tower, visit, whole


class OnQuadratic(PFedMeUpdate):
    """The loss does not depend on examples; its gradient is θ − 1."""

    def loss(self, net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        parameters = [each for module in net.modules for each in module.parameters()]
        return self.record_loss(sum(((each - 1) ** 2).sum() / 2 for each in parameters))  # type: ignore[arg-type]


def trained(minibatches: int, lr: float, **options: Any) -> tuple[BlockModel, PFedMeUpdate]:
    """After a visit that starts from w = 0."""
    net = tower((5, 3))
    net.flat.zero_()
    client_side = OnQuadratic(PFedMeOptions(**options))
    client_side.begin(net, whole(net), {}, visit(net))
    step = Sgd(net, TrainConfig(), lr, [client_side.correct])
    client_side.train(net, lambda: iter([batch()] * minibatches), step)
    return net, client_side


@pytest.mark.parametrize(
    ("minibatches", "reset", "theta", "w"),
    [
        # θ: 0 − 0.1·(−1) = 0.1, and 0.1 − 0.1·(−0.9 + 2·0.1) = 0.17; w: 0.25·2·0.17
        (1, False, 0.17, 0.085),
        # θ: 0.17 + 0.1·0.66 = 0.236, and 0.236 + 0.1·0.462; w: 0.085 + 0.5·(0.2822 − 0.085)
        (2, False, 0.2822, 0.1836),
        # θ: 0.085 + 0.1·0.915 = 0.1765, and 0.1765 + 0.1·0.6405; w: 0.085 + 0.5·(0.24055 − 0.085)
        (2, True, 0.24055, 0.162775),
    ],
)
def test_two_inner_steps_per_minibatch_by_hand(minibatches: int, reset: bool, theta: float, w: float) -> None:
    net, client_side = trained(minibatches, lr=0.1, inner_steps=2, lam=2.0, outer_lr=0.25, reset=reset)
    assert torch.allclose(net.flat, torch.tensor(theta), rtol=0, atol=1e-6)
    assert torch.allclose(client_side.w, torch.tensor(w), rtol=0, atol=1e-6)


def test_many_inner_steps_reach_the_proximal_point() -> None:
    """argmin ½(θ − 1)² + (λ/2)(θ − w)² = (1 + λw)/(1 + λ)."""
    net, _ = trained(1, lr=0.1, inner_steps=100, lam=4.0)
    assert torch.allclose(net.flat, torch.tensor(1 / 5), rtol=0, atol=1e-6)


def test_where_outer_lr_times_lam_is_one_the_global_model_is_the_personal_one() -> None:
    for minibatches in (1, 2, 3):
        net, client_side = trained(minibatches, lr=0.1, lam=3.0, outer_lr=1 / 3)
        assert torch.equal(net.flat, client_side.w)


def test_without_pull_the_global_model_stays() -> None:
    net, client_side = trained(3, lr=0.1, lam=0.0)
    assert (net.flat > 0.1).all()
    assert not client_side.w.any()


def test_w_goes_up_and_the_personal_model_is_kept_and_evaluated() -> None:
    net, client_side = trained(1, lr=0.1, inner_steps=2, lam=2.0, outer_lr=0.25)
    up, state, _ = client_side.end(net, replace(visit(net), up=("b1",), keep=("b1",)))
    assert up[MODEL]["b1"].data.tolist() == state[MODEL]["b1"].data.tolist() == pytest.approx([0.085] * 18)
    kept = {PERSONAL: {"b1": Vector(state[PERSONAL]["b1"].data.copy())}}
    w = whole(net)
    w[MODEL]["b1"].data[:] = 0.5
    for known, expected in ((kept, 0.17), ({}, 0.5)):
        client_side.prepare_score(net, w, known, visit(net))
        assert torch.allclose(net.flat, torch.tensor(expected), rtol=0, atol=1e-6)
