"""Hybrid pathways and their loss, against a slow and plain second implementation in double precision.

Loss and gradients are compared where local and global model differ, since at a round's first step much of it cancels;
in both forms, one pathway after the other and all in one sweep.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edge.methods.fedbr import FedBRUpdate
from edge.methods.fedmlb import FedMLBUpdate
from edge.protocol.config import TrainConfig
from edge.protocol.options.base import Options
from edge.protocol.options.fedbr import FedBROptions
from edge.protocol.options.fedmlb import FedMLBOptions
from edge.training.block_model import BlockModel
from edge.training.blocks import Block
from edge.training.client_update import ClientUpdate
from edge.training.pathways import PathwayForm, PathwayLoss
from edge.training.sgd import Sgd
from tests.toy import CPU, batch, gradient, shifted, tower, tower_blocks, visit, whole

BLOCKS = 4


FORMS: tuple[PathwayForm, ...] = ("each", "sweep")


def fedmlb(net: BlockModel, form: PathwayForm = "each", **options: Any) -> FedMLBUpdate:
    """FedMLB's client side at the start of a visit."""
    client_side = FedMLBUpdate(FedMLBOptions(**options))
    client_side.begin(net, whole(net), {}, replace(visit(net), pathways=form))
    return client_side


def fedbr(net: BlockModel, alpha: int, form: PathwayForm = "each", **options: Any) -> FedBRUpdate:
    """FedBR's client side at the start of a visit with a full download."""
    client_side = FedBRUpdate(FedBROptions(**options))
    client_side.begin(net, whole(net), {}, replace(visit(net, alpha=alpha, full=1), pathways=form))
    return client_side


# --- the divergence ---------------------------------------------------------------------------------------------------


def kl(p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
    """Σ p (log p − log q) of logits (batch, classes): sum over classes, mean over the batch."""

    def softmax(z: NDArray[np.float64]) -> NDArray[np.float64]:
        e = np.exp(z - z.max(axis=1, keepdims=True))
        return np.asarray(e / e.sum(axis=1, keepdims=True))

    a, b = softmax(p), softmax(q)
    return float((a * (np.log(a) - np.log(b))).sum(axis=1).mean())


def test_the_divergence_is_the_kl_of_tempered_softmaxes() -> None:
    rng = torch.Generator().manual_seed(0)
    hybrid, main = 3 * torch.randn(16, 10, generator=rng), 3 * torch.randn(16, 10, generator=rng)
    h, m = hybrid.double().numpy(), main.double().numpy()
    forward, backward = kl(h, m), kl(m, h)
    assert abs(forward - backward) > 0.1
    cases: list[tuple[dict[str, Any], float]] = [
        ({}, forward),
        ({"kl": "local-hybrid"}, backward),
        ({"kl": "symmetric"}, (forward + backward) / 2),
        ({"temperature": 3.0}, kl(h / 3, m / 3)),
        ({"temperature": 3.0, "kl_t2": True}, 9 * kl(h / 3, m / 3)),
    ]
    for options, expected in cases:
        loss = PathwayLoss(**{"lambda1": 1.0, "lambda2": 1.0, "temperature": 1.0, "divisor": None, **options})
        assert float(loss.divergence(*loss.tempered(hybrid[None], main))) == pytest.approx(expected, rel=1e-5)


# --- gradients where L and G differ -----------------------------------------------------------------------------------


def slow(
    net: BlockModel,
    frozen: BlockModel,
    pathways: Sequence[int],
    lambda1: float = 1.0,
    lambda2: float = 1.0,
    temperature: float = 1.0,
    divisor: float | None = None,
    local_first: bool = True,
    detach: bool = False,
    reverse: bool = False,
) -> tuple[float, NDArray[np.float64]]:
    """CE(z_L) + λ1/D Σ CE(z_m) + λ2/D Σ KL(σ(z_m/T) ‖ σ(z_L/T)) and its ∂/∂L, every pathway run from the images on."""
    local = [copy.deepcopy(module).double() for module in net.modules]
    fixed = [copy.deepcopy(module).double().requires_grad_(False) for module in frozen.modules]
    x, y = batch()

    def logits(blocks: Sequence[nn.Module]) -> Tensor:
        z = x.double()
        for block in blocks:
            z = block(z)
        return z

    def cross_entropy(z: Tensor) -> Tensor:
        return -torch.log(torch.softmax(z, 1))[torch.arange(len(y)), y].mean()

    def divergence(p: Tensor, q: Tensor) -> Tensor:
        p, q = torch.softmax(p / temperature, 1), torch.softmax(q / temperature, 1)
        return (p * (torch.log(p) - torch.log(q))).sum(1).mean()

    main = logits(local)
    total = cross_entropy(main)
    for m in pathways:
        z = logits(local[:m] + fixed[m:] if local_first else fixed[:m] + local[m:])
        target = z.detach() if detach else z
        term = divergence(main, target) if reverse else divergence(target, main)
        total = total + (lambda1 * cross_entropy(z) + lambda2 * term) / (divisor or len(pathways))
    grads = torch.autograd.grad(total, [p for module in local for p in module.parameters()])
    return float(total.detach()), torch.cat([grad.reshape(-1) for grad in grads]).numpy()


def assert_same(client_side: FedMLBUpdate | FedBRUpdate, net: BlockModel, pathways: Sequence[int], **how: Any) -> None:
    shifted(net)
    value, theirs = slow(net, client_side.frozen, pathways, **how)
    ours = gradient(client_side, net, *batch())
    assert np.abs(ours - theirs).max() < 2e-6 * max(1.0, np.abs(theirs).max())
    assert float(client_side.loss(net, *batch()).detach()) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("order", ["LG", "GL"])
@pytest.mark.parametrize("pathways", [None, (2,), (1, 3)])
def test_fedmlbs_gradient_with_any_pathways_in_both_orders(
    order: str, pathways: tuple[int, ...] | None, form: PathwayForm
) -> None:
    net = tower()
    client_side = fedmlb(net, form, order=order, pathways=pathways)
    assert_same(client_side, net, pathways or (1, 2, 3), local_first=order == "LG")


def test_fedmlbs_options_change_the_loss_as_they_say_and_its_divergence_moves_pathways_unless_detached() -> None:
    weighted: dict[str, Any] = {"lambda1": 0.5, "lambda2": 3.0, "temperature": 2.0}
    net = tower()
    assert_same(fedmlb(net, **weighted), net, (1, 2, 3), **weighted)
    net = tower()
    assert_same(fedmlb(net, pathways=(2,), norm="all"), net, (2,), divisor=3.0)
    net = tower()
    client_side = fedmlb(net, detach_hybrid_target=True)
    assert_same(client_side, net, (1, 2, 3), detach=True)
    assert np.abs(gradient(client_side, net, *batch()) - slow(net, client_side.frozen, (1, 2, 3))[1]).max() > 1e-4


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("alpha", "pathways"), [(1, (3,)), (2, (2, 3)), (3, (1, 2, 3))])
def test_fedbr_takes_the_last_alpha_pathways(alpha: int, pathways: tuple[int, ...], form: PathwayForm) -> None:
    net = tower()
    assert_same(fedbr(net, alpha, form), net, pathways)


@pytest.mark.parametrize("form", FORMS)
def test_fedbrs_options_change_the_loss_as_they_say(form: PathwayForm) -> None:
    for options, how in (
        ({"norm": "all"}, {"divisor": 3.0}),
        ({"norm": "none"}, {"divisor": 1.0}),
        ({"hybrid_ce": False}, {"lambda1": 0.0}),
        ({"kl": "local-hybrid"}, {"reverse": True}),
        ({"detach": True}, {"detach": True}),
        ({"detach": True, "hybrid_ce": False}, {"detach": True, "lambda1": 0.0}),
        ({"temperature": 2.0, "kl_t2": True}, {"temperature": 2.0, "lambda2": 4.0}),
    ):
        net = tower()
        assert_same(fedbr(net, 2, form, **options), net, (2, 3), **how)


# --- in one sweep -----------------------------------------------------------------------------------------------------


def heard(net: BlockModel) -> list[tuple[int, int]]:
    """(block counted from 0, examples) of every call of a net's blocks, from now on."""
    calls: list[tuple[int, int]] = []
    for index, module in enumerate(net.modules):
        module.register_forward_pre_hook(lambda _, inputs, index=index: calls.append((index, len(inputs[0]))))
    return calls


def test_a_sweep_takes_all_pathways_at_one_level_through_one_call_unless_a_prefix_learns_nothing() -> None:
    net = tower()
    client_side = fedmlb(net, "sweep")
    calls = heard(client_side.frozen)
    client_side.loss(net, *batch(8))
    assert calls == [(1, 8), (2, 16), (3, 24)]
    client_side = fedmlb(net, "each")
    calls.clear()
    client_side.loss(net, *batch(8))
    assert calls == [(1, 8), (2, 8), (3, 8), (2, 8), (3, 8), (3, 8)]
    net = tower()
    client_side = fedmlb(net, "sweep", order="GL")
    calls = heard(net)
    client_side.loss(net, *batch(8))
    # The main path, then: what enters a block has a fixed input, and runs apart from what came through local blocks.
    assert calls == [(0, 8), (1, 8), (2, 8), (3, 8), (1, 8), (2, 8), (2, 8), (3, 16), (3, 8)]


@pytest.mark.parametrize("order", ["LG", "GL"])
def test_both_forms_execute_the_same_passes(order: str) -> None:
    counts = []
    for form in FORMS:
        net = tower()
        client_side = fedmlb(net, form, order=order)
        net.executed[:] = 0
        client_side.loss(net, *batch(8))
        counts.append(net.executed.tolist())
    assert counts[0] == counts[1]
    through = {"LG": [8, 16, 24, 32], "GL": [8 + 8, 16 + 8, 24 + 8, 32]}[order]
    assert [row[0] for row in counts[0]] == through


def with_statistics() -> BlockModel:
    """Four blocks, of which the third mixes the examples of a batch while it trains."""

    def make() -> list[Block]:
        blocks = tower_blocks()
        blocks[2] = ("b3", nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Tanh()))
        return blocks

    return BlockModel(make, CPU)


def test_pathways_stay_apart_where_a_block_mixes_examples() -> None:
    x, y = batch(8)
    results = []
    for form in FORMS:
        net = with_statistics()
        client_side = fedmlb(net, form, order="GL")
        shifted(net)
        calls = heard(net)
        found = gradient(client_side, net, x, y)
        results.append((found, net.buffers.tolist(), [call for call in calls if call[0] == 2]))
    (each, each_statistics, _), (sweep, sweep_statistics, calls) = results
    assert np.allclose(sweep, each, rtol=1e-5, atol=1e-7)
    assert sweep_statistics == pytest.approx(each_statistics, rel=1e-6)
    assert calls == [(2, 8)] * 3  # the main path, and two pathways
    # The frozen model mixes no examples once it has running statistics, so its pathways sweep.
    net = with_statistics()
    net.buffers[:4] = 0.5
    client_side = fedmlb(net, "sweep")
    calls = heard(client_side.frozen)
    client_side.loss(net, x, y)
    assert calls == [(1, 8), (2, 16), (3, 24)]


# --- a round's first step ---------------------------------------------------------------------------------------------


def factors(client_side: ClientUpdate, net: BlockModel) -> list[float]:
    """By how much each block's gradient is larger than FedAvg's."""
    plain = ClientUpdate(Options())
    plain.begin(net, whole(net), {}, visit(net))
    mine, theirs = gradient(client_side, net, *batch()), gradient(plain, net, *batch())
    found = []
    for part in net.slices.values():
        factor = float(mine[part] @ theirs[part] / (theirs[part] @ theirs[part]))
        assert np.allclose(mine[part], factor * theirs[part], rtol=0, atol=1e-6)
        found.append(round(factor, 5))
    return found


def test_at_the_first_step_no_pathway_diverges_and_each_block_is_scaled_by_the_pathways_behind_it() -> None:
    net = tower()
    client_side = fedmlb(net, lambda1=0.0, lambda2=1.0)
    loss = client_side.loss(net, *batch())
    assert abs(float(loss.detach() - client_side.losses[-1])) < 1e-6
    assert factors(client_side, net) == [1.0, 1.0, 1.0, 1.0]
    # 1 + λ1 (M − j)/(M − 1), M = 4 and 6; half of that with λ1 = ½.
    assert factors(fedmlb(net, lambda1=0.5), net) == [1.5, 1.33333, 1.16667, 1.0]
    net = tower((5, 6, 6, 6, 6, 6, 3))
    assert factors(fedmlb(net), net) == [2.0, 1.8, 1.6, 1.4, 1.2, 1.0]
    # FedBR after a full download: 1 + λ1 min(α, M − j)/α with α = 3.
    assert factors(fedbr(net, 3), net) == [2.0, 2.0, 2.0, 1.66667, 1.33333, 1.0]


def trained_beside(client_side: FedMLBUpdate | FedBRUpdate, net: BlockModel) -> None:
    """Four steps, which change the local model and no bit of the frozen one."""
    received, statistics = client_side.frozen.flat.clone(), client_side.frozen.buffers.clone()
    step = Sgd(net, TrainConfig(clip=10.0, weight_decay=1e-3, momentum=0.5), lr=0.1)
    client_side.train(net, lambda: iter([batch(seed=seed) for seed in range(4)]), step)
    assert torch.equal(client_side.frozen.flat, received)
    assert torch.equal(client_side.frozen.buffers, statistics)
    assert not torch.equal(net.flat, received)


# --- a frozen model with running statistics ---------------------------------------------------------------------------


def normalised(seed: int = 0) -> BlockModel:
    """Four blocks with running statistics, but for the last; a ``seed`` other than 0 has changed them."""

    def make() -> list[Block]:
        torch.manual_seed(seed)
        inner = [nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Tanh()) for _ in range(BLOCKS - 1)]
        return [(f"b{m}", block) for m, block in enumerate([*inner, nn.Linear(5, 3)], 1)]

    net = BlockModel(make, CPU)
    net.buffers.add_(0.5 * seed)
    return net


@pytest.mark.parametrize(
    ("reading", "seed", "by_batch"), [("running", 1, False), ("running", 0, True), ("batch", 1, True)]
)
def test_a_frozen_models_running_statistics_are_the_same_bytes_after_local_training(
    reading: Literal["running", "batch"], seed: int, by_batch: bool
) -> None:
    for make in (fedmlb, lambda net: fedbr(net, 3)):
        net = normalised(seed)
        net.frozen_statistics = reading
        client_side, before = make(net), net.buffers.clone()
        assert [client_side.frozen.uses_batch_stats(index) for index in (1, 2, 3)] == [by_batch, by_batch, False]
        trained_beside(client_side, net)
        assert bool((net.buffers != before).all())


# --- FedBR's starting point and report --------------------------------------------------------------------------------


def test_the_drop_is_the_first_epochs_loss_less_the_last_ones() -> None:
    # The visit has one step per epoch.
    cases: list[tuple[list[float], dict[str, Any], float]] = [
        ([3.0, 2.0, 1.5], {}, 1.5),
        ([1.0, 2.5], {}, -1.5),
        ([1.0, 2.5], {"drop": "absolute"}, 1.5),
        ([3.0], {}, 0.0),
        ([], {}, 0.0),
    ]
    for losses, options, drop in cases:
        net = tower()
        client_side = fedbr(net, 1, **options)
        client_side.losses = [torch.tensor(loss) for loss in losses]
        assert client_side.end(net, visit(net))[2]["drop"] == drop
