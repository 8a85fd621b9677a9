"""Optimizers beside SGD: torch's own numbers on the flat vector, over visits, blocks and schedules within a visit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from edge.protocol.config import TrainConfig
from edge.protocol.optimizers import OPTIMIZERS
from edge.training.block_model import BlockModel
from edge.training.sgd import OptimizerStep, local_step
from tests.toy import batch, tower

CLASSES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}
FUSED = ("adam", "adamw", "adagrad")
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("adam", {}),
    ("adam", {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}),
    ("adamw", {}),
    ("adamw", {"weight_decay": 0.0, "amsgrad": True}),
    ("rmsprop", {}),
    ("rmsprop", {"alpha": 0.9, "momentum": 0.5, "centered": True, "weight_decay": 0.1}),
    ("adagrad", {}),
    ("adagrad", {"lr_decay": 0.1, "initial_accumulator_value": 0.5, "weight_decay": 0.1}),
]


def cross_entropy(net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net.run(x), y)


class Theirs:
    """torch's optimizer on a flat vector, at the gradients of a net."""

    def __init__(self, net: BlockModel, name: str, lr: float, options: dict[str, Any], **how: Any) -> None:
        self.net, self.flat = net, net.flat.clone()
        self.optimizer = CLASSES[name]([self.flat], lr=lr, **options, **how)

    def step(self, x: Tensor, y: Tensor, lr: float | None = None) -> None:
        self.net.flat.copy_(self.flat)
        self.net.grad.zero_()
        torch.autograd.backward(cross_entropy(self.net, x, y))
        self.flat.grad = self.net.grad.clone()
        if lr is not None:
            self.optimizer.param_groups[0]["lr"] = lr
        self.optimizer.step()


def test_names_and_defaults_are_torchs() -> None:
    for name, make in CLASSES.items():
        options = OPTIMIZERS[name].options().model_dump()
        theirs = make([torch.zeros(1)]).defaults
        assert {option: theirs[option] for option in options} == options
        assert OPTIMIZERS[name].lr == theirs["lr"]
    assert set(OPTIMIZERS) == {"sgd", *CLASSES}


@pytest.mark.parametrize(("name", "options"), SETTINGS)
def test_steps_are_torchs_to_the_bit(name: str, options: dict[str, Any]) -> None:
    net, other = tower(), tower()
    ours = local_step(net, TrainConfig(optimizer=name, optimizer_options=options), 0.01)
    theirs = Theirs(other, name, 0.01, options, **({"fused": True} if name in FUSED else {"foreach": False}))
    for seed in range(6):
        ours(cross_entropy, *batch(seed=seed))
        theirs.step(*batch(seed=seed))
    assert torch.equal(net.flat, theirs.flat)
    names = set(TrainConfig(optimizer=name, optimizer_options=options).optimizer_vectors)
    state = theirs.optimizer.state[theirs.flat]
    assert names == {key for key, value in state.items() if value.numel() > 1}
    assert all(torch.equal(ours.state[key], state[key]) for key in names)


@pytest.mark.parametrize(("name", "options"), SETTINGS)
def test_they_are_near_those_of_torchs_loops(name: str, options: dict[str, Any]) -> None:
    net, other = tower(), tower()
    ours = local_step(net, TrainConfig(optimizer=name, optimizer_options=options), 0.01)
    theirs = Theirs(other, name, 0.01, options, foreach=False)
    for seed in range(6):
        ours(cross_entropy, *batch(seed=seed))
        theirs.step(*batch(seed=seed))
    torch.testing.assert_close(net.flat, theirs.flat, rtol=1e-5, atol=1e-6)


def test_each_visit_begins_anew() -> None:
    """The second step's state is that of torch's new optimizer, whatever the first visit has left."""
    net, other = tower(), tower()
    config = TrainConfig(optimizer="adamw")
    for seed in range(2):
        ours = local_step(net, config, 0.01)
        theirs = Theirs(other, "adamw", 0.01, {}, fused=True)
        for place in range(3):
            ours(cross_entropy, *batch(seed=3 * seed + place))
            theirs.step(*batch(seed=3 * seed + place))
        other.flat.copy_(theirs.flat)
    assert torch.equal(net.flat, other.flat)


def test_a_block_that_did_not_move_takes_its_first_step_later() -> None:
    """Adam's first step has the length lr for every gradient; one count for all blocks would shorten b4's."""
    net = tower()
    step = local_step(net, TrainConfig(optimizer="adam", optimizer_options={"eps": 1e-12}), 0.01)
    for seed in range(3):
        step(cross_entropy, *batch(seed=seed), only=["b1", "b2"])
    before = net.flat.clone()
    step(cross_entropy, *batch(seed=4))
    assert step.steps_of_blocks == [4, 4, 1, 1]
    moved = (net.flat - before)[net.slices["b4"]].abs()
    assert moved[net.grad[net.slices["b4"]] != 0] == pytest.approx(0.01, rel=1e-4)


def test_ranges_of_a_block_move_alone() -> None:
    net = tower()
    step = local_step(net, TrainConfig(optimizer="adam"), 0.01)
    before, own = net.flat.clone(), net.slices["b2"]
    step.zero()
    step.backward(cross_entropy, *batch())
    step.apply([slice(own.start + 2, own.start + 5), slice(own.stop, own.stop + 1)])
    moved = set(torch.nonzero(net.flat != before).flatten().tolist())
    assert moved == {own.start + 2, own.start + 3, own.start + 4, own.stop}
    assert step.steps_of_blocks == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("config", "rates"),
    [
        ({"visit_schedule": "warmup", "visit_warmup": 4}, [2.0, 4.0, 6.0, 8.0, 8.0, 8.0]),
        ({"visit_schedule": "warmup"}, [0.8, 1.6, 2.4, 3.2, 4.0, 4.8]),
        # 8 (1 + cos(π k/6))/2
        ({"visit_schedule": "cosine"}, [8.0, 7.4641016, 6.0, 4.0, 2.0, 0.5358984]),
        ({"visit_schedule": "cosine", "visit_warmup": 2}, [4.0, 8.0, 8.0, 6.8284271, 4.0, 1.1715729]),
    ],
)
@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_visit_has_a_schedule_of_its_own(name: str, config: dict[str, Any], rates: list[float]) -> None:
    train = TrainConfig(optimizer=name, **config)
    assert [train.lr_of_step(8.0, place, 6) for place in range(6)] == pytest.approx(rates)
    assert train.lr_of_step(8.0, 99, 6) == (8.0 if config["visit_schedule"] == "warmup" else pytest.approx(rates[-1]))
    net, other = tower(), tower()
    step, plain = local_step(net, train, 8.0, planned=6), local_step(other, TrainConfig(optimizer=name), 0.0)
    for place, rate in enumerate(rates):
        step(cross_entropy, *batch(seed=place))
        plain.lr = rate
        plain(cross_entropy, *batch(seed=place))
        assert torch.allclose(net.flat, other.flat, rtol=1e-4)


OWN = """
from edge.protocol.optimizers import OptimizerRow
from edge.protocol.plugins import PluginOptions
from pydantic import Field

class LionOptions(PluginOptions):
    beta: float = Field(default=0.9, ge=0, lt=1, title="β")

def lion(weights, grad, state, steps, lr, options):
    m = state["m"]
    m.lerp_(grad, 1 - options.beta)
    weights.add_(m.sign(), alpha=-lr)

ROW = OptimizerRow("lion", "signs", "a test", LionOptions, "own_optimizer:lion", lambda options: {"m": 0.0}, 3, 1e-4)
"""


def test_a_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_optimizer.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    train = TrainConfig(optimizer="own_optimizer:ROW", optimizer_options={"beta": 0.5})
    net = tower()
    step = local_step(net, train, 0.25)
    assert isinstance(step, OptimizerStep)
    before = net.flat.clone()
    step(cross_entropy, *batch())
    assert torch.allclose(before - net.flat, 0.25 * net.grad.sign())
    assert (train.optimizer_vectors, train.further_traffic) == ({"m": 0.0}, 8)
    sys.modules.pop("own_optimizer")


@pytest.mark.parametrize(
    ("config", "vectors", "further"),
    [
        ({}, [], 0),
        # What devices train with where they were measured: momentum is not counted on top.
        ({"momentum": 0.9}, ["momentum"], 0),
        ({"optimizer": "adamw"}, ["exp_avg", "exp_avg_sq"], 28 - 12),
        (
            {"optimizer": "adam", "optimizer_options": {"amsgrad": True}},
            ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"],
            24,
        ),
        ({"optimizer": "rmsprop"}, ["square_avg"], 20 - 12),
        ({"optimizer": "adagrad"}, ["sum"], 20 - 12),
    ],
)
def test_what_a_step_keeps_and_moves(config: dict[str, Any], vectors: list[str], further: int) -> None:
    train = TrainConfig(**config)
    assert (list(train.optimizer_vectors), train.further_traffic) == (vectors, further)
