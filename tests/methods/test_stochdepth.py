"""Stochastic depth leaves out bodies of drawn units, which visits are not charged, and scales them in tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coordinator.rounds.policy import RoundPolicy
from edge.methods.stochdepth import StochasticDepthUpdate, with_keep_probabilities
from edge.models.layers import ResidualUnit, residual_units
from edge.protocol.config import ModelConfig, PartitionConfig, TrainConfig
from edge.protocol.options.stochdepth import Schedule, StochasticDepthOptions, keep_probabilities
from edge.protocol.payload import INPUT_GRADIENT
from edge.training.block_model import BlockModel
from edge.training.blocks import Block
from edge.training.counts import count_flops, flops_per_example, unit_flops_per_example
from edge.training.sgd import Sgd
from tests.plugins import residual_net
from tests.toy import CPU, play, visit, whole

MODEL = ModelConfig("tests.plugins.residual:ROW", width=2)
HOW: dict[str, Any] = {
    "model": MODEL,
    "train": TrainConfig(lr=0.1, batch=16, local_steps=2, momentum=0.5),
    "partition": PartitionConfig("iid"),
    "clients": 3,
    "rounds": 3,
    "keep_last": 0.5,
}


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("stochdepth+fedprox", {"mu": 0.1}),
        ("stochdepth+scaffold", {}),
        ("stochdepth", {"rules": RoundPolicy("fedasync"), "dropped": "decay"}),
        ("stochdepth", {"sum": "fixed_point"}),
    ],
    ids=["fedprox", "scaffold", "fedasync", "fixed_point"],
)
def test_it_joins_all_that_sends_the_whole_model(name: str, how: dict[str, Any], tmp_path: Path) -> None:
    run = play(tmp_path, name, **HOW, **how)
    description = run.federation.description
    plain = 32 * (description.flops.sum() - description.flops[0, INPUT_GRADIENT])
    # The second unit alone is left out: in neither, one or both steps of a visit.
    body = 16 * description.unit_flops[1].sum()
    charged = {flops for (flops,) in run.rows("SELECT flops FROM visits WHERE kind = 'train'")}
    assert charged <= {plain, plain - body, plain - 2 * body}
    assert len(charged) > 1


# --- the client side --------------------------------------------------------------------------------------------------


IMAGES = (1, 8, 8)


def blocks() -> list[Block]:
    """Of a stem, two residual units and a head."""
    torch.manual_seed(0)
    return [(name, units[0]) for name, units in residual_net.stages(3, 1, 2)]


def batch(seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(4, *IMAGES, generator=rng), torch.randint(3, (4,), generator=rng)


def begun(net: BlockModel, **options: Any) -> StochasticDepthUpdate:
    """A visit to a client, which has begun."""
    update = StochasticDepthUpdate(StochasticDepthOptions(**options))
    _, unit_flops = unit_flops_per_example(blocks, IMAGES)
    update.begin(net, whole(net), {}, replace(visit(net), unit_flops=unit_flops))
    return update


@pytest.mark.parametrize(
    ("units", "schedule", "expected"),
    [
        (3, "code", [1.0, 0.95, 0.9]),
        (3, "paper", [1 - 0.1 / 3, 1 - 0.2 / 3, 0.9]),
        (1, "code", [1.0]),
        (1, "paper", [0.9]),
        (0, "code", []),
    ],
)
def test_the_probability_of_a_body_falls_evenly_with_its_depth(
    units: int, schedule: Schedule, expected: list[float]
) -> None:
    assert keep_probabilities(units, 0.9, schedule).tolist() == pytest.approx(expected)


def test_the_mean_of_all_draws_of_a_linear_unit_is_its_evaluation() -> None:
    class Linear(ResidualUnit):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.shortcut = nn.Linear(4, 4), nn.Identity()

        def activated(self, x: Tensor) -> Tensor:
            return x

    unit, x = Linear(), torch.arange(8.0).reshape(2, 4)
    with_keep_probabilities([("b1", unit)], StochasticDepthOptions(schedule="paper"), 4, None)
    kept = unit(x)
    unit.dropped = True
    left_out = unit(x)
    unit.dropped = False
    assert torch.allclose(0.9 * kept + 0.1 * left_out, unit.eval()(x))
    assert torch.equal(unit(x), unit(x))


@pytest.mark.parametrize("dropped", [[], [0], [1], [0, 1]])
def test_a_step_executes_the_flops_that_are_counted(dropped: list[int]) -> None:
    net = BlockModel(blocks, CPU)
    update, (x, y) = begun(net), batch(1)
    update.dropped = dropped
    executed = count_flops(lambda: torch.autograd.backward(update.loss(net, x, y)))
    counted = (net.executed * flops_per_example(blocks, IMAGES)).sum() + net.further_flops
    assert counted == executed
    assert (net.further_flops < 0) == bool(dropped)


@pytest.mark.parametrize("how", ["stay", "decay"])
def test_a_body_that_is_left_out_is_moved_as_torch_moves_parameters_without_gradients(how: str) -> None:
    """``stay`` is torch's SGD with gradients that are None, ``decay`` with gradients that are zero."""
    config = TrainConfig(lr=0.1, batch=4, momentum=0.9, weight_decay=0.1, clip=0.01)
    net, plain = BlockModel(blocks, CPU), nn.Sequential(*(module for _, module in blocks()))
    update, units = begun(net, dropped=how), residual_units([plain])
    torch_sgd = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    drawn = iter([[], [1], [0, 1], [0], []])
    update.draw = lambda: setattr(update, "dropped", next(drawn))  # type: ignore[method-assign]
    update.train(net, lambda: map(batch, range(5)), Sgd(net, config, 0.1))
    for seed, dropped in enumerate([[], [1], [0, 1], [0], []]):
        torch_sgd.zero_grad(set_to_none=how == "stay")
        for place, unit in enumerate(units):
            unit.dropped = place in dropped
        x, y = batch(seed)
        torch.autograd.backward(F.cross_entropy(plain(x), y))
        nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
        torch_sgd.step()
    wanted = torch.cat([parameter.detach().flatten() for parameter in plain.parameters()])
    assert torch.allclose(net.flat, wanted, rtol=1e-5, atol=1e-7)
