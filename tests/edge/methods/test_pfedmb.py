"""The two phases of pFedMB on a client, step by step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from edge.methods.branched_layers import branched
from edge.methods.pfedmb import PFedMBUpdate, projected, renormalised
from edge.protocol.config import TrainConfig
from edge.protocol.options.pfedmb import ALL_LAYERS, ALPHA, WEIGHTS, PFedMBOptions
from edge.protocol.payload import MODEL, Vector
from edge.training.block_model import BlockModel
from edge.training.client_update import Batches, VisitContext
from edge.training.sgd import Sgd
from tests.toy import CPU, batch, tower_blocks, visit

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


def test_the_second_phase_is_a_fedavg_step_of_everything_but_the_branch_weights() -> None:
    net, other = net_with(), net_with()
    begun(net).train(net, batches(1, 2, 3), Sgd(net, ROUGH, 0.1))
    step = Sgd(other, ROUGH, 0.1)
    only = [key for key in other.layout.sizes if key not in of_alpha(other)]
    side = begun(other)
    for seed in (1, 2, 3):
        step(side.loss, *batch(seed=seed), only)
    assert torch.equal(net.flat, other.flat)


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


def test_permuted_branches_permute_the_result() -> None:
    swap = {"branch1": "branch3", "branch2": "branch1", "branch3": "branch2"}
    net, other = net_with(), net_with()
    given = net.dump(net.layout.sizes)
    permuted = {key.replace(name, new): given[key] for key in given for name, new in swap.items() if key.endswith(name)}
    other.load({**given, **permuted})
    for each in (net, other):
        begun(each, 1, 2).train(each, batches(3, 4), Sgd(each, TrainConfig(), 0.5))
    after, of_other = net.dump(given), other.dump(given)
    for key in given:
        name = key.rpartition("/")[2].rpartition(".")[2]
        expected = after[key].data[[1, 2, 0]] if name == WEIGHTS else after[key].data
        assert np.allclose(of_other[key.replace(name, swap.get(name, name))].data, expected, atol=1e-6)


def test_points_off_the_simplex_come_back_to_it() -> None:
    points = torch.tensor([[0.9, 0.5, -1.0], [0.2, 0.3, 0.5], [-1.0, -2.0, -1.0], [5.0, 0.0, 0.0]])
    # 0.2 is taken from the first two, so that they add up to 1 and the third is cut off.
    nearest = [[0.7, 0.3, 0.0], [0.2, 0.3, 0.5], [0.5, 0.0, 0.5], [1.0, 0.0, 0.0]]
    assert torch.allclose(projected(points), torch.tensor(nearest))
    shares = [[9 / 14, 5 / 14, 0.0], [0.2, 0.3, 0.5], [1 / 3, 1 / 3, 1 / 3], [1.0, 0.0, 0.0]]
    assert torch.allclose(renormalised(points), torch.tensor(shares))
