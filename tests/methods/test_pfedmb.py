"""pFedMB: means of branches by hand; layers of branches; what runs send, keep and cost; both phases of a client."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coordinator.aggregation.server import GLOBAL, ServerContext
from coordinator.methods.pfedmb import PFedMBServer
from edge.methods.branched_layers import BranchedLayer, branched
from edge.methods.pfedmb import PFedMBUpdate, projected, renormalised
from edge.protocol import client_state
from edge.protocol.config import ModelConfig, PartitionConfig, TrainConfig
from edge.protocol.messages import Update
from edge.protocol.options.pfedmb import (
    ALL_LAYERS,
    ALPHA,
    WEIGHTS,
    PFedMBOptions,
)
from edge.protocol.payload import MODEL, BlockShape, LayerShape, Layout, Vector
from edge.training.block_model import BlockModel
from edge.training.client_update import Batches, VisitContext
from edge.training.sgd import Sgd
from scenarios.config.load import ScenarioError, load
from scenarios.config.overrides import parse_all
from tests.crossed import every
from tests.toy import CPU, Run, batch, play, state_file, tower_blocks, vector, visit

BRIEF = TrainConfig(lr=0.1, batch=32, local_steps=2)
IID = PartitionConfig("iid")
HEAD = LayerShape("head/branch1", 1), LayerShape("head/branch2", 1), LayerShape("head/branch_weights", 2)
LAYOUT = Layout((BlockShape("norm", 1, 0, (LayerShape("norm", 1),)), BlockShape("head", 4, 0, HEAD)))
UP = ("norm", "head/branch1", "head/branch2")


def server(**given: Any) -> PFedMBServer:
    """Of two clients with 1 and 3 examples; the model's numbers are 0."""
    context = ServerContext(
        layout=LAYOUT,
        initial={MODEL: {key: Vector(np.zeros(size, np.float32)) for key, size in LAYOUT.sizes.items()}},
        options=PFedMBOptions(branches=2, **given),
        weights="size",
        down=UP,
        up=UP,
        seed=0,
        samples=np.array([1, 3]),
        histogram=np.ones((2, 1), np.int64),
    )
    return PFedMBServer(context)


def stepped(server: PFedMBServer, *updates: tuple[tuple[float, ...], tuple[float, ...]]) -> list[float]:
    """The model after updates of clients 0, 1, ..: (norm, branch 1, branch 2), (alpha 1, alpha 2)."""
    (layer,) = server.sent
    for client, (model, alpha) in enumerate(updates):
        sent = {key: vector(number) for key, number in zip(UP, model, strict=True)}
        server.accumulate(Update(client, 0, {}, {MODEL: sent, ALPHA: {layer: vector(*alpha)}}))
    server.step()
    return [float(server.models[GLOBAL][key].data[0]) for key in UP]


TWO = ((4.0, 4.0, 4.0), (0.75, 0.25)), ((8.0, 8.0, 8.0), (0.25, 0.75))


def test_branches_are_averaged_with_their_weights_and_all_else_by_size() -> None:
    # (1 * 4 + 3 * 8) / 4; branch 1: (0.75 * 4 + 0.75 * 8) / 1.5; branch 2: (0.25 * 4 + 2.25 * 8) / 2.5
    for shared in (False, True):
        assert stepped(server(shared_alpha=shared), *TWO) == pytest.approx([7, 6, 7.6])
    assert stepped(server(aggregation="plain"), *TWO) == [7, 7, 7]


def test_a_branch_that_nobody_uses_keeps_its_numbers() -> None:
    # A weight below 0, of alpha_param = "free", counts as 0.
    assert stepped(server(), ((4.0, 4.0, 4.0), (1.0, 0.0)), ((8.0, 8.0, 8.0), (1.0, -0.5))) == [7, 7, 0]
    assert stepped(server(), ((4.0, 4.0, 4.0), (1.0, 1e-13))) == [4, 4, 0]


# --- whole runs -------------------------------------------------------------------------------------------------------


def pfedmb(folder: Path, method: str = "pfedmb", **how: Any) -> Run:
    return play(folder, method, **{"branches": 3, "clients": 3, "partition": IID, "train": BRIEF, **how})


def test_weights_are_recorded_as_the_clients_keep_them(tmp_path: Path) -> None:
    run = pfedmb(tmp_path, rounds=2, alpha_lr=1.0)
    rows = run.rows("SELECT round, client, layer, branch, weight FROM pfedmb ORDER BY rowid")
    layers = ["conv1/0", "conv2/0", "conv3/0", "head"]
    of_visits = [(round, client) for round in (0, 1) for client in range(3)]
    expected = [(*visit, layer, branch) for visit in of_visits for layer in layers for branch in (1, 2, 3)]
    assert [row[:4] for row in rows] == expected
    for client in range(3):
        file = state_file(run.federation, client)
        assert file is not None
        kept = client_state.read(file)[MODEL]
        assert list(kept) == [*(f"{layer}.branch_weights" for layer in layers[:3]), "head/branch_weights"]
        softmax = [np.exp(each.data) / np.exp(each.data).sum() for each in kept.values()]
        recorded = [row[4] for row in rows if row[:2] == (1, client)]
        assert np.allclose(np.concatenate(softmax), recorded, atol=1e-6)
    assert len({row[4] for row in rows}) > 20
    assert all(np.all(each.data == 0) for key, each in run.federation.server.model.items() if "branch_weights" in key)


def test_branches_multiply_the_model_and_weights_add_a_few_bytes(tmp_path: Path) -> None:
    """The CNN on digits of width 4: 1250 parameters, all in four linear layers."""
    slots = "SELECT direction, slot, SUM(nbytes) FROM transfers WHERE slot != '' GROUP BY direction, slot"
    sent = pfedmb(tmp_path / "own", rounds=1).rows(slots)
    assert sent == [("down", "model", 3 * 3 * 5000), ("up", "alpha", 3 * 4 * 3 * 4), ("up", "model", 3 * 3 * 5000)]
    shared = pfedmb(tmp_path / "shared", rounds=1, shared_alpha=True)
    assert shared.rows(slots)[1] == ("up", "alpha", 3 * 4 * 3)
    assert {layer for (layer,) in shared.rows("SELECT layer FROM pfedmb")} == {ALL_LAYERS}


def flops(run: Run) -> tuple[float, int]:
    """FLOPs and steps of the first visit: as planned, and compared with the worker's count."""
    ((found, steps),) = run.rows("SELECT flops, steps FROM visits WHERE client = 0 AND round = 0")
    return found, steps


def test_two_phases_are_two_phases_on_the_clock(tmp_path: Path) -> None:
    """2 and 2 steps of 32 examples; per step 3 * 1250 numbers are mixed, for 4 FLOPs each."""
    fedavg, _ = flops(play(tmp_path / "fedavg", clients=3, partition=IID, train=BRIEF, rounds=1))
    both, steps = flops(pfedmb(tmp_path / "both", rounds=1))
    assert (both, steps) == (2 * fedavg + 4 * 4 * 3 * 1250, 4)
    alone, steps = flops(pfedmb(tmp_path / "alone", rounds=1, alpha_epochs=0))
    assert (alone, steps) == (fedavg + 2 * 4 * 3 * 1250, 2)


@pytest.mark.parametrize(
    ("method", "how"),
    every(
        2,
        [
            ("pfedmb+fedprox", {"mu": 0.1, "alpha_epochs": 1}),
            ("pfedmb", {"server": "fedadam", "server_options": {"lr": 0.01}, "alpha_param": "clip_renorm"}),
            ("pfedmb", {"model": ModelConfig("text-cnn", width=4), "examples": "python-topics", "branches": 2}),
            ("pfedmb", {"travels": ("everything", "everything"), "alpha_param": "free", "shared_alpha": True}),
        ],
    ),
    ids=["fedprox", "fedadam", "embedding", "everything"],
)
def test_it_costs_what_was_planned(method: str, how: dict[str, Any], tmp_path: Path) -> None:
    """A worker's count of other FLOPs ends a run; so does an embedding, through which no gradient of weights goes."""
    brief = replace(BRIEF, clip=1.0, momentum=0.5)
    run = pfedmb(tmp_path, method, rounds=1, clients=2, train=brief, eval_every=9, **how)
    assert run.rows("SELECT COUNT(*) FROM visits WHERE kind = 'train'") == [(2,)]
    sent = [(run.workers.bytes_down, run.workers.bytes_up)]
    assert run.rows("SELECT SUM(bytes_down), SUM(bytes_up) FROM visits") == sent


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (("rounds.policy=fedasync",), 'method_options.aggregation = "alpha": a server step with one update'),
        (("rounds.policy=fedbuff", "rounds.buffer=1"), 'choose "plain", or fedbuff with rounds.buffer above 1'),
        (("method=pfedmb+scaffold",), "each client mixes the branches"),
        (("aggregate.sum=fixed_point",), "pfedmb needs individual updates"),
    ],
)
def test_what_has_no_meaning_is_refused(given: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason):
        load("digits", parse_all(["method=pfedmb", *given]))


# --- the client side --------------------------------------------------------------------------------------------------


ROUGH = TrainConfig(momentum=0.5, weight_decay=0.1, clip=0.5)


def options(**given: Any) -> PFedMBOptions:
    return PFedMBOptions(**{"branches": 3, **given})


def net_with(**given: Any) -> BlockModel:
    return BlockModel(lambda: branched(tower_blocks(), options(**given), 3, None), CPU, by_layer=True)


def batches(*seeds: int) -> Batches:
    return lambda: iter([batch(seed=seed) for seed in seeds])


def of_alpha(net: BlockModel) -> list[str]:
    return [key for key in net.layout.sizes if key.endswith(WEIGHTS)]


def begun(net: BlockModel, *seeds: int, **given: Any) -> PFedMBUpdate:
    """A visit with these batches in phase A."""
    side = PFedMBUpdate(options(**given))
    weights = of_alpha(net)
    now: VisitContext = replace(
        visit(net),
        up=tuple(key for key in net.layout.sizes if key not in weights),
        keep=tuple(weights),
        phase=lambda purpose, epochs: batches(*seeds),
    )
    side.begin(net, {MODEL: net.dump(now.up)}, {MODEL: net.dump(now.keep)}, now)
    return side


def numbers(net: BlockModel) -> dict[str, bytes]:
    return {key: vector.version for key, vector in net.dump(net.layout.sizes).items()}


def changed(net: BlockModel, before: dict[str, bytes]) -> set[str]:
    return {key for key, version in numbers(net).items() if version != before[key]}


def test_each_phase_leaves_the_others_numbers_as_they_are() -> None:
    net = net_with()
    side, before = begun(net, 1, 2), numbers(net)
    side.train(net, batches(), Sgd(net, ROUGH, 0.5))
    assert changed(net, before) == set(of_alpha(net))
    side, before = begun(net), numbers(net)
    side.train(net, batches(1, 2), Sgd(net, ROUGH, 0.5))
    assert changed(net, before) == set(net.layout.sizes) - set(of_alpha(net))
    assert all(parameter.requires_grad for module in net.modules for parameter in module.parameters())


@pytest.mark.parametrize("kind", ["softmax", "project", "clip_renorm", "free"])
def test_branch_weights_are_on_the_simplex_after_every_step_unless_free(kind: str) -> None:
    net = net_with(alpha_param=kind)
    side, seen = begun(net, *range(8), alpha_param=kind, alpha_lr=20.0), []

    def watched(net: BlockModel, x: Tensor, y: Tensor) -> Tensor:
        seen.append(np.array([vector.data for vector in side.end(net, side.visit)[0][ALPHA].values()]))
        return type(side).loss(side, net, x, y)

    side.loss = watched  # type: ignore[method-assign]
    side.train(net, batches(0), Sgd(net, ROUGH, 0.1))
    assert np.array_equal(seen[0], np.full((4, 3), np.float32(1 / 3)))
    sums, least = [each.sum(axis=1) for each in seen], min(float(each.min()) for each in seen)
    on_simplex = all(np.allclose(each, 1, atol=1e-5) for each in sums) and least >= 0
    assert on_simplex == (kind != "free")
    assert np.abs(seen[-1] - seen[0]).max() > 0.05


def test_a_step_of_the_branch_weights_is_plain_gradient_descent() -> None:
    """No momentum, decay or clipping; with one set for all layers the gradients add up."""
    x, y = batch(seed=1)
    for shared in (False, True):
        net = net_with(alpha_param="free", shared_alpha=shared)
        side = begun(net, 1, alpha_param="free", shared_alpha=shared, alpha_lr=0.02)
        net.grad.zero_()
        torch.autograd.backward(PFedMBUpdate.loss(side, net, x, y))
        slopes = np.array([net.grad[net.slices[key]].numpy() for key in of_alpha(net)])
        side.visit = replace(side.visit, train=replace(ROUGH, lr=0.2), lr=0.1)  # the schedule has halved it
        side.train(net, batches(), Sgd(net, ROUGH, 0.1))
        got = np.array([net.flat[net.slices[key]].numpy() for key in of_alpha(net)])
        slope = slopes.sum(axis=0) if shared else slopes
        assert np.allclose(got, 1 / 3 - 0.01 * slope, atol=1e-7)


def test_shared_weights_are_kept_and_sent_once() -> None:
    net = net_with(shared_alpha=True)
    side = PFedMBUpdate(options(shared_alpha=True))
    weights = of_alpha(net)
    now = replace(visit(net), up=tuple(key for key in net.layout.sizes if key not in weights), keep=(weights[0],))
    stored = {MODEL: {weights[0]: Vector(np.log(np.array([0.5, 0.25, 0.25], np.float32)))}}
    side.begin(net, {MODEL: net.dump(now.up)}, stored, now)
    up, kept, _ = side.end(net, now)
    assert list(up[ALPHA]) == [ALL_LAYERS]
    assert np.allclose(up[ALPHA][ALL_LAYERS].data, [0.5, 0.25, 0.25])
    assert list(kept[MODEL]) == [weights[0]]
    assert all(torch.equal(net.flat[net.slices[key]], net.flat[net.slices[weights[0]]]) for key in weights)


@pytest.mark.parametrize(("kind", "moved"), [("both", True), ("weights", False)])
def test_an_adaptation_trains_both_or_the_branches_alone(kind: str, moved: bool) -> None:
    net = net_with()
    side, before = begun(net, 1, fine_tuning=kind), numbers(net)
    side.adapt(net, batches(1), Sgd(net, TrainConfig(), 0.1))
    assert changed(net, before) >= set(net.layout.sizes) - set(of_alpha(net))
    assert (set(of_alpha(net)) <= changed(net, before)) == moved


def test_points_off_the_simplex_come_back_to_it() -> None:
    points = torch.tensor([[0.9, 0.5, -1.0], [0.2, 0.3, 0.5], [-1.0, -2.0, -1.0], [5.0, 0.0, 0.0]])
    # 0.2 is taken from the first two, so that they add up to 1 and the third is cut off.
    nearest = [[0.7, 0.3, 0.0], [0.2, 0.3, 0.5], [0.5, 0.0, 0.5], [1.0, 0.0, 0.0]]
    assert torch.allclose(projected(points), torch.tensor(nearest))
    shares = [[9 / 14, 5 / 14, 0.0], [0.2, 0.3, 0.5], [1 / 3, 1 / 3, 1 / 3], [1.0, 0.0, 0.0]]
    assert torch.allclose(renormalised(points), torch.tensor(shares))


# --- layers of several branches ---------------------------------------------------------------------------------------


def of_branches(layer: BranchedLayer, branch: int) -> tuple[Tensor, Tensor]:
    one: Any = getattr(layer, f"branch{branch}")
    return one.weight, one.bias


def detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(5, 4), (2, 5)),
        (nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2, padding_mode="reflect"), (2, 4, 7, 7)),
        (nn.Conv1d(3, 4, 3, bias=False), (2, 3, 6)),
        (nn.ConvTranspose2d(3, 2, 2, stride=2), (2, 3, 4, 4)),
    ],
)
def test_mixed_weights_give_the_mixture_of_the_branches(layer: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    made = BranchedLayer(layer, 3, softmax=True, scale=1.0, branch_bias=True)
    made.branch_weights.numbers.data = torch.tensor([0.3, -1.0, 2.0])
    alpha, x = torch.softmax(torch.tensor([0.3, -1.0, 2.0]), 0), torch.randn(shape)
    separate = torch.zeros_like(made(x))
    for branch in (1, 2, 3):
        layer.weight, layer.bias = map(detached, of_branches(made, branch))  # type: ignore[assignment]
        separate += alpha[branch - 1] * layer(x)
        layer.weight = layer.bias = None  # type: ignore[assignment]
    assert (made(x) - separate).abs().max() < 1e-6


def test_branches_begin_different_and_the_first_is_the_layer_itself() -> None:
    layer = nn.Linear(200, 200)
    before = layer.weight.detach().clone()
    made = BranchedLayer(layer, 4, softmax=False, scale=2.0, branch_bias=False)
    weights = [of_branches(made, branch)[0].detach() for branch in (1, 2, 3, 4)]
    assert torch.equal(weights[0], 2 * before)
    assert len({float(weight[0, 0]) for weight in weights}) == 4
    mean = sum(0.25 * weight for weight in weights)
    assert isinstance(mean, Tensor)
    assert float(mean.std()) == pytest.approx(float(before.std()), rel=0.05)  # sqrt(4) keeps the variance
    assert of_branches(made, 1)[1] is None
    assert made.shared.bias is not None
    assert float(made.shared.bias.detach().abs().max()) <= 1 / math.sqrt(200)  # as it was made: not multiplied
