"""Mixup: its mixtures and its loss by hand, and draws that change nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from edge.methods.mixup import MixupUpdate, mixed, mixed_cross_entropy
from edge.protocol.options.base import Options
from edge.protocol.options.mixup import MixupOptions
from edge.protocol.rng import keyed_generator
from edge.training.client_update import ClientUpdate
from scenarios.config.load import ScenarioError, load
from tests.toy import batch, gradient, tower, visit, whole


def test_a_mixture_by_hand() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 4.0], [8.0, 8.0]])
    order = torch.tensor([1, 2, 0])
    assert mixed(x, order, 0.75).tolist() == [[0.75, 1.0], [2.0, 5.0], [6.25, 6.0]]


def test_half_of_each_example_and_the_same_again_is_the_example() -> None:
    (x, y), z = batch(), torch.randn(8, 3, generator=torch.Generator().manual_seed(2))
    assert torch.equal(mixed(x, torch.arange(8), 0.5), x)
    assert torch.equal(mixed_cross_entropy(z, y, y, 0.5), F.cross_entropy(z, y))


def test_the_loss_is_linear_in_lambda() -> None:
    (_, y), z = batch(), torch.randn(8, 3, generator=torch.Generator().manual_seed(2))
    ends = [float(mixed_cross_entropy(z, y, y.flip(0), weight)) for weight in (0.0, 1.0)]
    assert ends == [pytest.approx(float(F.cross_entropy(z, labels))) for labels in (y.flip(0), y)]
    assert float(mixed_cross_entropy(z, y, y.flip(0), 0.25)) == pytest.approx(0.75 * ends[0] + 0.25 * ends[1])


def test_images_keep_their_memory_format() -> None:
    x = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    assert mixed(x, torch.tensor([3, 0, 1, 2]), 0.3).is_contiguous(memory_format=torch.channels_last)


def test_each_batch_has_its_lambda_and_its_permutation_from_streams_of_their_own() -> None:
    net, client_side = tower(), MixupUpdate(MixupOptions(gamma=2.0))
    client_side.begin(net, whole(net), {}, visit(net))
    weights, orders = (keyed_generator(0, f"mixup: {what}", 0, 0) for what in ("lambda", "permutation"))
    for seed in (1, 2):
        x, y = batch(seed=seed)
        weight, order = weights.beta(2.0, 2.0), orders.permutation(8)
        z = net.run(weight * x + (1 - weight) * x[order])
        expected = weight * F.cross_entropy(z, y) + (1 - weight) * F.cross_entropy(z, y[order])
        assert float(client_side.loss(net, x, y).detach()) == pytest.approx(float(expected.detach()), rel=1e-6)


def test_without_gamma_it_is_fedavg() -> None:
    net, (x, y) = tower(), batch()
    client_side = MixupUpdate(MixupOptions(gamma=0))
    client_side.begin(net, whole(net), {}, visit(net))
    assert np.array_equal(gradient(client_side, net, x, y), gradient(ClientUpdate(Options()), net, x, y))


def test_words_cannot_be_mixed(tmp_path: Path) -> None:
    scenario = tmp_path / "words.toml"
    scenario.write_text('method = "mixup"\n[data]\nname = "python-topics"\n[model]\nname = "text-cnn"\n')
    refusal = r"data\.name = 'python-topics': its examples are tokens; mixup takes images or features"
    with pytest.raises(ScenarioError, match=refusal):
        load(str(scenario))
