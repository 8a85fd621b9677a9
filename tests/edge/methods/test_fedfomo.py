"""A client of FedFomo weighs models by how far its validation loss falls per distance, and mixes them into its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from edge.methods.fedfomo import FedFomoUpdate, first_order_weights
from edge.protocol.options.fedfomo import FedFomoOptions, mix_weights
from edge.protocol.payload import FORWARD, MODEL, WEIGHT_GRADIENT, Payload
from edge.training.block_model import BlockModel
from edge.training.client_update import VisitContext, no_batches
from tests.toy import batch, tower, visit

KEYS = ("b1", "b2", "b3", "b4")


def flat(seed: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array(tower(seed=seed).flat.detach().numpy())


def loss(seed: int) -> float:
    with torch.no_grad():
        x, y = batch(6, seed=3)
        return float(F.cross_entropy(tower(seed=seed).run(x), y))


def context(net: BlockModel) -> VisitContext:
    """A visit with six validation examples."""
    return replace(visit(net), validation=lambda: iter([batch(6, seed=3)]))


def begun(peers: Sequence[int], own: int, previous: int, count: int = 5) -> tuple[BlockModel, FedFomoUpdate]:
    """A visit that downloads models of these seeds."""
    net, client_side = tower(), FedFomoUpdate(FedFomoOptions(peers=count))
    down: Payload = {f"peer{index}": tower(seed=seed).dump(KEYS) for index, seed in enumerate(peers)}
    state = {"own": tower(seed=own).dump(KEYS), "previous": tower(seed=previous).dump(KEYS)}
    client_side.begin(net, down, state, context(net))
    return net, client_side


def test_weights_are_falls_of_the_loss_per_distance_and_a_mix_normalises_the_positive_ones() -> None:
    weights = first_order_weights(np.array([1.0, -1.0, 3.0]), np.array([2.0, 1.0, 2.0]))
    assert weights == pytest.approx([0.5, -1.0, 1.5], rel=1e-4)
    assert mix_weights(weights.astype(np.float64)) == pytest.approx([0.25, 0.0, 0.75], rel=1e-4)
    assert mix_weights(np.array([-1.0, 0.0])).tolist() == [0.0, 0.0]
    assert first_order_weights(np.array([np.nan, -np.inf]), np.ones(2)).tolist() == [0.0, 0.0]


def test_the_start_is_the_mix_by_hand_and_lies_between_the_models() -> None:
    seeds = sorted(range(1, 9), key=loss)
    good, better, worst = seeds[1], seeds[0], seeds[-1]
    net, client_side = begun((good, seeds[-2], better), own=seeds[3], previous=worst)
    candidates = (good, seeds[-2], better, seeds[3])
    falls = np.array([loss(worst) - loss(seed) for seed in candidates])
    slopes = falls / [np.linalg.norm(flat(seed) - flat(worst)) + 1e-5 for seed in candidates]
    assert client_side.weights == pytest.approx([*slopes[:3], 0.0, 0.0, slopes[3]], rel=1e-4)
    expected = np.maximum(0.0, slopes) / np.maximum(0.0, slopes).sum()
    mixed = sum(weight * flat(seed) for weight, seed in zip(expected, candidates, strict=True))
    assert np.allclose(net.flat.detach().numpy(), mixed, atol=1e-5)
    stacked = np.stack([flat(seed) for seed in candidates])
    numbers = net.flat.detach().numpy()
    assert (stacked.min(axis=0) - 1e-6 <= numbers).all() and (numbers <= stacked.max(axis=0) + 1e-6).all()


def test_without_a_better_model_it_keeps_its_own_to_the_bit() -> None:
    seeds = sorted(range(1, 9), key=loss)
    net, client_side = begun(seeds[3:], own=seeds[2], previous=seeds[0])
    assert (client_side.weights < 0).all()
    assert np.array_equal(net.flat.detach().numpy(), flat(seeds[2]))


def test_it_evaluates_the_downloads_its_own_model_and_the_start_before() -> None:
    net, _ = begun((1, 2), own=3, previous=4)
    assert net.executed[:, FORWARD].tolist() == [(2 + 2) * 6] * 4
    assert not net.executed[:, WEIGHT_GRADIENT].any()
    assert all(module.training for module in net.modules)
    alone, _ = begun((), own=3, previous=4)
    assert not alone.executed.any()


def test_without_validation_examples_it_keeps_its_own_model() -> None:
    net, client_side = tower(), FedFomoUpdate(FedFomoOptions(peers=1))
    state = {"own": tower(seed=3).dump(KEYS), "previous": tower(seed=4).dump(KEYS)}
    client_side.begin(net, {"peer0": tower(seed=1).dump(KEYS)}, state, replace(visit(net), validation=no_batches))
    assert np.array_equal(net.flat.detach().numpy(), flat(3))


def test_it_keeps_its_model_and_what_it_started_from() -> None:
    net, client_side = begun((1, 2), own=3, previous=4)
    start = np.array(net.flat.detach().numpy())
    with torch.no_grad():
        net.flat.add_(1.0)
    up, state, _ = client_side.end(net, context(net))
    assert np.array_equal(np.concatenate([state["previous"][key].data for key in KEYS]), start)
    assert np.array_equal(np.concatenate([state["own"][key].data for key in KEYS]), start + 1)
    assert {slot: [*named] for slot, named in up.items()} == {MODEL: [*KEYS], "weights": ["candidates"]}
    assert up["weights"]["candidates"].data == pytest.approx(client_side.weights)
