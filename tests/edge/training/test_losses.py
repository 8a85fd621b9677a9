"""Losses by hand, what a model with each foresees in units, and metrics from sums, beside scikit-learn's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as theirs
from torch import Tensor
from torch.nn import functional as F

from edge.protocol.config import TrainConfig
from edge.protocol.losses import LOSSES
from edge.protocol.plugins import load
from edge.training.criterion import criterion
from edge.training.metrics import finishing
from edge.training.metrics.job_metrics import JobMetrics
from edge.training.metrics.loss import MeanLoss
from edge.training.metrics.registry import METRICS
from edge.training.metrics.scores import ScoreHistogram
from tests.toy import batch, tower

NAIVE = 2.5
"""Error of the naive forecast in training"""


def targets(y: list[list[float]], mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Real targets as batches have them."""
    units = torch.tensor(y)
    return torch.stack((units, *(torch.full_like(units, number) for number in (mean, std, NAIVE))), dim=1)


@pytest.mark.parametrize(
    ("loss", "options", "outputs", "y", "expected"),
    [
        ("mse", {}, [[1.0, 2.0], [0.0, 0.0]], [[3.0, 2.0], [1.0, -1.0]], [2.0, 1.0]),
        ("mae", {}, [[1.0, 2.0], [0.0, 0.0]], [[3.0, 2.0], [1.0, -2.0]], [1.0, 1.5]),
        # Errors of 2 and 0.5: 2 - 0.5, and 0.5 ** 2 / 2.
        ("huber", {}, [[1.0, 2.0]], [[3.0, 2.5]], [(1.5 + 0.125) / 2]),
        ("huber", {"delta": 2.0}, [[1.0]], [[3.0]], [2.0]),
        # y = 2: e = 1 at quantile 0.1, 0 at 0.5, -3 at 0.9.
        ("pinball", {}, [[1.0, 2.0, 5.0]], [[2.0]], [(0.1 * 1 + 0 + 0.1 * 3) / 3]),
        # Mean 1, log variance log 4: (log 4 + 9/4 + log 2 pi) / 2.
        ("gaussian-nll", {}, [[1.0, math.log(4)]], [[4.0]], [(math.log(4) + 9 / 4 + math.log(2 * math.pi)) / 2]),
        ("bce", {}, [[0.0, 100.0]], [[1.0, 1.0]], [math.log(2) / 2]),
        ("reconstruction", {}, [[1.0, 2.0]], [[3.0, 2.0]], [2.0]),
    ],
)
def test_a_loss_by_hand(
    loss: str, options: dict[str, Any], outputs: list[list[float]], y: list[list[float]], expected: list[float]
) -> None:
    made = criterion(TrainConfig(loss=loss, loss_options=options))
    assert made.each(torch.tensor(outputs), targets(y)).tolist() == pytest.approx(expected)
    assert float(made(torch.tensor(outputs), targets(y))) == pytest.approx(sum(expected) / len(expected))
    assert float(made.total(torch.tensor(outputs), targets(y))) == pytest.approx(sum(expected))


def test_targets_are_standardised_for_training_and_forecasts_are_in_units() -> None:
    made = criterion(TrainConfig(loss="mse"))
    y = targets([[110.0]], mean=100.0, std=5.0)
    assert float(made(torch.tensor([[1.5]]), y)) == pytest.approx(0.25)  # of 2 standard deviations
    assert made.foreseen(torch.tensor([[1.5]]), y).tolist() == [[107.5]]
    quantiles = criterion(TrainConfig(loss="pinball", loss_options={"quantiles": (0.05, 0.4, 0.9)}))
    assert quantiles.foreseen(torch.tensor([[1.0, 2.0, 3.0]]), y).tolist() == [[110.0]]
    assert quantiles.outputs_in_units(torch.tensor([[1.0, 2.0, 3.0]]), y).tolist() == [[[105.0, 110.0, 115.0]]]


def test_the_cross_entropy_of_classifiers_is_torchs_to_the_bit() -> None:
    logits, y = torch.randn(50, 7), torch.randint(7, (50,))
    made = criterion(TrainConfig())
    assert torch.equal(made(logits, y), F.cross_entropy(logits, y))
    assert torch.equal(made.total(logits, y), F.cross_entropy(logits, y, reduction="sum"))


def test_every_loss_names_what_its_runs_are_judged_by() -> None:
    assert {name: row.score for name, row in LOSSES.items()} == {
        "cross-entropy": "accuracy", "mse": "rmse", "mae": "mae", "huber": "rmse", "pinball": "pinball",
        "gaussian-nll": "loss", "bce": "f1", "reconstruction": "rmse", "next-token": "perplexity",
    }  # fmt: skip
    options = {name: row.options() for name, row in LOSSES.items()}
    outputs = {name: row.outputs(options[name]) for name, row in LOSSES.items()}
    assert outputs["pinball"] == 3 and outputs["gaussian-nll"] == 2
    assert {outputs[name] for name in ("mse", "mae", "huber", "bce", "reconstruction")} == {1}


def measured(train: TrainConfig, *names: str) -> tuple[dict[str, float], np.ndarray, np.ndarray, np.ndarray]:
    """(values of metrics over three batches, targets, outputs in units, point forecasts) of a net with 3 outputs."""
    net = tower()
    net.criterion = criterion(train)
    rng = torch.Generator().manual_seed(3)
    numbers = 3 // net.criterion.row.outputs(net.criterion.options)
    batches = []
    for seed in range(3):
        x, _ = batch(seed=seed)
        units = 5 * torch.randn(len(x), numbers, generator=rng) + 20
        if train.loss == "bce":
            units = (units > 20).float()
        mean, std = (0.0, 1.0) if train.loss == "bce" else (20.0, 5.0)
        batches.append((x, targets(units.tolist(), mean, std)))
    sums = JobMetrics(names, {}, train).on_examples(net, batches)
    parts: dict[str, dict[str, tuple[float, int]]] = {}
    for quantity, pair in sums.items():
        parts.setdefault(quantity.metric, {})[quantity.part or ""] = pair
    finishes = {name: load(row.finish) for name, row in METRICS.items() if row.finish is not None}
    values = {
        name: finishes[name](each) if name in finishes else each[""][0] / each[""][1] for name, each in parts.items()
    }
    x, y = (torch.cat(each) for each in zip(*batches, strict=True))
    with torch.no_grad():
        outputs = net.run(x)
        units = net.criterion.outputs_in_units(outputs, y) if train.loss != "bce" else outputs
        return values, y[:, 0].numpy(), units.numpy(), net.criterion.foreseen(outputs, y).numpy()


def test_errors_of_forecasts_are_pooled_over_batches() -> None:
    values, y, _, foreseen = measured(TrainConfig(loss="huber"), "mae", "r2", "mase")
    assert values["rmse"] == pytest.approx(theirs.mean_squared_error(y, foreseen) ** 0.5)
    assert values["mae"] == pytest.approx(theirs.mean_absolute_error(y, foreseen))
    assert values["r2"] == pytest.approx(theirs.r2_score(y.ravel(), foreseen.ravel()), rel=1e-4)
    assert values["mase"] == pytest.approx(values["mae"] / NAIVE)


def test_quantiles_have_a_loss_in_units_and_cover_targets() -> None:
    values, y, units, foreseen = measured(TrainConfig(loss="pinball"), "coverage", "rmse")
    losses = [theirs.mean_pinball_loss(y[:, 0], units[:, 0, at], alpha=q) for at, q in enumerate((0.1, 0.5, 0.9))]
    assert values["pinball"] == pytest.approx(np.mean(losses))
    within = (units[:, 0, 0] <= y[:, 0]) & (y[:, 0] <= units[:, 0, 2])
    assert values["coverage"] == pytest.approx(within.mean())
    assert foreseen[:, 0].tolist() == units[:, 0, 1].tolist()


def test_f1_counts_all_labels_together() -> None:
    values, y, outputs, _ = measured(TrainConfig(loss="bce"))
    assert values["f1"] == pytest.approx(theirs.f1_score(y.ravel(), (outputs.ravel() >= 0).astype(float)))


def test_auroc_of_labels_pools_them_all() -> None:
    values, y, outputs, _ = measured(TrainConfig(loss="bce"), "auroc")
    assert values["auroc"] == pytest.approx(theirs.roc_auc_score(y.ravel(), outputs.ravel()), abs=0.05)


def test_auroc_and_perplexity_of_classifiers() -> None:
    rng = np.random.default_rng(5)
    for classes in (2, 4):
        y = rng.integers(classes, size=3000)
        logits = rng.normal(size=(3000, classes)) + 1.5 * np.eye(classes)[y]
        given = tower(), torch.empty(0), torch.from_numpy(y), torch.from_numpy(logits).float()
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        one_hot = np.eye(classes)[y]
        scores, has = (p[:, 1], y) if classes == 2 else (p, one_hot)
        expected = theirs.roc_auc_score(has, scores, average="micro")
        assert finishing.auroc(ScoreHistogram().measure(*given)) == pytest.approx(expected, abs=1e-3)
        found = finishing.perplexity(MeanLoss().measure(*given))
        assert found == pytest.approx(math.exp(theirs.log_loss(y, p)), rel=1e-5)


def test_auroc_by_hand_with_ties_certainty_and_nan() -> None:
    # Odds of the second class: sure and right, tied in the middle (also NaN), sure and wrong.
    logits = torch.tensor([[0.0, 900.0], [0.0, 0.0], [0.0, 0.0], [math.nan, 0.0], [0.0, 900.0]])
    sums = ScoreHistogram().measure(tower(), torch.empty(0), torch.tensor([1, 1, 0, 0, 0]), logits)
    assert sums == {"p48": (1.0, 1), "p95": (1.0, 1), "n48": (2.0, 2), "n95": (1.0, 1)}
    # Of six pairs, the upper positive wins two and ties one; the lower ties two and loses one.
    assert finishing.auroc(sums) == pytest.approx((2.5 + 1) / 6)


def test_a_value_that_there_is_not_is_nan() -> None:
    assert math.isnan(finishing.auroc({"p3": (2.0, 2)}))
    assert math.isnan(finishing.perplexity({"": (0.0, 0)})) and math.isnan(finishing.perplexity({"": (1e6, 1)}))
    assert math.isnan(finishing.root_mean({"": (0.0, 0)}))
    assert math.isnan(finishing.explained_variance({"e2": (1.0, 2), "y": (4.0, 2), "y2": (8.0, 2)}))
    assert math.isnan(finishing.f1({"tp": (0.0, 3), "fp": (0.0, 3), "fn": (0.0, 3)}))


def test_a_loss_of_another_shape_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.training.losses.mse", lambda outputs, targets, options: outputs.mean())
    with pytest.raises(ValueError, match=r"train.loss: edge.training.losses:mse gives \(\) for 2 examples"):
        criterion(TrainConfig(loss="mse"))(torch.zeros(2, 1), targets([[1.0], [2.0]]))
