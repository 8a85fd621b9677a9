"""Objectives that distil: their losses by hand, their gradients, and what whole runs send."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coordinator.methods.fedgkd import FedGKDServer
from coordinator.methods.registry import resolve
from coordinator.rounds.policy import PolicyName, RoundPolicy
from coordinator.rounds.run import RoundFinished
from coordinator.rounds.synchronous import run_rounds
from edge.methods.distillation import DistillationUpdate
from edge.methods.fedntd import FedNTDUpdate
from edge.protocol.config import TrainConfig
from edge.protocol.messages import Update
from edge.protocol.options.base import Options
from edge.protocol.options.fedgkd import FedGKDOptions
from edge.protocol.options.fedntd import FedNTDOptions
from edge.protocol.payload import MODEL, TEACHER, BlockShape, Layout, Payload
from edge.training.block_model import BlockModel
from edge.training.blocks import load_dotted
from edge.training.client_update import ClientUpdate
from edge.training.sgd import Sgd
from tests.toy import (
    batch,
    federation,
    gradient,
    play,
    shifted,
    small_context,
    store,
    tower,
    vector,
    visit,
    whole,
)

NAMES = ("fedavg-kd", "fedavg-fitnet", "fedntd", "fedgkd")
each_name = pytest.mark.parametrize("name", NAMES)


def started(name: str, net: BlockModel, **options: Any) -> Any:
    """The client side of a method at the start of a visit."""
    method = resolve(name)
    client_side = load_dotted(method.objective.client)(method.options.model_validate(options))
    client_side.begin(net, whole(net), {}, visit(net))
    return client_side


# --- loss and gradient where student and teacher differ ---------------------------------------------------------------

Outputs = Sequence[Tensor]
"""Of each block, the last being logits"""
Plain = Callable[[Outputs, Outputs, Tensor], Tensor]
"""(local outputs, teacher's outputs, labels) -> loss"""


def slow(net: BlockModel, teacher: BlockModel, plain: Plain) -> tuple[float, NDArray[np.float64]]:
    """A loss and its gradient in the local parameters, from copies of both models in double precision."""
    x, y = batch()
    local, fixed = ([copy.deepcopy(module).double() for module in one.modules] for one in (net, teacher))

    def outputs(blocks: Sequence[nn.Module]) -> list[Tensor]:
        found, z = [], x.double()
        for block in blocks:
            z = block(z)
            found.append(z)
        return found

    with torch.no_grad():
        constants = outputs(fixed)
    loss = plain(outputs(local), constants, y)
    grads = torch.autograd.grad(loss, [p for module in local for p in module.parameters()])
    return float(loss.detach()), torch.cat([grad.reshape(-1) for grad in grads]).numpy()


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    return -torch.log(torch.softmax(z, 1))[torch.arange(len(y)), y].mean()


def kl(p: Tensor, q: Tensor, temperature: float = 1.0) -> Tensor:
    """Σ_c p (log p − log q) of tempered softmaxes, mean over the batch."""
    p, q = torch.softmax(p / temperature, 1), torch.softmax(q / temperature, 1)
    return (p * (torch.log(p) - torch.log(q))).sum(1).mean()


def others(z: Tensor, y: Tensor) -> Tensor:
    """Row by row without the true class."""
    return torch.stack([torch.cat([row[:true], row[true + 1 :]]) for row, true in zip(z, y.tolist(), strict=True)])


def gaps(local: Outputs, teacher: Outputs, layers: Sequence[int]) -> list[Tensor]:
    return [(local[m - 1] - teacher[m - 1]) ** 2 for m in layers]


CASES: list[tuple[str, dict[str, Any], Plain]] = [
    ("fedavg-kd", {}, lambda z, t, y: 0.8 * cross_entropy(z[-1], y) + 0.2 * kl(t[-1], z[-1])),
    ("fedavg-kd", {"form": "additive", "weight": 3.0}, lambda z, t, y: cross_entropy(z[-1], y) + 3 * kl(t[-1], z[-1])),
    (
        "fedavg-kd",
        {"weight": 0.5, "temperature": 2.0},
        lambda z, t, y: 0.5 * cross_entropy(z[-1], y) + 0.5 * 4 * kl(t[-1], z[-1], 2.0),
    ),
    ("fedntd", {}, lambda z, t, y: 0.7 * cross_entropy(z[-1], y) + 0.3 * kl(others(t[-1], y), others(z[-1], y))),
    ("fedntd", {"style": "neurips"}, lambda z, t, y: cross_entropy(z[-1], y) + kl(others(t[-1], y), others(z[-1], y))),
    (
        "fedavg-fitnet",
        {},
        lambda z, t, y: cross_entropy(z[-1], y) + sum(gap.mean() for gap in gaps(z, t, (1, 2, 3))) / 3,
    ),
    (
        "fedavg-fitnet",
        {"weight": 0.1, "reduction": "sum"},
        lambda z, t, y: cross_entropy(z[-1], y) + 0.1 * sum(gap.sum(1).mean() for gap in gaps(z, t, (1, 2, 3))) / 3,
    ),
    ("fedgkd", {}, lambda z, t, y: cross_entropy(z[-1], y) + 0.1 * kl(t[-1], z[-1])),
    (
        "fedgkd",
        {"weight": 2.0, "temperature": 2.0},
        lambda z, t, y: cross_entropy(z[-1], y) + 2 * 4 * kl(t[-1], z[-1], 2.0),
    ),
]


@pytest.mark.parametrize(("name", "options", "plain"), CASES)
def test_the_loss_and_its_gradient_are_the_papers(name: str, options: dict[str, Any], plain: Plain) -> None:
    net = tower()
    client_side = started(name, net, **options)
    shifted(net, by=0.3)
    value, theirs = slow(net, net.frozen_copy(), plain)
    ours = gradient(client_side, net, *batch())
    assert np.abs(ours - theirs).max() < 2e-6 * max(1.0, np.abs(theirs).max())
    assert float(client_side.loss(net, *batch()).detach()) == pytest.approx(value, rel=1e-6)


# --- a weight of 0, and the first step --------------------------------------------------------------------------------


@each_name
def test_the_teacher_is_the_same_bytes_after_local_training(name: str) -> None:
    net = tower()
    client_side = started(name, net)
    received = client_side.teacher.flat.clone()
    step = Sgd(net, TrainConfig(clip=10.0, weight_decay=1e-3, momentum=0.5), lr=0.1)
    client_side.train(net, lambda: iter([batch(seed=seed) for seed in range(4)]), step)
    assert torch.equal(client_side.teacher.flat, received)
    assert torch.count_nonzero(client_side.teacher.grad) == 0
    assert not torch.equal(net.flat, received)


@each_name
def test_what_is_reported_is_the_cross_entropy_alone(name: str) -> None:
    net = tower()
    client_side, plain = started(name, net), ClientUpdate(Options())
    shifted(net, by=0.3)
    client_side.loss(net, *batch())
    plain.loss(net, *batch())
    assert [float(loss) for loss in client_side.losses] == [float(loss) for loss in plain.losses]


@each_name
def test_parts_that_never_travel_are_taught_as_the_client_holds_them(name: str) -> None:
    net = tower()
    private = net.dump(["b4"])
    arrived = {key: vector for key, vector in whole(tower(seed=5))[MODEL].items() if key != "b4"}
    client_side = started(name, net)
    client_side.begin(net, {MODEL: arrived}, {MODEL: private}, visit(net))
    assert torch.equal(client_side.teacher.flat, net.flat)
    assert client_side.teacher.dump(["b4"])["b4"].version == private["b4"].version


def test_a_teacher_that_comes_down_is_the_one_that_teaches() -> None:
    net, other = tower(), tower(seed=5)
    client_side = started("fedgkd", net)
    client_side.begin(net, {**whole(net), TEACHER: whole(other)[MODEL]}, {}, visit(net, distil=1))
    assert torch.equal(client_side.teacher.flat, other.flat)
    _, theirs = slow(net, other, lambda z, t, y: cross_entropy(z[-1], y) + 0.1 * kl(t[-1], z[-1]))
    assert np.abs(gradient(client_side, net, *batch()) - theirs).max() < 2e-6
    assert np.abs(gradient(ClientUpdate(Options()), net, *batch()) - theirs).max() > 1e-3


# --- the divergence by hand -------------------------------------------------------------------------------------------


def taught(**options: Any) -> DistillationUpdate:
    return DistillationUpdate(FedGKDOptions(**{"weight": 1.0, **options}))


def test_extreme_logits_give_finite_losses_and_gradients() -> None:
    teacher = torch.tensor([[1e4, 0.0, -1e4], [0.0, 300.0, -300.0]])
    local = torch.tensor([[-1e4, 0.0, 1e4], [300.0, 0.0, -300.0]], requires_grad=True)
    loss = taught().divergence(teacher, local)
    torch.autograd.backward(loss)
    assert local.grad is not None
    assert torch.isfinite(loss) and torch.isfinite(local.grad).all()


# --- not-true distillation --------------------------------------------------------------------------------------------


def test_the_true_class_is_left_out_and_the_others_keep_their_order() -> None:
    client_side = FedNTDUpdate(FedNTDOptions())
    logits = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])
    assert client_side.seen(logits, torch.tensor([0, 1, 2])).tolist() == [[2, 3], [4, 6], [7, 8]]


# --- whole runs -------------------------------------------------------------------------------------------------------


BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=3)
CLIPPED = TrainConfig(lr=0.1, batch=64, clip=0.5, weight_decay=1e-3)
SENT = "SELECT round, client, direction, slot, key, nbytes FROM transfers"


# --- FedGKD: the mean of the last global models -----------------------------------------------------------------------


def test_with_a_buffer_of_one_it_is_additive_kd_with_the_same_weight_and_sends_nothing_more(tmp_path: Path) -> None:
    how: dict[str, Any] = {"train": CLIPPED, "rounds": 3, "weight": 0.4, "temperature": 2.0}
    gkd = play(tmp_path / "gkd", "fedgkd", buffer=1, **how)
    kd = play(tmp_path / "kd", "fedavg-kd", form="additive", **how)
    assert np.array_equal(gkd.model, kd.model)
    assert gkd.rows(SENT) == kd.rows(SENT)
    assert np.abs(play(tmp_path / "more", "fedgkd", **how).model - kd.model).max() > 1e-5


@pytest.mark.parametrize("policy", ["sync", "fedbuff", "fedasync"])
def test_the_teacher_is_the_mean_of_as_many_of_the_last_models_as_there_are(tmp_path: Path, policy: PolicyName) -> None:
    models: list[Payload] = []
    seen: list[int] = []

    def look(progress: RoundFinished) -> None:
        models.append(run.server.global_evaluation_model())
        teacher = run.server.download(0, progress.rounds).payload[TEACHER]
        for key, mean in teacher.items():
            last = [model[MODEL][key].data.astype(np.float64) for model in models[-3:]]
            assert np.array_equal(mean.data, np.mean(last, axis=0).astype(np.float32))
        seen.append(len({teacher["head"].version, *(model[MODEL]["head"].version for model in models)}))

    # One visit at a time, so that a round of fedasync is one server step.
    participants = 1 if policy == "fedasync" else 4
    run = federation(
        tmp_path, "fedgkd", buffer=3, rounds=4, train=BRIEF, participants=participants, on_round=look,
        rules=RoundPolicy(policy, buffer=2),
    )  # fmt: skip
    models.append(run.server.global_evaluation_model())
    assert run.server.download(0, 0).payload[TEACHER] == run.server.model
    try:
        run_rounds(run)
    finally:
        store(run).ledger.close()
    assert seen == [3, 4, 5, 6]  # so many different heads: every step's, and a mean that is none of them


def test_distillation_begins_after_the_first_round(tmp_path: Path) -> None:
    how: dict[str, Any] = {"train": BRIEF, "weight": 1.0}
    plain, first = play(tmp_path / "a", train=BRIEF, rounds=1), play(tmp_path / "b", "fedgkd", rounds=1, **how)
    assert np.array_equal(first.model, plain.model)
    at_once = play(tmp_path / "c", "fedgkd", rounds=1, silent_rounds=0, **how)
    assert np.abs(at_once.model - plain.model).max() > 1e-5
    # Four passes forward instead of three in all; a silent round computes no more than FedAvg.
    run = play(tmp_path / "d", "fedgkd", rounds=3, silent_rounds=2, **how)
    flops = [total for (total,) in run.rows("SELECT SUM(flops) FROM visits GROUP BY round")]
    assert flops[0] == flops[1] == plain.rows("SELECT SUM(flops) FROM visits")[0][0] < flops[2]


# --- its server, by hand ----------------------------------------------------------------------------------------------


def server(down: tuple[str, ...] = ("w", "w.buffers"), **options: Any) -> FedGKDServer:
    """A model of one parameter and one running statistic, which begins as (0, 8)."""
    layout, initial = Layout((BlockShape("w", 1, 1),)), {MODEL: {"w": vector(0), "w.buffers": vector(8)}}
    return FedGKDServer(small_context(layout, FedGKDOptions(**options), [1], initial, down=down))


def stepped(server_side: FedGKDServer, *numbers: float) -> FedGKDServer:
    """After one client's replies with these parameters, and statistics ten times as large."""
    for number in numbers:
        server_side.accumulate(Update(0, 0, {}, {MODEL: {"w": vector(number), "w.buffers": vector(10 * number)}}))
        server_side.step()
    return server_side


def sent(server_side: FedGKDServer, round: int = 9) -> dict[str, dict[str, float]]:
    payload = server_side.download(0, round).payload
    return {slot: {key: float(one.data[0]) for key, one in named.items()} for slot, named in payload.items()}


def test_the_buffer_forgets_the_oldest_model_by_hand() -> None:
    server_side = server(buffer=2)
    assert sent(server_side)[TEACHER] == {"w": 0, "w.buffers": 8}
    assert sent(stepped(server_side, 4))[TEACHER] == {"w": 2, "w.buffers": 24}
    assert sent(stepped(server_side, 6)) == {MODEL: {"w": 6, "w.buffers": 60}, TEACHER: {"w": 5, "w.buffers": 50}}
