"""Mixup: its mixtures and its loss by hand, and draws that change nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from edge.methods.mixup import MixupUpdate, mixed
from edge.protocol.options.mixup import MixupOptions
from edge.protocol.rng import keyed_generator
from scenarios.config.load import ScenarioError, load
from tests.toy import batch, tower, visit, whole


def test_a_mixture_by_hand() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 4.0], [8.0, 8.0]])
    order = torch.tensor([1, 2, 0])
    assert mixed(x, order, 0.75).tolist() == [[0.75, 1.0], [2.0, 5.0], [6.25, 6.0]]


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


def test_words_cannot_be_mixed(tmp_path: Path) -> None:
    scenario = tmp_path / "words.toml"
    scenario.write_text('method = "mixup"\n[data]\nname = "python-topics"\n[model]\nname = "text-cnn"\n')
    refusal = r"data\.name = 'python-topics': its examples are tokens; mixup takes images or features"
    with pytest.raises(ScenarioError, match=refusal):
        load(str(scenario))
