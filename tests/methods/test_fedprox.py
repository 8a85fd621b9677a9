"""FedProx on a convex problem, softmax regression: how strongly its term pulls."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from edge.methods.fedprox import FedProxCorrection
from edge.protocol.config import TrainConfig
from edge.protocol.options.fedprox import FedProxOptions
from edge.training.block_model import BlockModel
from edge.training.sgd import Sgd
from tests.toy import batch, tower, visit, whole


def cross_entropy(net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net.run(x), y)


def distance(mu: float, lr: float, steps: int = 30, half: bool = True) -> float:
    """‖θ_i − θ‖ after local steps from where the visit starts."""
    net = tower((5, 3))
    start = net.flat.clone()
    prox = FedProxCorrection(FedProxOptions(mu=mu, half=half))
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
    prox = FedProxCorrection(FedProxOptions(mu=0.5, half=True))
    prox.begin(net, whole(net), {}, visit(net))
    for away, pulled in ((0.0, 1.0), (2.0, 2.0)):  # 1, and 1 + 0.5 x 2
        net.flat.add_(away)
        net.grad.fill_(1.0)
        prox.correct(net)
        assert torch.allclose(net.grad, torch.tensor(pulled), rtol=0, atol=1e-6)
