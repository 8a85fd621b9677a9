"""The models of characters: their numbers by hand, padding that changes nothing, and weights that stay in place."""

from __future__ import annotations

import warnings
from itertools import accumulate

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from edge.protocol.config import ModelConfig
from edge.training.block_model import BlockModel
from edge.training.blocks import Block, build
from edge.training.counts import flops_per_example
from tests.toy import CPU

CLASSES, VOCABULARY, LENGTH = 81, 82, 80
STEPS = 10
"""Characters of an LSTM, which is counted step by step"""
NAMES = ("char-lstm", "char-transformer")


def blocks(name: str, width: int | None = None) -> list[Block]:
    return build(ModelConfig(name, width=width), CLASSES, VOCABULARY)


def small(name: str) -> BlockModel:
    torch.manual_seed(0)
    return BlockModel(lambda: blocks(name, 16), CPU)


def characters(*lengths: int) -> Tensor:
    """(examples, 12) tokens, padded after so many characters."""
    drawn = torch.randint(1, VOCABULARY, (len(lengths), 12), generator=torch.Generator().manual_seed(1))
    return drawn * (torch.arange(12) < torch.tensor(lengths)[:, None])


def test_the_lstm_has_leafs_layers() -> None:
    with torch.device("meta"):
        sizes = [sum(p.numel() for p in module.parameters()) for _, module in blocks("char-lstm")]
    # Four gates of 256 units, from 8 and 256, then 256 and 256 inputs, with two vectors of biases each.
    assert sizes == [82 * 8, 1024 * (8 + 256) + 2 * 1024, 1024 * (256 + 256) + 2 * 1024, 256 * 81 + 81]
    assert sizes == [656, 272_384, 526_336, 20_817]
    assert sum(sizes) == 820_193
    macs = flops_per_example(lambda: blocks("char-lstm"), (STEPS,), "tokens") / 2
    # The first step has no gradient for a hidden state before it, so that 9 of 10 have one.
    states = 9 * 1024 * 256
    assert macs.tolist() == [
        [0, 0, 0, 0],
        [10 * 1024 * 264, 10 * 1024 * 264, states, 10 * 1024 * 8],
        [10 * 1024 * 512, 10 * 1024 * 512, states, 10 * 1024 * 256],
        [20_736, 20_736, 0, 20_736],
    ]
    assert macs[:, 0].sum() == 2_703_360 + 5_242_880 + 20_736


def test_the_transformer_has_two_layers_of_width_128() -> None:
    with torch.device("meta"):
        sizes = [sum(p.numel() for p in module.parameters()) for _, module in blocks("char-transformer")]
    # Two norms, three projections and their output, two linear layers of 512 hidden units.
    layer = 2 * 2 * 128 + (128 * 384 + 384) + (128 * 128 + 128) + (128 * 512 + 512) + (512 * 128 + 128)
    assert sizes == [82 * 128, layer, layer, 2 * 128 + 128 * 81 + 81]
    assert sizes == [10_496, 198_272, 198_272, 10_705]
    assert sum(sizes) == 417_745
    macs = flops_per_example(lambda: blocks("char-transformer"), (LENGTH,), "tokens") / 2
    # Per character 12 x 128 x 128 with weights; scores and mixtures are 80 x 80 x 128 each, without weights, and have
    # two gradients each. The norm before the first product needs that product's gradient, whatever else does.
    weights, attention = 80 * 12 * 128 * 128, 2 * 80 * 80 * 128
    row = [weights + attention, weights, weights + 2 * attention, 0]
    assert macs.tolist() == [[0, 0, 0, 0], row, row, [10_368, 10_368, 10_368, 0]]
    assert row == [17_367_040, 15_728_640, 19_005_440, 0]


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_no_output_and_no_gradient(name: str) -> None:
    net, x, y = small(name), characters(12, 5, 1), torch.tensor([3, 1, 4])
    padded = net.run(x)
    torch.autograd.backward(F.cross_entropy(padded, y, reduction="sum"))
    gradient = net.grad.clone()
    net.grad.zero_()
    alone = [net.run(each[each > 0][None]) for each in x]
    torch.autograd.backward(F.cross_entropy(torch.cat(alone), y, reduction="sum"))
    torch.testing.assert_close(padded, torch.cat(alone), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradient, net.grad, rtol=1e-4, atol=1e-5)
    # The vector of padding never learns, even if a codec has made it other than 0.
    width = 8 if name == "char-lstm" else 16
    assert not gradient[:width].any()
    net.flat[:width] = 5.0
    torch.testing.assert_close(net.run(x), padded, rtol=1e-5, atol=1e-6)


def test_the_weights_of_an_lstm_stay_views_of_the_flat_vector() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = small("char-lstm")
        frozen = net.freeze()
        for each in (net, frozen):
            places = [parameter.data_ptr() for module in each.modules for parameter in module.parameters()]
            # 82 x 8; 64 x 8 and 64 x 16 with 64 biases each; 64 x 16 twice, likewise; 81 x 16.
            sizes = [656, 512, 1024, 64, 64, 1024, 1024, 64, 64, 1296]
            assert [(place - each.flat.data_ptr()) // 4 for place in places] == [0, *accumulate(sizes)]
        before, x = net.run(characters(9)), characters(9)
        net.flat.mul_(0.5)
        halved = net.run(x)
        assert (halved != before).any()
        net.load(frozen.views(net.layout.names))
        assert torch.equal(net.run(x), before)
        # Gradients pass through a frozen copy, which is in evaluation mode but for its recurrent layers.
        torch.autograd.backward(frozen.run(net.run(x, 0, 2), 2).square().sum())
        assert net.grad[net.slices["lstm1"]].any() and not net.grad[net.slices["lstm2"]].any()
    assert [module.training for module in frozen.modules] == [False, True, True, False]
