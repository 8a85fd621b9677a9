"""The models hold exactly the parameters, bytes and multiply-adds that their papers imply, however they are cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from edge.models import resnet18
from edge.models.emnist_autoencoder import stages, wide_stages
from edge.models.layers import residual_units, take_places_first
from edge.models.registry import MODELS, model
from edge.protocol.config import ModelConfig
from edge.protocol.payload import FORWARD, INNER_GRADIENT, INPUT_GRADIENT, WEIGHT_GRADIENT
from edge.training.block_model import BlockModel
from edge.training.blocks import balanced_cuts, build
from edge.training.counts import flops_per_example
from tests.crossed import every
from tests.toy import CPU

RESNET_PARAMS = [1_856, 147_968, 525_568, 2_099_712, 8_393_728, 51_300]
RESNET_MACS = [1_769_472, 150_994_944, 134_217_728, 134_217_728, 134_217_728, 51_200]


def parameters(name: str, classes: int, channels: int, cut: str = "stages") -> list[int]:
    with torch.device("meta"):
        blocks = build(ModelConfig(name, blocks=cut), classes, channels)
    return [sum(p.numel() for p in module.parameters()) for _, module in blocks]


def macs(name: str, classes: int, shape: tuple[int, int, int], cut: str = "stages") -> list[list[float]]:
    """Per block: multiply-adds of each kind of pass."""
    flops = flops_per_example(lambda: build(ModelConfig(name, blocks=cut), classes, shape[0]), shape)
    return [[float(number) / 2 for number in row] for row in flops]


def test_resnet18_has_the_parameters_of_fedmlbs_code() -> None:
    assert parameters("resnet18", 100, 3) == RESNET_PARAMS
    assert sum(RESNET_PARAMS) == 11_220_132
    assert sum(parameters("resnet18", 10, 3)) == 11_173_962
    assert sum(parameters("resnet18", 200, 3)) == 11_271_432


def test_resnet18_computes_what_fedmlbs_code_computes() -> None:
    rows = macs("resnet18", 100, (3, 32, 32))
    assert [row[FORWARD] for row in rows] == RESNET_MACS
    assert sum(RESNET_MACS) == 555_468_800
    assert sum(row[FORWARD] for row in macs("resnet18", 200, (3, 64, 64))) == 2_221_772_800
    # Each gradient costs as much as the forward pass, in a block of several layers too.
    assert [row[WEIGHT_GRADIENT] for row in rows] == RESNET_MACS
    assert [row[INNER_GRADIENT] + row[INPUT_GRADIENT] for row in rows] == RESNET_MACS


def test_pathways_through_resnet18_cost_what_is_executed() -> None:
    rows = macs("resnet18", 100, (3, 32, 32))
    plain = sum(sum(row) for row in rows) - rows[0][INPUT_GRADIENT]  # images need no gradient
    ratios = []
    for alpha in range(1, 6):
        extra = sum(sum(row) - row[WEIGHT_GRADIENT] for m in range(6 - alpha, 6) for row in rows[m:])
        ratios.append(round(1 + extra / plain, 3))
    assert ratios == [1.000, 1.161, 1.484, 1.968, 2.633]


def test_resnet56_has_the_parameters_and_computes_what_fedaligns_code_does() -> None:
    assert parameters("resnet56", 100, 3) == [464, 27_648, 113_152, 447_488, 25_700]
    assert (sum(parameters("resnet56", 100, 3)), sum(parameters("resnet56", 10, 3))) == (614_452, 591_322)
    rows = macs("resnet56", 100, (3, 32, 32))
    assert sum(row[FORWARD] for row in rows) == 87_237_632
    assert [row[WEIGHT_GRADIENT] for row in rows] == [row[FORWARD] for row in rows]


def test_resnet18_for_photographs_has_the_parameters_of_he_et_al() -> None:
    assert parameters("resnet18-imagenet", 200, 3) == [9_536, 147_968, 525_568, 2_099_712, 8_393_728, 102_600]
    assert sum(parameters("resnet18-imagenet", 200, 3)) == 11_279_112
    assert sum(row[FORWARD] for row in macs("resnet18-imagenet", 200, (3, 224, 224))) == 1_813_663_744


# --- residual units ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "count"), [("resnet18", 8), ("resnet56", 18), ("mobilenetv2", 10), ("shufflenet", 13), ("vgg9", 0)]
)
def test_units_that_add_are_found_in_the_order_of_their_use(name: str, count: int) -> None:
    units, used = [], []
    with torch.device("meta"):
        modules = [module for _, module in build(ModelConfig(name, blocks="balanced:2"), 10, 3)]
        for unit in residual_units(modules):
            unit.register_forward_pre_hook(lambda unit, _: used.append(unit))
            units.append(unit)
        nn.Sequential(*modules)(torch.empty(2, 3, 32, 32))
    assert len(units) == count
    assert used == units


# --- small models -----------------------------------------------------------------------------------------------------


def test_the_cnn_has_the_layers_of_pfedmb() -> None:
    assert parameters("cnn", 10, 3) == [456, 2_416, 48_120, 10_164, 850]
    assert parameters("cnn", 10, 1) == [6 * 25 + 6, 2_416, 48_120, 10_164, 850]
    assert parameters("cnn", 100, 3)[-1] == 8_500
    assert [row[FORWARD] for row in macs("cnn", 10, (3, 32, 32))] == [352_800, 240_000, 48_000, 10_080, 840]
    assert sum(row[FORWARD] for row in macs("cnn", 100, (3, 32, 32))) == 659_280


def test_the_digits_cnn_by_hand() -> None:
    # 3x3 kernels: 1 -> 16 -> 32 -> 32 channels, then 32 channels of 2x2 -> 10 classes.
    assert parameters("digits-cnn", 10, 1) == [16 * 9 + 16, 32 * 144 + 32, 32 * 288 + 32, 128 * 10 + 10]
    assert sum(parameters("digits-cnn", 10, 1)) == 15_338
    expected = [64 * 16 * 9, 64 * 32 * 144, 16 * 32 * 288, 1_280]
    assert [row[FORWARD] for row in macs("digits-cnn", 10, (1, 8, 8))] == expected


def test_the_autoencoder_has_the_layers_of_its_authors_and_a_border_that_is_always_empty() -> None:
    sizes = [784, 1000, 500, 250, 30, 250, 500, 1000, 784]
    found = [inputs * outputs + outputs for inputs, outputs in pairwise(sizes)]
    assert parameters("emnist-autoencoder", 1024, 1) == found
    assert sum(found) == 2_837_314
    forward = [inputs * outputs for inputs, outputs in pairwise(sizes)]
    assert [row[FORWARD] for row in macs("emnist-autoencoder", 1024, (1, 32, 32))] == forward
    assert sum(forward) == 2_833_000

    net = nn.Sequential(*(module for _, modules in stages(1024, 1, 100) for module in modules))
    images = torch.rand(3, 1, 32, 32)
    given = net(images).view(3, 32, 32)
    other = net(F.pad(images[..., 2:-2, 2:-2], (2, 2, 2, 2), value=0.3)).view(3, 32, 32)
    assert torch.equal(given, other)  # of what is in the border nothing is seen
    border = torch.ones(32, 32, dtype=torch.bool)
    border[2:-2, 2:-2] = False
    assert torch.equal(given[:, border], torch.zeros(3, 240))
    assert given[:, ~border].min() > 0 and given[:, ~border].max() < 1
    (_, [first]), *_ = wide_stages(1024, 1, 1000)
    scatter = float(next(first.parameters()).detach().std())
    assert scatter == pytest.approx(4 * (2 / (784 + 1000)) ** 0.5, rel=0.01)


def test_hierfavgs_networks_have_the_weights_of_the_paper() -> None:
    # MNIST without its border: 28, 24 after 5x5, 12, 8 after 5x5, 4: 16 places of 20 channels are 320 numbers.
    lenet = [10 * 25 + 10, 20 * 250 + 20, 50 * 320 + 50, 10 * 50 + 10]
    assert parameters("hierfavg-lenet", 10, 1) == lenet == [260, 5_020, 16_050, 510]
    assert sum(lenet) == 21_840
    forward = [24 * 24 * 10 * 25, 8 * 8 * 20 * 250, 16_000, 500]
    assert [row[FORWARD] for row in macs("hierfavg-lenet", 10, (1, 32, 32))] == forward
    assert forward == [144_000, 320_000, 16_000, 500]

    pairs = [(3, 32, 64), (64, 128, 128), (128, 256, 256)]
    cnn = [9 * of * first + first + 2 * first + 9 * first * second + second for of, first, second in pairs]
    cnn += [4096 * 1024 + 1024, 1024 * 512 + 512, 512 * 10 + 10]
    assert parameters("hierfavg-cnn", 10, 3) == cnn == [19_456, 221_696, 885_760, 4_195_328, 524_800, 5_130]
    assert sum(cnn) == 5_852_170
    forward = [
        places * 9 * (of * first + first * second)
        for places, (of, first, second) in zip((1024, 256, 64), pairs, strict=True)
    ]
    forward += [4096 * 1024, 1024 * 512, 5120]
    assert [row[FORWARD] for row in macs("hierfavg-cnn", 10, (3, 32, 32))] == forward
    assert sum(forward) == 137_729_024


# --- strided convolutions of few channels -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", every(2, [name for name in MODELS if name != "transformers"]))
def test_no_model_has_a_convolution_that_breaks_onednn(name: str) -> None:
    row = model(name)
    # Which widths a model with options has depends on these.
    is_fixed = row.width is None or row.options.model_fields
    for width in [None] if is_fixed else range(row.width_multiple, 33, row.width_multiple):
        with torch.device("meta"):
            modules = [module for _, block in build(ModelConfig(name, width), 10, 3) for module in block.modules()]
        strided = [m for m in modules if isinstance(m, nn.Conv2d) and (m.kernel_size, m.stride) == ((1, 1), (2, 2))]
        assert all(convolution.in_channels >= 16 for convolution in strided)


def strided_layer(inputs: int, outputs: int, stride: int | tuple[int, int]) -> nn.Module:
    """A convolution as a user's module has it, when it has become a model."""
    layer = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
    take_places_first([layer])
    return layer


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("layer", "down", "across"),
    [
        (nn.Sequential(*resnet18.BasicBlock("group", 4, 8, 2).shortcut.children())[:-1], 2, 2),
        (strided_layer(4, 8, 2), 2, 2),
        (strided_layer(4, 8, (1, 4)), 1, 4),
    ],
)
def test_a_strided_convolution_of_few_channels_is_that_of_the_places_it_looks_at(
    layer: nn.Module, down: int, across: int, memory_format: torch.memory_format
) -> None:
    # Small whole numbers have exact sums in float32, in any order. Torch's own layer is not asked: it may abort.
    rng = np.random.default_rng(0)
    x, weight = rng.integers(-3, 4, (20, 4, 32, 32)), rng.integers(-3, 4, (8, 4))
    factors = rng.integers(-3, 4, (20, 8, 32 // down, 32 // across))
    images = torch.tensor(x, dtype=torch.float32).contiguous(memory_format=memory_format).requires_grad_()
    layer.to(memory_format=memory_format)
    (kernel,) = layer.parameters()
    kernel.grad = None
    kernel.data.copy_(torch.tensor(weight)[:, :, None, None])
    y = layer(images)
    torch.autograd.backward(y, torch.tensor(factors, dtype=torch.float32).contiguous(memory_format=memory_format))

    places = x[:, :, ::down, ::across]
    gradient = np.zeros_like(x)
    gradient[:, :, ::down, ::across] = np.einsum("oc,bohw->bchw", weight, factors)
    assert images.grad is not None
    assert kernel.grad is not None
    assert np.array_equal(y.detach(), np.einsum("oc,bchw->bohw", weight, places))
    assert np.array_equal(images.grad, gradient)
    assert np.array_equal(kernel.grad[:, :, 0, 0], np.einsum("bohw,bchw->oc", factors, places))


# --- cuts -------------------------------------------------------------------------------------------------------------


def all_cuts(units: int, count: int, start: int = 1) -> Iterator[tuple[int, ...]]:
    if count == 1:
        yield ()
        return
    for first in range(start, units):
        for rest in all_cuts(units, count - 1, first + 1):
            yield (first, *rest)


def test_balanced_cuts_are_the_best_of_all_cuts() -> None:
    rng = random.Random(0)
    for _ in range(60):
        units = rng.randint(2, 8)
        sizes = [rng.randint(1, 6) for _ in range(units)]
        count = rng.randint(2, units)
        costs = {
            cuts: sum(sum(sizes[a:b]) ** 2 for a, b in zip((0, *cuts), (*cuts, units), strict=True))
            for cuts in all_cuts(units, count)
        }
        least = min(costs.values())
        assert balanced_cuts(sizes, count) == min(cuts for cuts, cost in costs.items() if cost == least)
    assert balanced_cuts([1, 1, 1], 2) == (1,)


def test_a_cut_changes_blocks_but_not_the_function() -> None:
    def net(cut: str) -> BlockModel:
        torch.manual_seed(0)
        return BlockModel(lambda: build(ModelConfig("resnet18", width=4, blocks=cut), 10, 3), CPU)

    stages, balanced = net("stages"), net("balanced:4")
    assert (len(stages), len(balanced)) == (6, 4)
    assert torch.equal(stages.flat, balanced.flat)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(stages.run(x), balanced.run(x))
