"""Frozen bases and low-rank adapters: what learns, what travels, and how many numbers, by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from edge.protocol.config import AdapterConfig, ModelConfig, TrainConfig
from edge.training.adapters import LowRankConvolution, LowRankLinear, adapted, is_frozen
from edge.training.block_model import BlockModel
from edge.training.blocks import Block, build
from edge.training.client_update import plain_loss
from edge.training.sgd import local_step
from tests.toy import CPU


def lora(rank: int, **more: Any) -> AdapterConfig:
    return AdapterConfig("lora", rank, **more)


def net(config: AdapterConfig, name: str = "char-transformer", width: int = 16) -> BlockModel:
    torch.manual_seed(0)
    return BlockModel(lambda: adapted(build(ModelConfig(name, width), 10, 30), config), CPU)


def test_an_adapted_layer_adds_its_scaled_product() -> None:
    torch.manual_seed(0)
    base = nn.Linear(5, 3)
    layer, x = LowRankLinear(base, lora(2, alpha=6.0)), torch.randn(4, 5)
    torch.testing.assert_close(layer(x), base(x))  # B is zero at first
    layer.adapter.b.data.normal_()
    product = layer.adapter.b @ layer.adapter.a
    torch.testing.assert_close(layer(x), F.linear(x, base.weight + 3.0 * product, base.bias))


def test_an_adapted_convolution_of_1_x_1_is_the_same_at_every_place() -> None:
    torch.manual_seed(0)
    base = nn.Conv2d(4, 6, 1, stride=2)
    layer, x = LowRankConvolution(base, lora(3)), torch.randn(2, 4, 8, 8)
    layer.adapter.b.data.normal_()
    weight = base.weight + layer.adapter.scale * (layer.adapter.b @ layer.adapter.a)[:, :, None, None]
    torch.testing.assert_close(layer(x), F.conv2d(x, weight, base.bias, stride=2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rank", "weights"), [(4, 368_640), (8, 737_280), (16, 1_474_560)])
def test_adapters_of_attention_have_as_many_weights_as_a_published_log_counts(rank: int, weights: int) -> None:
    """Gemma-3 270M: 18 layers of width 640, queries of 1024 and keys and values of 256; r (inputs + outputs) each."""

    def layer() -> nn.Module:
        shapes = {"q": (640, 1024), "k": (640, 256), "v": (640, 256), "o": (1024, 640), "up": (640, 2048)}
        return nn.ModuleDict({name: nn.Linear(*shape, bias=False) for name, shape in shapes.items()})

    with torch.device("meta"):
        blocks = [(f"layer{number}", layer()) for number in range(18)]
        found = adapted(blocks, lora(rank, on=("q", "k", "v", "o")))
    learns = sum(each.numel() for _, module in found for each in module.parameters() if not is_frozen(each))
    assert learns == weights
    assert 4 * learns == {4: 1_474_560, 8: 2_949_120, 16: 5_898_240}[rank]


def test_only_what_learns_has_keys_gradients_and_a_place_in_the_optimizer() -> None:
    whole = BlockModel(lambda: build(ModelConfig("char-transformer", 16), 10, 30), CPU)
    part = net(lora(2, train=("head",)))
    assert [*part.layout.sizes] == ["embedding", "layer1", "layer2", "head"]
    # projections 16 -> 48, output 16 -> 16, two linear layers 16 -> 64 -> 16: 2 (64 + 32 + 80 + 80)
    assert part.layout.sizes["layer1"] == part.layout.sizes["layer2"] == 512
    assert part.layout.sizes["embedding"] == 0
    assert part.layout.sizes["head"] == whole.layout.sizes["head"]
    frozen = [part.frozen_numbers(index) for index in range(4)]
    assert frozen[:3] == [whole.layout.sizes[name] for name in ("embedding", "layer1", "layer2")] and frozen[3] == 0
    assert part.flat.numel() == part.grad.numel() == 2 * 512 + whole.layout.sizes["head"]


def test_a_step_moves_adapters_alone_and_counts_no_gradient_of_the_base() -> None:
    model = net(lora(2))
    base = [each.detach().clone() for module in model.modules for each in module.parameters() if is_frozen(each)]
    before = model.flat.clone()
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randint(30, (4, 12), generator=generator), torch.randint(10, (4,), generator=generator)
    step = local_step(model, TrainConfig(lr=0.1, momentum=0.9, weight_decay=0.1), 0.1)
    for _ in range(2):
        step(plain_loss, x, y)
    after = [each for module in model.modules for each in module.parameters() if is_frozen(each)]
    assert all(torch.equal(one, other) for one, other in zip(base, after, strict=True))
    assert not torch.equal(model.flat, before)
    assert all(each.grad is None for each in after)
    # Forward everywhere; gradients from the first layer on, but none of its input, below which nothing learns.
    assert model.executed.tolist() == [[8, 0, 0, 0], [8, 8, 8, 0], [8, 8, 8, 8], [8, 8, 8, 8]]


def test_blocks_that_are_named_learn_whole_without_adapters() -> None:
    model = net(AdapterConfig("freeze", train=("layer2", "head")))
    sizes = model.layout.sizes
    assert sizes["embedding"] == sizes["layer1"] == 0 and sizes["layer2"] > 0 and sizes["head"] > 0


def test_a_frozen_a_halves_what_travels() -> None:
    both, half = (net(lora(4, aggregate=way, on=("output",))) for way in ("fedit", "ffa"))
    assert both.layout.sizes["layer1"] == 2 * half.layout.sizes["layer1"] == 4 * (16 + 16)


def test_rank_enough_for_any_change_fits_what_whole_training_fits() -> None:
    torch.manual_seed(0)
    x, truth = torch.randn(64, 6), torch.randn(4, 6)

    def fitted(make: Any) -> float:
        torch.manual_seed(1)
        model = BlockModel(make, CPU)
        step = local_step(model, TrainConfig(lr=0.05), 0.05)

        def loss(net: BlockModel, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return F.mse_loss(net.run(x), y)

        for _ in range(3000):
            step(loss, x, x @ truth.T)
        return float(loss(model, x, x @ truth.T).detach())

    def plain() -> list[Block]:
        return [("all", nn.Linear(6, 4, bias=False))]

    assert fitted(plain) < 1e-6
    assert fitted(lambda: adapted(plain(), lora(4, alpha=4.0))) < 1e-6  # rank 4 is all that 4 x 6 has
    assert fitted(lambda: adapted(plain(), lora(1, alpha=1.0))) > 0.1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lora(2, on=("projectons",)), "adapter.on: no layer is called 'projectons'; did you mean 'projections'?"),
        (lora(2, train=("haed",)), "adapter.train: 'haed': did you mean 'head'?"),
        (AdapterConfig("freeze"), "adapter: nothing is left to learn; name blocks in adapter.train, or layers in"),
    ],
)
def test_names_of_nothing_are_refused(config: AdapterConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        net(config)


def test_layers_are_named_by_their_last_name_path_or_block() -> None:
    for on in ("output", "layer1.output", "hidden.0", "linear"):
        model = net(lora(2, on=(on,)))
        assert model.layout.sizes["layer1"] > 0
    assert net(lora(2, on=("layer1.output",))).layout.sizes["layer2"] == 0
    assert math.isclose(lora(8, alpha=32.0).scale, 4.0)
