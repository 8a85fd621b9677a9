"""DP-SGD: gradients of single examples, clipped and added up, beside one backward pass for each example."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from edge.protocol.config import ModelConfig, PrivacyConfig, TrainConfig
from edge.protocol.privacy import gaussian
from edge.training.batches import PoissonBatches
from edge.training.block_model import BlockModel
from edge.training.blocks import build
from edge.training.client_update import plain_loss
from edge.training.private_step import ExampleGradients, PrivateBackward, make_private
from edge.training.sgd import local_step
from tests.crossed import every
from tests.toy import CPU, batch, tower

TOKENS = 30


def by_hand(net: BlockModel, x: Tensor, y: Tensor, clip: float) -> tuple[Tensor, list[float]]:
    """The sum of the clipped gradients of single examples, and the norms before, by one backward pass for each."""
    total, norms = torch.zeros_like(net.flat), []
    for one in range(len(y)):
        net.grad.zero_()
        torch.autograd.backward(plain_loss(net, x[one : one + 1], y[one : one + 1]))
        norms.append(float(net.grad.norm()))
        total += net.grad * min(1.0, clip / norms[-1])
    net.grad.zero_()
    return total, norms


@pytest.mark.parametrize(
    ("name", "width", "inputs", "shape", "norm"),
    every(
        2,
        [
            ("digits-cnn", 4, 1, (1, 8, 8), None),
            ("char-lstm", 8, TOKENS, (20,), None),
            ("mlp", 8, 31, (31,), None),
            ("cnn", None, 3, (3, 32, 32), "group"),
            ("resnet18", 4, 3, (3, 32, 32), "group"),
            ("har-cnn", 4, 6, (6, 64), None),
            ("char-transformer", 8, TOKENS, (20,), None),
        ],
    ),
)
def test_clipped_gradients_of_examples_add_up_as_by_one_pass_for_each(
    name: str, width: int | None, inputs: int, shape: tuple[int, ...], norm: str | None
) -> None:
    torch.manual_seed(0)
    net = BlockModel(lambda: build(ModelConfig(name, width=width, norm=norm), 10, inputs), CPU)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn((5, *shape), generator=generator)
    if len(shape) == 1 and inputs == TOKENS:
        x = torch.randint(inputs, (5, *shape), generator=generator)
    y = torch.randint(10, (5,), generator=generator)
    for module in net.modules:
        module.eval()  # dropout draws for each example
    _, norms = by_hand(net, x, y, 1.0)
    clip = sorted(norms)[2]  # some are clipped, some are not
    expected, _ = by_hand(net, x, y, clip)
    losses = ExampleGradients(net, clip).add(x, y)
    torch.testing.assert_close(net.grad, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(losses.mean(), plain_loss(net, x, y).detach(), rtol=1e-5, atol=1e-6)


def test_examples_are_taken_some_at_a_time_with_the_same_sum() -> None:
    net, (x, y) = tower(), batch(7)
    expected, _ = by_hand(net, x, y, 0.5)
    gradients = ExampleGradients(net, 0.5)
    gradients.at_a_time = 3
    assert len(gradients.add(x, y)) == 7
    torch.testing.assert_close(net.grad, expected)


def private(net: BlockModel, noise: float, clip: float, size: int, losses: list[Tensor], **train: float) -> object:
    backward = PrivateBackward(net, PrivacyConfig("example", noise, clip), size, np.random.default_rng(4), losses)
    return make_private(local_step(net, TrainConfig(lr=0.1, **train), 0.1), backward)  # type: ignore[arg-type]


def test_without_noise_and_below_the_clip_it_is_a_step_of_sgd() -> None:
    (x, y), losses = batch(8), list[Tensor]()
    ours, plain = tower(), tower()
    private(ours, 0.0, 1e6, 8, losses, momentum=0.9)(plain_loss, x, y)  # type: ignore[operator]
    local_step(plain, TrainConfig(lr=0.1, momentum=0.9), 0.1)(plain_loss, x, y)
    torch.testing.assert_close(ours.flat, plain.flat)
    assert losses[0].item() == pytest.approx(plain_loss(tower(), x, y).item())


def test_a_batch_without_examples_is_a_step_of_noise_over_the_expected_batch() -> None:
    net, losses = tower(), list[Tensor]()
    before = net.flat.clone()
    private(net, 2.0, 0.5, 4, losses)(plain_loss, *batch(0))  # type: ignore[operator]
    noise = gaussian(net.flat.numel(), np.random.default_rng(4))
    torch.testing.assert_close(net.flat, before - 0.1 * torch.from_numpy(noise) * (2.0 * 0.5) / 4)
    assert losses == [] and net.executed.sum() == 0
    assert net.further_flops == 2 * net.flat.numel()


def test_passes_and_clipping_are_counted() -> None:
    net, losses = tower(), list[Tensor]()
    private(net, 1.0, 1.0, 4, losses)(plain_loss, *batch(3))  # type: ignore[operator]
    # Forward, weight and inner gradients of three examples; no gradient of the first block's input.
    assert net.executed.tolist() == [[3, 3, 3, 0], *[[3, 3, 3, 3]] * 3]
    assert net.further_flops == (4 * 3 + 2) * net.flat.numel()


class Examples:
    """A loader of positions."""

    class profile:  # noqa: N801 - as the loader has it
        varies = False

    device = CPU
    example_nbytes = 4

    def fetch(self, indices: np.ndarray[tuple[int], np.dtype[np.int64]], draws: object = None) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(indices), torch.from_numpy(indices)


def sizes(batches: PoissonBatches) -> Iterator[int]:
    return (len(y) for _, y in batches())


def test_poisson_batches_take_each_example_for_itself() -> None:
    train = TrainConfig(batch=3, local_steps=4000)
    found = PoissonBatches(Examples(), np.arange(6), train, (0, 0, 0))  # type: ignore[arg-type]
    taken = np.array([*sizes(found)])
    assert len(taken) == 4000
    assert taken.mean() == pytest.approx(3.0, abs=0.1)  # standard deviation of the mean 0.02
    assert (taken == 0).mean() == pytest.approx(1 / 64, abs=0.008)
    assert taken.var() == pytest.approx(1.5, abs=0.15)
    again = PoissonBatches(Examples(), np.arange(6), train, (0, 0, 0))  # type: ignore[arg-type]
    assert [*sizes(again)] == taken.tolist()
