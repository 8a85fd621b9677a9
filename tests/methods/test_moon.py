"""MOON: its contrast by hand, the models that it compares with, and what it makes of a model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coordinator.methods.moon import SPEC
from edge.methods.moon import PREVIOUS, RECEIVED, MoonUpdate, contrast, projected
from edge.protocol.config import ModelConfig
from edge.protocol.options.base import Options
from edge.protocol.options.moon import MoonOptions
from edge.training.block_model import BlockModel
from edge.training.blocks import Block, build
from edge.training.client_update import ClientUpdate
from tests.toy import CPU, batch, gradient, shifted, tower, visit, whole

EAST, NORTH = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])


def test_the_contrast_by_hand() -> None:
    # Near the received model: similarities 1 and 0 over 0.5, so ln(1 + e^-2); near the previous one: ln(1 + e^2).
    assert float(contrast(EAST, EAST, NORTH, 0.5)) == pytest.approx(math.log(1 + math.exp(-2)))
    assert float(contrast(NORTH, EAST, NORTH, 0.5)) == pytest.approx(math.log(1 + math.exp(2)))
    both = torch.cat([EAST, NORTH])
    mean = (math.log(1 + math.exp(-2)) + math.log(1 + math.exp(2))) / 2
    assert float(contrast(both, EAST.expand(2, 2), NORTH.expand(2, 2), 0.5)) == pytest.approx(mean)


def started(net: BlockModel, state: Any = None, **options: Any) -> MoonUpdate:
    """At the start of a visit to a client with this state."""
    client_side = MoonUpdate(MoonOptions(**options))
    client_side.begin(net, whole(net), state or {}, visit(net))
    return client_side


def test_a_first_visit_pays_ln_2_and_moves_as_fedavg() -> None:
    net, (x, y) = tower(), batch()
    moon, fedavg = started(net, weight=3.0), ClientUpdate(Options())
    shifted(net)  # as local steps do
    extra = moon.loss(net, x, y) - fedavg.loss(net, x, y)
    assert float(extra.detach()) == pytest.approx(3 * math.log(2), rel=1e-6)
    assert np.array_equal(gradient(moon, net, x, y), gradient(fedavg, net, x, y))


def test_the_client_keeps_its_model_and_compares_the_next_one_with_it() -> None:
    net, (x, y) = tower(), batch()
    first = started(net)
    shifted(net)
    kept = {key: vector.data.copy() for key, vector in first.end(net, visit(net))[1][PREVIOUS].items()}
    assert np.array_equal(np.concatenate(list(kept.values())), net.flat)
    state = {PREVIOUS: net.dump(net.layout.sizes)}
    shifted(net, seed=3)
    received = net.flat.clone()
    second = started(net, state)
    frozen = [net.frozen_copy(name).flat for name in (RECEIVED, PREVIOUS)]
    before = [flat.clone() for flat in frozen]
    assert torch.equal(before[0], received)
    assert np.array_equal(before[1], np.concatenate(list(kept.values())))
    moved = gradient(second, net, x, y)
    assert np.abs(moved - gradient(ClientUpdate(Options()), net, x, y)).max() > 1e-4
    assert all(torch.equal(flat, old) for flat, old in zip(frozen, before, strict=True))


# --- the other models' BatchNorm --------------------------------------------------------------------------------------


def normalised() -> list[Block]:
    """Two blocks, of which the first has BatchNorm."""
    torch.manual_seed(0)
    return [("b1", nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4))), ("b2", nn.Linear(4, 3))]


@pytest.mark.parametrize(
    ("auxiliary", "elsewhere"), [("train", "running"), ("eval", "running"), ("train", "batch"), ("eval", "batch")]
)
def test_auxiliary_says_what_the_others_normalise_with_whatever_other_frozen_models_do(
    auxiliary: str, elsewhere: Any
) -> None:
    net, (x, y) = BlockModel(normalised, CPU), batch()
    net.buffers.fill_(2.0)  # as updates have left them
    net.frozen_statistics = elsewhere
    client_side = started(net, auxiliary=auxiliary)
    assert net.statistics_in_use == 2 * ((auxiliary == "train", False),)
    running = [net.frozen_copy(name, client_side.statistics).buffers.clone() for name in (RECEIVED, PREVIOUS)]
    gradient(client_side, net, x, y)
    for name, before in zip((RECEIVED, PREVIOUS), running, strict=True):
        assert torch.equal(net.frozen_copy(name, client_side.statistics).buffers, before)


# --- the model with a projection --------------------------------------------------------------------------------------


def made(name: str, length: int = 256, **config: Any) -> list[Block]:
    return projected(build(ModelConfig(name, **config), 100, 3), MoonOptions(projection=length), 100, None)


def numbers(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_the_projection_of_a_resnet18_is_512_512_256() -> None:
    with torch.device("meta"):
        blocks = made("resnet18")
    assert [name for name, _ in blocks] == ["stem", "stage1", "stage2", "stage3", "stage4", "projection", "head"]
    sizes = {name: numbers(module) for name, module in blocks}
    assert (sizes["projection"], sizes["head"]) == (512 * 512 + 512 + 512 * 256 + 256, 256 * 100 + 100)
    layout = SPEC.model.wrapped_layout(_layout_of("resnet18"), MoonOptions())
    assert {block.name: block.params for block in layout.blocks} == sizes


def _layout_of(name: str) -> Any:
    blocks = build(ModelConfig(name), 100, 3)
    return BlockModel(lambda: blocks, CPU).layout
