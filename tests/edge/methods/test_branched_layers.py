"""Layers of several branches: what they compute, and where they stand in a model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from edge.methods.branched_layers import BranchedLayer, branched
from edge.protocol.config import ModelConfig
from edge.protocol.options.pfedmb import PFedMBOptions
from edge.training.block_model import BlockModel
from edge.training.blocks import Block, build
from edge.training.counts import count_blocks, flops_per_example
from tests.toy import CPU

OPTIONS = PFedMBOptions(branches=3)
RESNET = ModelConfig("resnet18", width=4)


def of_branches(layer: BranchedLayer, branch: int) -> tuple[Tensor, Tensor]:
    one: Any = getattr(layer, f"branch{branch}")
    return one.weight, one.bias


def grad(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(5, 4), (2, 5)),
        (nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, padding_mode="reflect"), (2, 4, 7, 7)),
        (nn.Conv1d(3, 4, 3, bias=False), (2, 3, 6)),
        (nn.ConvTranspose2d(3, 2, 2, stride=2), (2, 3, 4, 4)),
    ],
)
def test_mixed_weights_give_the_mixture_of_the_branches(layer: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    made = BranchedLayer(layer, 3, softmax=True, scale=1.0, branch_bias=True)
    made.branch_weights.numbers.data = torch.tensor([0.3, -1.0, 2.0])
    alpha, x = torch.softmax(torch.tensor([0.3, -1.0, 2.0]), 0), torch.randn(shape)
    separate = torch.zeros_like(made(x))
    for branch in (1, 2, 3):
        layer.weight, layer.bias = map(detached, of_branches(made, branch))  # type: ignore[assignment]
        separate += alpha[branch - 1] * layer(x)
        layer.weight = layer.bias = None  # type: ignore[assignment]
    assert (made(x) - separate).abs().max() < 1e-6


def test_one_gradient_of_the_mixture_gives_those_of_branches_and_weights() -> None:
    torch.manual_seed(0)
    made = BranchedLayer(nn.Linear(5, 4, bias=False), 2, softmax=False, scale=1.0, branch_bias=True)
    x, alpha = torch.randn(3, 5), made.branch_weights.numbers
    alpha.data = torch.tensor([0.25, 0.75])
    torch.autograd.backward(made(x).square().sum())
    first, second = (of_branches(made, branch)[0] for branch in (1, 2))
    whole = (0.25 * first + 0.75 * second).detach().requires_grad_()
    torch.autograd.backward((x @ whole.T).square().sum())
    slope = grad(whole)
    assert torch.allclose(grad(alpha), torch.stack([(slope * first).sum(), (slope * second).sum()]))
    assert torch.allclose(grad(first), 0.25 * slope)
    assert torch.allclose(grad(second), 0.75 * slope)


def test_branches_begin_different_and_the_first_is_the_layer_itself() -> None:
    layer = nn.Linear(200, 200)
    before = layer.weight.detach().clone()
    made = BranchedLayer(layer, 4, softmax=False, scale=2.0, branch_bias=False)
    weights = [of_branches(made, branch)[0].detach() for branch in (1, 2, 3, 4)]
    assert torch.equal(weights[0], 2 * before)
    assert len({float(weight[0, 0]) for weight in weights}) == 4
    mean = sum(0.25 * weight for weight in weights)
    assert isinstance(mean, Tensor)
    assert float(mean.std()) == pytest.approx(float(before.std()), rel=0.05)  # sqrt(4) keeps the variance
    assert of_branches(made, 1)[1] is None
    assert made.shared.bias is not None
    assert float(made.shared.bias.detach().abs().max()) <= 1 / math.sqrt(200)  # as it was made: not multiplied


def twice() -> list[Block]:
    layer = nn.Linear(3, 3)
    attention = nn.MultiheadAttention(4, 2)
    return [("one", nn.Sequential(layer, nn.Tanh(), layer)), ("two", nn.Sequential(attention, nn.LayerNorm(4)))]


def test_a_layer_in_two_places_has_one_set_of_branches_and_attention_stays() -> None:
    (_, one), (_, two) = branched(twice(), OPTIONS, 3, None)
    assert isinstance(one, nn.Sequential)
    assert one[0] is one[2]
    assert isinstance(one[0], BranchedLayer)
    assert not any(isinstance(module, BranchedLayer) for module in two.modules())


def test_what_cannot_have_branches_is_refused() -> None:
    with pytest.raises(ValueError, match="neither a convolution nor a linear layer"):
        branched([("norm", nn.LayerNorm(3))], OPTIONS, 3, None)
    computed = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    with pytest.raises(ValueError, match="its weight is computed"):
        branched([("one", computed)], OPTIONS, 3, None)


def resnet() -> list[Block]:
    torch.manual_seed(0)
    return build(RESNET, 10, 3)


def branched_resnet() -> list[Block]:
    return branched(resnet(), OPTIONS, 10, 4)


def test_every_convolution_and_linear_layer_of_a_resnet_has_branches() -> None:
    """20 convolutions (three of shortcuts) and the head; GroupNorm is shared."""
    plain, net = BlockModel(resnet, CPU, by_layer=True), BlockModel(branched_resnet, CPU, by_layer=True)
    linear = [each for _, block in resnet() for each in block.modules() if isinstance(each, nn.Conv2d | nn.Linear)]
    inner = [module.layer for block in net.modules for module in block.modules() if isinstance(module, BranchedLayer)]
    assert len(linear) == len(inner) == 21
    of_linear = sum(parameter.numel() for layer in linear for parameter in layer.parameters())
    of_norms = plain.flat.numel() - of_linear
    assert of_norms == 2 * (5 * 4 + 5 * 8 + 5 * 16 + 5 * 32)  # 2 numbers per channel, 3 shortcuts
    assert net.flat.numel() == 3 * of_linear + of_norms + 21 * 3
    for key in ("stem/0.branch3", "stage2/0.shortcut.1.branch2", "head/branch1", "head/branch_weights", "stem/1"):
        assert key in net.layout.sizes


def small() -> list[Block]:
    body = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.GroupNorm(1, 2), nn.ReLU(), nn.Conv2d(2, 2, 3))
    return [("body", body), ("head", nn.Sequential(nn.Flatten(), nn.Linear(8, 3)))]


def test_passes_and_stored_activations_are_those_of_the_plain_model() -> None:
    """Mixing is no pass, and the mixed weights do not grow with the batch: statistics of GroupNorm do, 2 an example."""
    shape = (1, 6, 6)

    def wrapped() -> list[Block]:
        return branched(small(), OPTIONS, 3, None)

    assert np.array_equal(flops_per_example(wrapped, shape), flops_per_example(small, shape))
    stored = count_blocks(wrapped, shape, is_wrapped=True).activations
    assert np.array_equal(stored, count_blocks(small, shape).activations)
