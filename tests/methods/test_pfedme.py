"""pFedMe: the mix by β, the price of K steps per minibatch, who has a personal model; and clients on ½‖θ − 1‖²."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coordinator.methods.pfedme import compute
from edge.methods.pfedme import PERSONAL, PFedMeUpdate
from edge.protocol import client_state
from edge.protocol.config import ModelConfig, Norm, TrainConfig
from edge.protocol.options.pfedme import PFedMeOptions
from edge.protocol.payload import MODEL, Vector
from edge.training.block_model import BlockModel
from edge.training.sgd import Sgd
from tests.toy import batch, one_example, play, state_file, tower, visit, whole

BRIEF = TrainConfig(lr=0.05, batch=32, local_steps=2)


@pytest.mark.parametrize("norm", [None, "batch"])
@pytest.mark.parametrize("still", [{"lam": 0}, {"beta": 0}], ids=str)
def test_the_global_model_never_moves_without_pull_or_mix(
    still: dict[str, float], norm: Norm | None, tmp_path: Path
) -> None:
    """Neither its parameters nor its running statistics."""
    model = ModelConfig("digits-cnn", width=2, norm=norm)
    run = play(tmp_path, "pfedme", train=BRIEF, rounds=1, model=model, **still)
    assert np.array_equal(run.model, run.start)
    state = client_state.read(state_file(run.federation, 0))
    assert list(state) == [PERSONAL]
    personal = np.concatenate([vector.data for vector in state[PERSONAL].values()])
    assert not np.array_equal(personal, run.start)


def test_beta_is_the_part_of_the_way_to_the_mean(tmp_path: Path) -> None:
    whole, double = (
        play(tmp_path / str(beta), "pfedme", train=BRIEF, rounds=1, outer_lr=0.05, beta=beta) for beta in (1.0, 2.0)
    )
    way = whole.model.astype(np.float64) - whole.start
    assert np.abs(way).max() > 1e-3
    assert np.abs(double.model - (double.start + 2 * way)).max() < 1e-7


def test_k_steps_per_minibatch_are_charged_and_stored_one_by_one() -> None:
    plan = compute(one_example(2, np.ones((2, 4)), PFedMeOptions(inner_steps=3)))
    # forward, weight gradient, inner gradient, input gradient; none of the input of the first block
    assert plan.passes.tolist() == [[3, 3, 3, 0], [3, 3, 3, 3]]
    assert plan.steps == 3
    assert plan.stored_forwards.tolist() == [1, 1]


def test_a_personal_model_is_not_sent_to_be_evaluated(tmp_path: Path) -> None:
    run = play(tmp_path, "pfedme", train=BRIEF, participants=1, evaluation={"charged": True})
    trained = dict(run.rows("SELECT client, MIN(round) FROM visits WHERE kind = 'train' GROUP BY client"))
    sent = run.rows("SELECT round, client, bytes_down FROM visits WHERE kind = 'evaluate'")
    model = run.federation.description.layout.nbytes()
    assert {(nbytes > model, trained.get(client, 2) <= round) for round, client, nbytes in sent} == {
        (True, False),
        (False, True),
    }


# --- the client side --------------------------------------------------------------------------------------------------


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
