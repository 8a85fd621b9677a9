"""What must hold of FedMLB and FedProx over whole rounds: what is neutral, what travels, how strongly a term pulls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from edge.methods.fedprox import FedProxCorrection
from edge.protocol.config import TrainConfig
from edge.training.block_model import BlockModel
from edge.training.sgd import Sgd
from tests.toy import batch, play, tower, visit, whole

CLIPPED = TrainConfig(lr=0.1, batch=64, clip=0.5, weight_decay=1e-3)


@pytest.mark.parametrize("options", [{"lambda1": 0, "lambda2": 0}, {"pathways": []}, {"pathways": [], "order": "GL"}])
def test_fedmlb_without_its_terms_is_fedavg_to_the_bit(tmp_path: Path, options: dict[str, object]) -> None:
    plain = play(tmp_path / "fedavg", train=CLIPPED)
    assert np.array_equal(play(tmp_path / "fedmlb", "fedmlb", train=CLIPPED, **options).model, plain.model)


def test_fedmlb_sends_what_fedavg_sends(tmp_path: Path) -> None:
    runs = [play(tmp_path / name, name, rounds=1) for name in ("fedavg", "fedmlb")]
    fedavg, fedmlb = (run.rows("SELECT client, direction, slot, key, nbytes FROM transfers") for run in runs)
    assert fedavg == fedmlb


def test_fedprox_with_mu_0_is_fedavg_to_the_bit(tmp_path: Path) -> None:
    plain = play(tmp_path / "fedavg", train=CLIPPED)
    assert np.array_equal(play(tmp_path / "fedprox", "fedprox", train=CLIPPED, mu=0.0).model, plain.model)


def test_fedproxs_first_step_is_fedavgs_to_the_bit(tmp_path: Path) -> None:
    train = TrainConfig(lr=0.1, batch=64, clip=0.5, weight_decay=1e-3, local_steps=1)
    plain = play(tmp_path / "fedavg", train=train, rounds=1)
    assert np.array_equal(play(tmp_path / "fedprox", "fedprox", train=train, rounds=1, mu=10.0).model, plain.model)


# --- on a convex problem: softmax regression --------------------------------------------------------------------------


def cross_entropy(net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net.run(x), y)


def distance(mu: float, lr: float, steps: int = 30, half: bool = True) -> float:
    """‖θ_i − θ‖ after local steps from where the visit starts."""
    net = tower((5, 3))
    start = net.flat.clone()
    prox = FedProxCorrection({"mu": mu, "half": half})
    prox.begin(net, whole(net), {}, visit(net))
    step = Sgd(net, TrainConfig(), lr, [prox.correct])
    for _ in range(steps):
        step(cross_entropy, *batch(32))
    return float(torch.linalg.vector_norm(net.flat - start))


def test_a_stronger_pull_keeps_the_local_model_nearer() -> None:
    distances = [distance(mu, lr=0.05) for mu in (0.0, 0.1, 1.0, 10.0)]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 5 * distances[-1]


def test_an_endless_pull_keeps_the_local_model_where_it_was() -> None:
    assert distance(1e6, lr=1e-6) < 1e-5


def test_without_the_half_the_pull_is_twice_as_strong() -> None:
    assert distance(0.5, lr=0.05, half=False) == distance(1.0, lr=0.05)


def test_the_pull_by_hand() -> None:
    net = tower((5, 3))
    prox = FedProxCorrection({"mu": 0.5, "half": True})
    prox.begin(net, whole(net), {}, visit(net))
    net.flat.add_(2.0)
    net.grad.fill_(1.0)
    prox.correct(net)
    assert torch.allclose(net.grad, torch.tensor(2.0), rtol=0, atol=1e-6)  # 1 + 0.5 x 2
