"""FedMLB's other backbones: their numbers, what their units compute, and hybrid pathways through them."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge.models import mobilenetv2, shufflenet
from edge.models.registry import MODELS, model
from edge.protocol.config import ModelConfig
from edge.protocol.payload import FORWARD, INNER_GRADIENT, INPUT_GRADIENT, WEIGHT_GRADIENT
from edge.training.blocks import Block, build, load_dotted
from edge.training.counts import Flops, flops_per_example
from tests.crossed import every

# Per block, with 100 classes and 32x32 images.
PARAMS = {
    "vgg9": [960, 18_624, 74_112, 147_840, 295_680, 590_592, 2_411_620],
    "mobilenetv2": [192, 2_064, 14_496, 40_848, 186_816, 306_528, 800_736, 1_017_700],
    "shufflenet": [720, 40_008, 313_200, 562_080, 96_100],
    "squeezenet": [2_880, 12_208, 12_720, 45_920, 50_016, 105_744, 111_888, 190_144, 249_636],
}
MACS = {
    "vgg9": [
        1024 * 27 * 32,
        1024 * 288 * 64,
        256 * 576 * 128,
        256 * 1152 * 128,
        64 * 1152 * 256,
        64 * 2304 * 256,
        4096 * 512 + 512 * 512 + 512 * 100,
    ],
    # A unit from a to b channels with expansion t costs a*ta where it begins, then 9ta + ta*b where it ends.
    "mobilenetv2": [
        34**2 * 3 * 32,
        34**2 * (32 * 32 + 9 * 32 + 32 * 16),
        34**2 * 16 * 96 + 17**2 * (9 * 96 + 96 * 24) + 17**2 * (24 * 144 + 9 * 144 + 144 * 24),
        17**2 * 24 * 144 + 9**2 * (9 * 144 + 144 * 32) + 2 * 9**2 * (32 * 192 + 9 * 192 + 192 * 32),
        9**2 * 32 * 192 + 5**2 * (9 * 192 + 192 * 64) + 3 * 5**2 * (64 * 384 + 9 * 384 + 384 * 64),
        5**2 * (64 * 384 + 9 * 384 + 384 * 96) + 2 * 5**2 * (96 * 576 + 9 * 576 + 576 * 96),
        5**2 * (96 * 576 + 9 * 576 + 576 * 160) + 2 * 5**2 * (160 * 960 + 9 * 960 + 960 * 160),
        5**2 * (160 * 960 + 9 * 960 + 960 * 320) + 5**2 * 320 * 1280 + 1280 * 100,
    ],
    # A unit from a to b channels, a third of them in each group: a*b/4/3 where it begins, then 9*b/4 + b/4*b/3.
    "shufflenet": [
        1024 * 27 * 24,
        1024 * 24 * 60 // 3 + 256 * (9 * 60 + 60 * 216 // 3) + 3 * 256 * (240 * 60 // 3 + 9 * 60 + 60 * 240 // 3),
        256 * 240 * 120 // 3 + 64 * (9 * 120 + 120 * 240 // 3) + 7 * 64 * (480 * 120 // 3 + 9 * 120 + 120 * 480 // 3),
        64 * 480 * 240 // 3 + 16 * (9 * 240 + 240 * 480 // 3) + 3 * 16 * (960 * 240 // 3 + 9 * 240 + 240 * 960 // 3),
        960 * 100,
    ],
    # A module from a channels to s and then 4s and 4s: a*s + s*4s + 9*s*4s.
    "squeezenet": [
        1024 * 27 * 96,
        256 * (96 * 16 + 40 * 16**2),
        256 * (128 * 16 + 40 * 16**2),
        256 * (128 * 32 + 40 * 32**2),
        64 * (256 * 32 + 40 * 32**2),
        64 * (256 * 48 + 40 * 48**2),
        64 * (384 * 48 + 40 * 48**2),
        64 * (384 * 64 + 40 * 64**2),
        16 * (512 * 64 + 40 * 64**2) + 16 * 512 * 100,
    ],
}
each_backbone = pytest.mark.parametrize("name", every(2, PARAMS))


def blocks(name: str, classes: int = 100, width: int | None = None, seed: int = 0) -> list[Block]:
    torch.manual_seed(seed)
    return build(ModelConfig(name, width), classes, 3)


def numbers(name: str, classes: int) -> list[int]:
    """Parameters per block."""
    with torch.device("meta"):
        return [sum(p.numel() for p in module.parameters()) for _, module in blocks(name, classes)]


@functools.cache
def flops(name: str, classes: int = 100, side: int = 32) -> Flops:
    return flops_per_example(lambda: blocks(name, classes), (3, side, side))


# --- what they weigh and cost -----------------------------------------------------------------------------------------


@each_backbone
def test_a_backbone_has_the_parameters_of_the_published_code(name: str) -> None:
    assert numbers(name, 100) == PARAMS[name]


@each_backbone
def test_a_backbone_computes_what_the_published_code_computes(name: str) -> None:
    macs = flops(name) / 2
    assert macs[:, FORWARD].tolist() == MACS[name]
    # Each gradient costs as much as the forward pass, in groups and in depthwise convolutions too.
    assert macs[:, WEIGHT_GRADIENT].tolist() == MACS[name]
    assert (macs[:, INNER_GRADIENT] + macs[:, INPUT_GRADIENT]).tolist() == MACS[name]


# --- width ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in MODELS if name != "transformers"])  # it is what a folder says
def test_a_row_says_what_its_file_builds(name: str) -> None:
    row = model(name)
    with torch.device("meta"):
        options = [row.options()] if row.options.model_fields else []
        built = load_dotted(row.stages)(10, 3, row.width, *([row.norm] if row.norm else []), *options)
    assert tuple(stage for stage, _ in built) == row.blocks
    assert sum(len(units) for _, units in built) == row.units
    assert row.blocks[-1] == "head"


# --- what their units compute -----------------------------------------------------------------------------------------


class Plain:
    """The layers of a module one by one, in the order of its parameters, with the normalisation written out."""

    def __init__(self, module: nn.Module) -> None:
        self.left = [p.detach() for p in module.parameters()]

    def conv_norm(self, x: Tensor, **how: Any) -> Tensor:
        weight, bias, scale, shift = self.left[:4]
        del self.left[:4]
        y = F.conv2d(x, weight, bias, padding=weight.shape[2] // 2, **how)
        halves = y.view(len(y), 2, -1, *y.shape[2:])  # (batch, group, channels of the group, height, width)
        mean = halves.mean((2, 3, 4), keepdim=True)
        deviation = (halves.var((2, 3, 4), keepdim=True, unbiased=False) + 1e-5).sqrt()
        normal: Tensor = ((halves - mean) / deviation).flatten(1, 2)
        return normal * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)


def feature(channels: int) -> Tensor:
    """(2, channels, 8, 8), not negative, as what a ReLU puts out."""
    return torch.rand(2, channels, 8, 8, generator=torch.Generator().manual_seed(3))


def moved(module: nn.Module) -> nn.Module:
    """With scales and shifts that are not 1 and 0."""
    rng = torch.Generator().manual_seed(4)
    for parameter in module.parameters():
        parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=rng))
    return module


@pytest.mark.parametrize(("outputs", "stride"), [(8, 1), (8, 2), (12, 1)])
def test_an_inverted_residual_unit_adds_only_what_has_its_shape(outputs: int, stride: int) -> None:
    unit, x = moved(mobilenetv2.InvertedResidual("group", 8, outputs, 6, stride)), feature(8)
    plain = Plain(unit)
    y = plain.conv_norm(x).clamp(0, 6)
    y = plain.conv_norm(y, stride=stride, groups=48).clamp(0, 6)
    y = plain.conv_norm(y)
    expected = x + y if (outputs, stride) == (8, 1) else y
    assert torch.allclose(unit(x), expected, atol=1e-4)


@pytest.mark.parametrize(("inputs", "outputs"), [(24, 24), (12, 48)])
def test_a_shuffle_unit_mixes_the_groups_and_the_first_of_a_stage_joins_its_pooled_input(
    inputs: int, outputs: int
) -> None:
    unit, x, is_first = moved(shufflenet.ShuffleUnit("group", inputs, outputs)), feature(inputs), inputs < outputs
    plain = Plain(unit)
    y = plain.conv_norm(x, groups=3).relu()
    # Groups (0, 1), (2, 3), (4, 5), or of four each: the first of each, then the second.
    y = y[:, [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11] if is_first else [0, 2, 4, 1, 3, 5]]
    y = plain.conv_norm(y, groups=y.shape[1], stride=2 if is_first else 1)
    y = plain.conv_norm(y, groups=3)
    # Means of 3x3 places, of which those outside the image are zero.
    windows = F.pad(x, (1, 1, 1, 1)).unfold(2, 3, 2).unfold(3, 3, 2)
    expected = torch.cat([windows.mean((4, 5)), y.relu()], dim=1) if is_first else (x + y).relu()
    assert torch.allclose(unit(x), expected, atol=1e-4)
