"""Narrower models: the axes of their tensors, and a part that computes what the model would with zeros elsewhere."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from edge.data.registry import DataSet, dataset
from edge.protocol.config import ModelConfig
from edge.protocol.payload import BUFFERS, Vector
from edge.protocol.submodels import SliceMap
from edge.training.block_model import BlockModel
from edge.training.blocks import Block, build
from edge.training.narrowed import model_axes, narrowed
from tests.toy import CPU


def made(config: ModelConfig, data: DataSet) -> tuple[BlockModel, partial[list[Block]]]:
    make = partial(build, config, data.classes, data.inputs)
    torch.manual_seed(0)
    return BlockModel(make, CPU), make


def part_of(
    net: BlockModel, make: partial[list[Block]], data: DataSet, rate: float, scaled: bool = False
) -> BlockModel:
    axes = model_axes(net, make, data)
    keys = [
        [key for key in net.layout.keys([name]) if not key.endswith(BUFFERS) and key in axes]
        for name in net.layout.names
    ]
    return BlockModel(lambda: narrowed(make(), axes, keys, rate, scaled), CPU)


@pytest.mark.parametrize(
    ("name", "data", "rate"),
    [
        ("digits-cnn", "digits", 0.5),
        ("digits-cnn", "digits", 0.25),
        ("cnn", "cifar10", 0.3),
        ("har-cnn", "hapt", 0.25),
        ("resnet18", "cifar10", 0.25),
    ],
)
def test_a_part_computes_what_the_model_does_with_zeros_elsewhere(name: str, data: str, rate: float) -> None:
    row = dataset(data)
    net, make = made(
        ModelConfig(name, width=16 if name == "resnet18" else None, norm="none" if "har" not in name else None), row
    )
    part, slices = part_of(net, make, row, rate), SliceMap(model_axes(net, make, row), rate)
    whole = net.dump(net.layout.sizes)
    part.load(slices.taken(whole))
    for key, vector in whole.items():
        rest = np.zeros_like(vector.data)
        rest[slices.places(key)] = vector.data[slices.places(key)]
        net.load({key: Vector(rest)})
    x = torch.rand(4, *row.shape, generator=torch.Generator().manual_seed(1))
    for each in (net, part):
        each.train_mode(False)
    with torch.no_grad():
        assert torch.allclose(part.run(x), net.run(x), atol=1e-5)
    assert part.layout == slices.layout(net.layout)
    assert part.tensors == {key: slices.tensors[key] for key in net.tensors}


@pytest.mark.parametrize(
    ("rate", "params"), [(1.0, 1_556_874), (0.5, 391_370), (0.25, 98_922), (0.125, 25_274), (0.0625, 6_594)]
)
def test_heterofls_network_has_the_papers_numbers(rate: float, params: int) -> None:
    mnist = dataset("mnist")
    net, make = made(ModelConfig("heterofl-cnn"), mnist)
    slices = SliceMap(model_axes(net, make, mnist), rate)
    assert sum(block.params for block in slices.layout(net.layout).blocks) == params
    assert sum(block.buffers for block in slices.layout(net.layout).blocks) == 2 * round(960 * rate)


def test_the_scaler_divides_by_the_rate_in_training_alone() -> None:
    digits = dataset("digits")
    net, make = made(ModelConfig("digits-cnn", width=4), digits)
    plain, scaled = (part_of(net, make, digits, 0.5, scaled) for scaled in (False, True))
    plain.flat.normal_(generator=torch.Generator().manual_seed(2))
    scaled.flat.copy_(plain.flat)
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        trained = scaled.run(x, 0, 1)
        assert torch.allclose(trained, 2 * plain.run(x, 0, 1))  # ReLU and max-pool are homogeneous
        head = scaled.run(trained[:, :, 0, 0].new_ones(3, 16), 3, 4)
        assert torch.allclose(head, plain.run(x.new_ones(3, 16), 3, 4))  # logits are not
        scaled.train_mode(False)
        plain.train_mode(False)
        assert torch.equal(scaled.run(x), plain.run(x))
