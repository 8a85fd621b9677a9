"""Messages of a model that is cut: clipped, with noise, and as codecs give them back, on both ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from edge.protocol.codecs.codecs import Codecs
from edge.protocol.config import CodecConfig, Cut
from edge.training.cuts import StepMessages, Way

BLOCKS = ("conv1", "conv2", "conv3", "head")


def way(
    is_u_shaped: bool = False, codec: tuple[dict[str, Any], ...] = (), clip: float | None = None, noise: float = 0.0
) -> dict[int, Way]:
    cut = Cut("conv1", is_u_shaped, clip, noise, is_shared=False)
    codecs = Codecs(CodecConfig(steps=codec), 0, {}).steps
    return StepMessages(cut, codecs, np.random.default_rng(0)).ways(BLOCKS)


def test_both_cuts_of_a_u_shape_send() -> None:
    assert [*way()] == [0]
    assert [*way(is_u_shaped=True)] == [0, 2]


def test_numbers_of_16_bits_are_the_nearest_and_no_larger_than_there_are() -> None:
    sent = way(codec=({"kind": "fp16"},))[0](torch.tensor([[1.0001, 1e6, -1e6]]))
    assert sent.tolist() == [[1.0, 65_504.0, -65_504.0]]


def test_a_codec_is_of_activations_and_of_the_gradient_that_comes_down() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    sent = way(codec=({"kind": "topk", "ratio": 0.67},))[0](x)
    assert sent.tolist() == [[0.0, 2.0, 3.0]]
    torch.autograd.backward((sent * torch.tensor([[1.27, 0.5, 0.006]])).sum())
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.tensor([[1.27, 0.5, 0.0]]))


def test_numbers_that_are_not_finite_travel_as_they_are() -> None:
    sent = way(codec=({"kind": "fp16"},))[0](torch.tensor([[float("inf"), 1.0001]]))
    torch.testing.assert_close(sent, torch.tensor([[float("inf"), 1.0001]]))


def test_each_examples_activations_are_clipped_and_their_gradient_with_them() -> None:
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], requires_grad=True)
    sent = way(clip=1.0)[0](x)
    torch.testing.assert_close(sent, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    torch.autograd.backward(sent[:2, 0].sum())
    assert x.grad is not None
    # d/dx of x / |x| is (1 - 0.36) / 5 and -0.48 / 5; what is not clipped passes its gradient on.
    torch.testing.assert_close(x.grad, torch.tensor([[0.128, -0.096], [1.0, 0.0], [0.0, 0.0]]))


def test_noise_is_of_so_many_clips_and_new_in_each_step() -> None:
    send = way(clip=2.0, noise=1.5)[0]
    first, second = (send(torch.zeros(100, 100)) for _ in range(2))
    assert not torch.equal(first, second)
    assert float(torch.cat((first, second)).std()) == pytest.approx(3.0, rel=0.02)
    assert torch.equal(way(clip=2.0, noise=1.5)[0](torch.zeros(100, 100)), first)


def test_the_servers_outputs_have_no_noise() -> None:
    x: Tensor = torch.ones(2, 3)
    assert torch.equal(way(is_u_shaped=True, clip=0.1, noise=1.0)[2](x), x)
