"""What becomes of an optimizer's vectors between visits: torch's own optimizer over two visits, and what travels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from coordinator.aggregation.server import ServerContext
from coordinator.methods.optimizer_state import OptimizerStateExtension
from coordinator.records.store import read
from coordinator.workers.launcher import WorkerLauncher
from edge.methods.optimizer_state import OptimizerState
from edge.protocol.config import TrainConfig
from edge.protocol.messages import Update
from edge.protocol.options.base import Options
from edge.protocol.payload import MODEL, Payload, Vector
from edge.training.block_model import BlockModel
from edge.training.sgd import local_step
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parsed
from tests.scenarios.runs import run_with
from tests.toy import batch, broken_off, model_sha256, play, resumed, tower, visit

ADAMW = TrainConfig(lr=0.01, batch=32, local_steps=3, optimizer="adamw")
BLOCKS = ["b1", "b2", "b3", "b4"]


def cross_entropy(net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net.run(x), y)


def visited(
    net: BlockModel, train: TrainConfig, seeds: range, down: Payload, state: Payload, round: int = 0, up: Any = None
) -> tuple[Payload, Payload, dict[str, float]]:
    """A visit of one step per batch: copies of what it uploads and keeps, and what it logs."""
    about = replace(visit(net), train=train, round=round, **({} if up is None else {"up": up}))
    side = OptimizerState(Options())
    for name in train.optimizer_vectors:  # what another client has left
        net.scratch(f"optimizer: {name}").fill_(77.0)
    side.begin(net, down, state, about)
    step = local_step(net, train, 0.01, kept=side.optimizer_steps)
    for seed in seeds:
        step(cross_entropy, *batch(seed=seed))
    sent, kept, _ = side.end(net, about)
    copies = [
        {slot: {key: Vector(v.data.copy()) for key, v in each.items()} for slot, each in p.items()}
        for p in (sent, kept)
    ]
    return copies[0], copies[1], side.take_logged()


def torch_steps(flat: Tensor, optimizer: torch.optim.Optimizer, seeds: range) -> None:
    """Steps of torch's own optimizer on a flat vector."""
    net = tower()
    for seed in seeds:
        net.flat.copy_(flat)
        net.grad.zero_()
        torch.autograd.backward(cross_entropy(net, *batch(seed=seed)))
        flat.grad = net.grad.clone()
        optimizer.step()


def whole(payload: Payload, slot: str) -> Tensor:
    return torch.from_numpy(np.concatenate([payload[slot][key].data for key in BLOCKS]))


@pytest.mark.parametrize(
    ("config", "make"),
    [
        ({"optimizer": "adamw"}, lambda flat: torch.optim.AdamW([flat], lr=0.01, fused=True)),
        ({"optimizer": "adagrad"}, lambda flat: torch.optim.Adagrad([flat], lr=0.01, fused=True)),
        ({"optimizer": "rmsprop"}, lambda flat: torch.optim.RMSprop([flat], lr=0.01, foreach=False)),
        ({"momentum": 0.9}, lambda flat: torch.optim.SGD([flat], lr=0.01, momentum=0.9, foreach=False)),
    ],
)
def test_a_kept_state_goes_on_as_if_there_had_been_one_visit(config: dict[str, Any], make: Any) -> None:
    train, net, flat = TrainConfig(optimizer_state="keep", **config), tower(), tower().flat.clone()
    sent, kept, logged = visited(net, train, range(3), {}, {})
    assert (sent, logged) == ({}, {})
    _, kept, logged = visited(net, train, range(3, 6), {}, kept, round=5)
    assert logged == {"optimizer_state_age": 5.0}
    torch_steps(flat, make(flat), range(6))
    assert torch.equal(net.flat, flat)
    steps = [0.0] * 4 if "momentum" in config else [6.0] * 4
    assert kept["optimizer_steps"]["counts"].data.tolist() == steps


def context(train: TrainConfig, net: BlockModel) -> ServerContext:
    """A server of two clients with 10 and 30 examples."""
    return ServerContext(
        net.layout, {MODEL: net.dump(net.layout.keys())}, Options(), "size", net.layout.keys(), net.layout.keys(), 0,
        np.array([10, 30]), np.zeros((2, 3), np.int64), train=train,
    )  # fmt: skip


def test_a_sent_state_is_the_mean_that_the_next_visit_goes_on_from() -> None:
    train, net = TrainConfig(optimizer="adamw", optimizer_state="send"), tower()
    server = OptimizerStateExtension(context(train, net))
    moments = []
    for client, seeds in enumerate((range(3), range(3, 6))):
        net = tower()
        sent, kept, _ = visited(net, train, seeds, server.down(client), {})
        assert kept == {}
        server.accumulate(Update(round=0, client=client, numbers={}, payload=sent))
        moments.append((whole(sent, "exp_avg"), whole(sent, "exp_avg_sq")))
    server.step({}, {})
    down = server.down(0)
    for slot, (one, other) in zip(("exp_avg", "exp_avg_sq"), zip(*moments, strict=True), strict=True):
        assert torch.allclose(whole(down, slot), 0.25 * one + 0.75 * other, rtol=1e-6)
    net, flat = tower(), tower().flat.clone()
    visited(net, train, range(6, 9), down, {})
    theirs = torch.optim.AdamW([flat], lr=0.01, fused=True)
    theirs.state[flat] = {
        "step": torch.tensor(3.0), "exp_avg": whole(down, "exp_avg"), "exp_avg_sq": whole(down, "exp_avg_sq")
    }  # fmt: skip
    torch_steps(flat, theirs, range(6, 9))
    assert torch.equal(net.flat, flat)


def test_of_squares_one_mean_per_block_travels() -> None:
    train, net = TrainConfig(optimizer="adamw", optimizer_state="mean"), tower()
    server = OptimizerStateExtension(context(train, net))
    assert server.up_shapes() == {"exp_avg_sq": dict.fromkeys(BLOCKS, 1), "optimizer_steps": {"counts": 4}}
    sent, _, _ = visited(net, train, range(3), server.down(0), {})
    squares = net.scratch("optimizer: exp_avg_sq")
    assert sent["exp_avg_sq"]["b2"].data[0] == pytest.approx(float(squares[net.slices["b2"]].mean()), rel=1e-6)
    server.accumulate(Update(round=0, client=0, numbers={}, payload=sent))
    server.step({}, {})
    net, flat = tower(), tower().flat.clone()
    visited(net, train, range(3, 5), server.down(0), {})
    theirs = torch.optim.AdamW([flat], lr=0.01, fused=True)
    spread = torch.cat([torch.full((net.layout.sizes[key],), float(sent["exp_avg_sq"][key].data[0])) for key in BLOCKS])
    theirs.state[flat] = {"step": torch.tensor(3.0), "exp_avg": torch.zeros(len(flat)), "exp_avg_sq": spread}
    torch_steps(flat, theirs, range(3, 5))
    assert torch.equal(net.flat, flat)


def test_the_state_of_a_block_that_stays_at_home_stays_there() -> None:
    train, net = TrainConfig(optimizer="adamw", optimizer_state="send"), tower()
    up = ("b1", "b2", "b3")
    sent, kept, _ = visited(net, train, range(2), {}, {}, up=up)
    assert [*sent["exp_avg"]] == ["b1", "b2", "b3"] and [*kept["exp_avg"]] == ["b4"]
    at_home = net.scratch("optimizer: exp_avg")[net.slices["b4"]].clone()
    flat = net.flat.clone()
    again = tower()
    again.flat.copy_(flat)
    visited(again, train, range(0), sent, kept, up=up)
    assert torch.equal(again.scratch("optimizer: exp_avg")[again.slices["b4"]], at_home)


def test_moments_travel_both_ways_and_are_charged(tmp_path: Path) -> None:
    """8 B a weight and 4 B a block; with one number per block, 8 B a block."""
    runs = {
        policy: play(tmp_path / policy, train=replace(ADAMW, optimizer_state=policy))
        for policy in ("reset", "keep", "send", "mean")
    }
    sent = {
        policy: dict(run.rows("SELECT slot, SUM(nbytes) FROM transfers WHERE slot != '' GROUP BY slot"))
        for policy, run in runs.items()
    }
    layout = runs["reset"].federation.server.setup.layout
    weights, blocks = sum(block.params for block in layout.blocks), len(layout)
    directions = 2 * runs["reset"].rows("SELECT COUNT(*) FROM visits")[0][0]
    assert sent["keep"] == sent["reset"]
    assert sent["send"] == sent["reset"] | {
        "exp_avg": 4 * weights * directions,
        "exp_avg_sq": 4 * weights * directions,
        "optimizer_steps": 4 * blocks * directions,
    }
    assert sent["mean"] == sent["reset"] | {
        "exp_avg_sq": 4 * blocks * directions, "optimizer_steps": 4 * blocks * directions
    }  # fmt: skip
    models = {policy: model_sha256(run.federation) for policy, run in runs.items()}
    assert len({*models.values()}) == 4


@pytest.mark.parametrize("policy", ["keep", "send"])
@pytest.mark.parametrize("method", ["fedavg", "fedper", "fedmlb+feddyn"])
def test_a_killed_run_goes_on_from_the_same_state(policy: Any, method: str, tmp_path: Path) -> None:
    how: dict[str, Any] = {"train": replace(ADAMW, optimizer_state=policy), "rounds": 3, "participants": 2}
    undisturbed = play(tmp_path / "whole", method, **how)
    broken_off(tmp_path / "killed", method, 2, **how)
    run = resumed(tmp_path / "killed", method, **how)
    assert model_sha256(run.federation) == model_sha256(undisturbed.federation)
    assert run.rows("SELECT chain FROM rounds") == undisturbed.rows("SELECT chain FROM rounds")


def test_the_age_of_a_kept_state_is_in_the_ledger_and_no_worker_changes_it(
    tmp_path: Path, launcher: WorkerLauncher
) -> None:
    words = ("method=fedavg", "rounds.max=3", "data.clients=3", "rounds.participants=2", "train.local_epochs=1",
             "train.optimizer=adamw", "train.lr=0.002", "train.optimizer_state=keep")  # fmt: skip
    one, three = (run_with(tmp_path, launcher, workers, *words) for workers in (1, 3))
    assert one["model_sha256"] == three["model_sha256"]
    ledger = Path(three["run_dir"]) / "ledger.sqlite"
    visits = [(round, client) for round, client in read(ledger, "SELECT round, client FROM visits ORDER BY round")]
    ages = {
        (round, client): float(round - max(before))
        for round, client in visits
        if (before := [other for other, whose in visits if whose == client and other < round])
    }
    logged = read(ledger, "SELECT round, client, value FROM logged WHERE name = 'optimizer_state_age'")
    assert {(round, client): value for round, client, value in logged} == ages


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["method=fednova", "train.optimizer=adamw"],
            "train.optimizer = adamw: fednova divides a client's change by the sum of sgd's steps, which is then "
            "unknown; leave it out, or choose another method",
        ),
        (
            ["method=scaffold", "train.momentum=0.9", "train.optimizer_state=keep"],
            "train.optimizer_state = keep: scaffold divides a client's change by the sum of sgd's steps, which is then "
            "unknown; leave it out, or choose another method",
        ),
        (
            ["train.optimizer=adamw", "train.weight_decay=0.1"],
            "train.weight_decay = 0.1: is sgd's, and train.optimizer = adamw; choose "
            "train.optimizer_options.weight_decay",
        ),
        (
            ["train.optimizer_state=keep"],
            "train.optimizer_state = keep: sgd keeps nothing without momentum; choose train.momentum above 0, or reset",
        ),
        (
            ["method=heterofl", "train.optimizer=adam", "train.optimizer_state=keep"],
            "train.optimizer_state = keep: clients of heterofl hold parts of the model, and the state would be another "
            "part's; choose reset",
        ),
        (
            ["method=local", "train.optimizer=adam", "train.optimizer_state=send"],
            "train.optimizer_state = send: local sends nothing to the server; choose keep, or reset",
        ),
    ],
)
def test_what_does_not_join_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        load("digits", parsed(words))
    assert str(refused.value) == f"command line: {message}"
