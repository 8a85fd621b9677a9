"""The operations of a training step by kind, derived by hand for small networks."""

from __future__ import annotations

import copy

from torch import nn

from edge.protocol.operations import KINDS
from edge.training.counts import count_blocks


def counted(*layers: nn.Module, shape: tuple[int, ...]) -> dict[str, list[float]]:
    """Kind -> [per example, per step], of the kinds that occur."""
    found = count_blocks(lambda: [("all", nn.Sequential(*copy.deepcopy(layers)).to("meta"))], shape).operations
    return {kind: pair for kind, pair in zip(KINDS, found.tolist(), strict=True) if any(pair)}


def test_a_first_convolution_has_a_pass_forward_and_one_for_its_weights() -> None:
    # 16 * 16 * 9 MACs at 8 * 8 places = 147,456; two passes of 2 FLOPs each. 2304 weights and 16 biases.
    found = counted(nn.Conv2d(16, 16, 3, padding=1), shape=(16, 8, 8))
    assert found == {
        "conv.w16": [589_824, 0],
        "parameters": [0, 2320],
        "convolutions": [0, 1],
        "calls": [0, 2],
    }


def test_depthwise_and_1x1_convolutions_are_kinds_of_their_own() -> None:
    # 8 channels at 4 * 4 places. Depthwise: 8 * 9 * 16 = 1152 MACs, two passes. 1x1: 8 * 8 * 16 = 1024, three,
    # which take as long as with the 16 output channels of a whole vector.
    found = counted(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 8, 1), shape=(8, 4, 4))
    assert found["channelwise"] == [4 * 1152, 0]
    assert found["pointwise.w8"] == [2 * 6 * 1024, 0]
    assert "linear" not in found


def test_flops_of_no_convolution_are_linear_and_a_transposed_one_has_places_of_its_input() -> None:
    # 4 * 4 * 4 weights at the 9 places of the input: 576 MACs, two passes. A quarter of a vector takes as long as a
    # whole one. 4 * 6 * 6 numbers to 5: 720 MACs, three passes.
    found = counted(nn.ConvTranspose2d(4, 4, 2, stride=2), nn.Flatten(), nn.Linear(144, 5), shape=(4, 3, 3))
    assert found["conv.w4"] == [4 * 4 * 576, 0]
    assert found["linear"] == [6 * 720, 0]


def test_numbers_of_other_layers_are_those_they_read_and_write() -> None:
    found = counted(nn.Conv2d(1, 4, 1), nn.GroupNorm(2, 4), nn.MaxPool2d(2), shape=(1, 6, 6))
    # Pooling forward: 4 * 36 in, twice 4 * 9 out (with the places); backward: 36 * 4 + 2 * 36 in, 4 * 36 out.
    assert found["elementwise"][0] == (144 + 72) + (144 + 72 + 144)
    # Normalisation: at least 144 in and out, and its gradient of three such tensors.
    assert 5 * 144 <= found["normalised"][0] < 6 * 144
