"""FLOPs of what a ClientApp computes, by hand."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import nn

from edge.training.counts import count_flops


def _counted() -> Any:
    """Imported late, since it imports what torch compiles with: seconds, in each process that collects tests."""
    pytest.importorskip("flwr", reason="needs Flower: pip install 'fedbr-edge[flower]'")
    return importlib.import_module("edge.flower.client_app")._counted()


def _step(net: nn.Module, shape: tuple[int, ...]) -> None:
    net(torch.ones(shape)).square().sum().backward()


@pytest.mark.parametrize(
    ("net", "shape", "macs"),
    [
        # forward and the gradient of the weights; the input needs none
        (nn.Linear(8, 4), (16, 8), 2 * 16 * 8 * 4),
        (nn.Conv2d(3, 5, 3, padding=1), (2, 3, 6, 6), 2 * 2 * 36 * 5 * 3 * 9),
        # four groups of one channel each, and the gradient of its input for the layer before it
        (
            nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, padding=1, groups=4)),
            (2, 4, 6, 6),
            2 * 2 * 36 * 4 * 4 + 3 * 2 * 36 * 4 * 9,
        ),
        (nn.ConvTranspose2d(3, 5, 2, stride=2), (2, 3, 4, 4), 2 * 2 * 16 * 5 * 3 * 4),
    ],
)
def test_a_step_has_twice_its_macs(net: nn.Module, shape: tuple[int, ...], macs: int) -> None:
    with _counted() as used:
        _step(net, shape)
    assert used["flops"] == 2 * macs == count_flops(lambda: _step(net, shape))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_forward_pass_counts_the_same_in_every_mode(mode: type) -> None:
    net, images = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 4)), torch.ones(5, 1, 6, 6)
    with _counted() as used, mode():
        net(images)
    assert used["flops"] == 2 * 5 * (16 * 2 * 9 + 32 * 4)


def test_attention_is_its_two_products() -> None:
    keys = torch.ones(1, 2, 8, 4)  # (batch, heads, places, features)
    with _counted() as used:
        nn.functional.scaled_dot_product_attention(keys, keys, keys)
    assert used["flops"] == 2 * 2 * (8 * 8 * 4) * 2
