"""Messages of a model that is cut: numbers as they come, and gradients that are rounded on their way back."""

from __future__ import annotations

import torch

from edge.protocol.config import ModelConfig
from edge.training.block_model import BlockModel
from edge.training.blocks import build
from edge.training.cuts import Sent, rounded
from tests.toy import CPU


def test_numbers_of_8_bits_are_multiples_of_a_127th_of_the_largest() -> None:
    x = torch.tensor([[0.0, 1.27, -0.014], [0.006, 0.004, -1.0]])
    expected = torch.tensor([[0.0, 1.27, -0.01], [0.01, 0.0, -1.0]])
    torch.testing.assert_close(rounded(x, "int8"), expected)
    assert torch.equal(rounded(torch.zeros(3), "int8"), torch.zeros(3))


def test_numbers_of_16_bits_are_the_nearest_and_no_larger_than_there_are() -> None:
    assert rounded(torch.tensor([1.0001, 1e6, -1e6]), "fp16").tolist() == [1.0, 65_504.0, -65_504.0]


def test_a_gradient_comes_down_in_as_many_bits() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    (Sent.apply(x, "int8") * torch.tensor([1.27, 0.504, 0.006])).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.tensor([1.27, 0.50, 0.01]))


def test_only_training_sends() -> None:
    torch.manual_seed(0)
    net = BlockModel(lambda: build(ModelConfig("digits-cnn", 4), 10, 1), CPU)
    x = torch.randn(2, 1, 8, 8)
    plain = net.run(x)
    net.cuts = {1: "int8"}
    assert not torch.equal(net.run(x), plain)
    net.train_mode(False)
    assert torch.equal(net.run(x), plain)
