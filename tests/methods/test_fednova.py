"""FedNova: its step against the paper's formula, and what clients report of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coordinator.aggregation.optimizers import ServerOptimizer
from coordinator.methods.fednova import FedNovaServer
from coordinator.rounds.synchronous import run_synchronous
from edge.methods.fednova import FedNovaUpdate
from edge.methods.fedprox import FedProxCorrection
from edge.protocol.config import PartitionConfig, TrainConfig, TrainingPlan
from edge.protocol.messages import Update
from edge.protocol.options.base import joined
from edge.protocol.options.fednova import FedNovaOptions
from edge.protocol.options.fedprox import FedProxOptions
from edge.protocol.payload import MODEL, BlockShape, Layout
from edge.training.block_model import BlockModel
from edge.training.sgd import Sgd
from tests.toy import batch, federation, small_context, store, tower, vector, visit, whole

UNEVEN = PartitionConfig("dirichlet-unbalanced", alpha=0.5, min_samples=1)
EPOCH = TrainConfig(lr=0.1, batch=32, momentum=0.5)


# --- the server, by hand ----------------------------------------------------------------------------------------------


def server(
    samples: Sequence[int], mu: float | None = None, optimiser: ServerOptimizer | None = None, **how: Any
) -> Any:
    """A model of two numbers, (0, 0), and a running statistic, 0."""
    weights = how.pop("weights", "size")
    types = (FedNovaOptions,) if mu is None else (FedNovaOptions, FedProxOptions)
    options = joined(types)(**how, **({} if mu is None else {"mu": mu}))
    more = {"weights": weights, "optimiser": optimiser or ServerOptimizer()}
    return FedNovaServer(small_context(Layout((BlockShape("w", 2, 1),)), options, samples, **more))


def reply(client: int, normaliser: float, w: tuple[float, float], statistic: float = 0.0, steps: float = 0.0) -> Update:
    numbers = {"normaliser": normaliser, "steps": steps or normaliser}
    return Update(client, 0, numbers, {MODEL: {"w": vector(*w), "w.buffers": vector(statistic)}})


def stepped(server_side: Any, *replies: Update) -> list[float]:
    for one in replies:
        server_side.accumulate(one)
    server_side.step()
    return [float(number) for key in ("w", "w.buffers") for number in server_side.model[key].data]


def test_one_step_pulls_as_much_as_ten_in_the_same_direction() -> None:
    # τ_eff = (1 + 10)/2, and each normalised direction weighs a half of it.
    assert stepped(server([4, 4]), reply(0, 1, (1, 0)), reply(1, 10, (0, 10))) == [2.75, 2.75, 0]
    # Where FedAvg would go to (0.5, 5).


def test_a_step_is_the_formula_of_the_paper() -> None:
    rng = np.random.default_rng(0)
    samples, normalisers = [3, 5, 11], [2.0, 6.5, 31.0]
    server_side, start = server(samples), np.array([0.25, -1.0])
    server_side.model["w"] = vector(*start)
    ends = rng.standard_normal((3, 2)).astype(np.float32)
    p, a = np.array(samples) / 19, np.array(normalisers)
    directions = (start - ends) / a[:, None]
    found = stepped(server_side, *(reply(k, a[k], (float(ends[k, 0]), float(ends[k, 1]))) for k in range(3)))
    assert np.allclose(found[:2], start - (p @ a) * (p @ directions), rtol=1e-6)
    # The next step counts its own clients alone.
    assert stepped(server_side, reply(0, 4, (7, 7)), reply(1, 4, (9, 9))) == [8.25, 8.25, 0]  # by 3 and 5 examples


def test_a_client_without_a_step_is_dropped_and_the_others_share_its_part() -> None:
    moved = reply(0, 1, (1, 0), 8), reply(1, 10, (0, 10), 16)
    idle = reply(2, 0, (0, 0), 99)
    assert stepped(server([4, 4, 50]), *moved, idle) == [2.75, 2.75, 12]
    assert stepped(server([4, 4, 50]), idle) == [0, 0, 0]


@pytest.mark.parametrize(
    ("options", "mu", "factor"),
    [
        # Normalisers 2 and 8 of 4 and 12 steps: Σ p/a = 5/16; τ_eff is 5 or 8.
        ({}, None, 25 / 16),
        ({}, 0.1, 40 / 16),
        ({"effective_steps": "normalisers"}, 0.1, 25 / 16),
        ({"effective_steps": "steps"}, None, 40 / 16),
    ],
)
def test_effective_steps_are_normalisers_or_steps(options: dict[str, Any], mu: float | None, factor: float) -> None:
    replies = reply(0, 2, (16, 16), steps=4), reply(1, 8, (16, 16), steps=12)
    assert stepped(server([4, 4], mu, **options), *replies)[:2] == [16 * factor, 16 * factor]


# --- over whole rounds ------------------------------------------------------------------------------------------------


def reported(folder: Path, method: str, **how: Any) -> list[dict[str, float]]:
    """The numbers of each reply of one round."""
    found: list[dict[str, float]] = []
    run = federation(folder, method, rounds=1, partition=UNEVEN, **how)
    run.server.observe = lambda reply, _: found.append(dict(reply.numbers))  # type: ignore
    run_synchronous(run)
    store(run).ledger.close()
    return found


@pytest.mark.parametrize(("half", "pull"), [(True, 0.05), (False, 0.1)])
def test_one_number_goes_up_that_knows_of_momentum_and_fedprox(tmp_path: Path, half: bool, pull: float) -> None:
    plain = reported(tmp_path / "plain", "fedavg", train=EPOCH)
    steps = [int(numbers["steps"]) for numbers in plain]
    nova = reported(tmp_path / "nova", "fednova", train=EPOCH)
    assert [set(a) - set(b) for a, b in zip(nova, plain, strict=True)] == [{"normaliser"}] * 4
    expected = [sum((1 - 0.5**k) / 0.5 for k in range(1, n + 1)) for n in steps]
    assert [numbers["normaliser"] for numbers in nova] == pytest.approx(expected)
    train = TrainConfig(lr=0.1, batch=32)
    prox = reported(tmp_path / "prox", "fednova+fedprox", train=train, mu=0.5, half=half)
    expected = [sum((1 - pull) ** k for k in range(n)) for n in steps]
    assert [numbers["normaliser"] for numbers in prox] == pytest.approx(expected)


# --- the client side --------------------------------------------------------------------------------------------------


def nova(net: BlockModel, steps: int, lr: float, train: TrainConfig, **others: Any) -> FedNovaUpdate:
    """FedNova's client side at the start of a visit of so many steps, with options of corrections beside its own."""
    types = (FedNovaOptions, FedProxOptions) if others else (FedNovaOptions,)
    client_side = FedNovaUpdate(joined(types)(**others))
    client_side.begin(
        net, whole(net), {}, replace(visit(net), plan=TrainingPlan(steps, steps * 8, steps), lr=lr, train=train)
    )
    return client_side


@pytest.mark.parametrize("momentum", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
@pytest.mark.parametrize("prox", [{}, {"mu": 0.5, "half": True}, {"mu": 0.5, "half": False}])
def test_the_normaliser_is_how_far_steps_on_an_even_slope_lead(momentum: dict[str, Any], prox: dict[str, Any]) -> None:
    net, train, lr = tower(), TrainConfig(**momentum), 0.25
    client_side, start = nova(net, 7, lr, train, **prox), net.flat.clone()
    corrections = [FedProxCorrection(FedProxOptions(**prox))] if prox else []
    for one in corrections:
        one.begin(net, whole(net), {}, visit(net))
    step = Sgd(net, train, lr, [one.correct for one in corrections])
    for _ in range(7):  # every gradient is 1
        step(lambda net, x, y: torch.stack([p.sum() for m in net.modules for p in m.parameters()]).sum(), *batch())
    assert torch.allclose((start - net.flat) / lr, torch.tensor(client_side.normaliser), rtol=1e-5)
    assert client_side.end(net, visit(net))[2]["normaliser"] == client_side.normaliser


def test_a_pull_that_takes_back_the_whole_way_is_refused() -> None:
    why = r"^train\.lr = 0\.25: with the proximal term's mu = 8 the normaliser of 2 steps is 0; lr times mu must be"
    with pytest.raises(ValueError, match=why):
        nova(tower(), 2, 0.25, TrainConfig(), mu=4.0, half=False)
    assert nova(tower(), 0, 0.25, TrainConfig(), mu=8.0).normaliser == 0
