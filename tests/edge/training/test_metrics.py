"""A metric is one file and one row: accuracy, loss, accuracy per class, and a user's own."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from edge.protocol.messages import CORRECT, CROSS_ENTROPY, EvaluatedQuantity
from edge.training.client_update import Batch, Batches
from edge.training.metrics.accuracy import Accuracy
from edge.training.metrics.class_accuracy import ClassAccuracy
from edge.training.metrics.job_metrics import JobMetrics
from edge.training.metrics.loss import MeanLoss
from edge.training.metrics.metric import ModelInputs
from edge.training.metrics.registry import MetricRow
from tests.toy import batch, tower

OWN = "tests.plugins.gradient_norm:GRADIENT_NORM"
LOGITS = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 2.0, 0.0], [2.0, 0.0, 0.0]])
LABELS = torch.tensor([0, 0, 1, 2])


def measured(metric: object, logits: Tensor = LOGITS, labels: Tensor = LABELS) -> object:
    return metric.measure(tower(), logits, labels, logits)  # type: ignore[attr-defined]


def test_metrics_of_four_examples_by_hand() -> None:
    assert measured(Accuracy()) == {"": (2, 4)}  # the first and the third
    assert measured(ClassAccuracy()) == {"0": (1, 2), "1": (1, 1), "2": (0, 1)}
    right, wrong = math.log(math.exp(2) + 2) - 2, math.log(math.exp(2) + 2)
    assert measured(MeanLoss()) == {"": (pytest.approx(2 * right + 2 * wrong), 4)}


def test_sums_are_added_batch_by_batch_in_order() -> None:
    net, batches = tower(), [batch(8, seed=1), batch(3, seed=2)]
    values = JobMetrics(["class-accuracy"]).on_examples(net, batches)
    with torch.no_grad():
        losses = [float(F.cross_entropy(net.run(x).double(), y, reduction="sum")) for x, y in batches]
        correct = [(net.run(x).argmax(1) == y).tolist() for x, y in batches]
    classes = [EvaluatedQuantity("class-accuracy", label) for label in "012"]
    assert list(values) == [CORRECT, CROSS_ENTROPY, *classes]
    assert values[CORRECT] == (sum(map(sum, correct)), 11)
    assert values[CROSS_ENTROPY] == (losses[0] + losses[1], 11)
    assert sum(values[label][0] for label in classes) == values[CORRECT][0]


def test_a_metric_of_the_whole_model_has_gradients_examples_of_its_split_and_a_generator() -> None:
    net, (x, y), asked = tower(), batch(8), []
    net.train_only(["b1"])  # as some method left it
    net.grad.fill_(7.0)

    def batches(split: str | None, inputs: ModelInputs) -> Batches:
        asked.append((split, inputs))

        def once() -> Iterator[Batch]:
            yield x, y

        return once

    def streams(purpose: str, is_shared: bool) -> np.random.Generator:
        return np.random.default_rng(len(purpose) + 1000 * is_shared)

    values = JobMetrics([OWN]).on_model(net, batches, streams)
    net.grad.zero_()
    torch.autograd.backward(F.cross_entropy(net.run(x), y))
    drawn = np.random.default_rng(len("metric gradient-norm")).random()
    assert asked == [("train", ModelInputs())]
    assert values == {
        EvaluatedQuantity("gradient-norm"): (float(torch.linalg.vector_norm(net.grad)), 1),
        EvaluatedQuantity("gradient-norm", "examples"): (8.0, 1),
        EvaluatedQuantity("gradient-norm", "drawn"): (drawn, 1),
    }


def test_rows_that_no_evaluation_can_use() -> None:
    with pytest.raises(ValueError, match="a metric cannot be named 'a/b'"):
        MetricRow("a/b", "", "m:C")
    with pytest.raises(ValueError, match="a metric cannot be named 'before', as values of evaluations are"):
        MetricRow("before", "", "m:C")
    with pytest.raises(ValueError, match="metric a: split = 'train' needs per_example = False"):
        MetricRow("a", "", "m:C", split="train")
    with pytest.raises(ValueError, match=r"eval\.metrics: 'builtins:dict' is not a metric"):
        JobMetrics(["tests.edge.training.test_metrics:NO_METRIC"])


NO_METRIC = MetricRow("none", "", "builtins:dict")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (3.0, "AttributeError: 'float' object has no attribute 'items'"),
        ({"": (1.0, -5)}, "ValueError: own: a sum over -5 examples"),
        ({"a\nb": (1.0, 1)}, "ValueError: 'own/a\\nb' cannot be the name of a value"),
        ({str(part): (1.0, 1) for part in range(2001)}, "ValueError: an evaluation has at most 2000 values"),
    ],
)
def test_what_no_score_can_carry_names_the_metric(given: object, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = MetricRow("own", "what is given", "edge.training.metrics.accuracy:Accuracy")
    monkeypatch.setattr("edge.training.metrics.job_metrics.metric_rows", lambda names, score: [row])
    monkeypatch.setattr(Accuracy, "measure", lambda *arguments: given)
    with pytest.raises(ValueError, match="^" + re.escape(f"eval.metrics: own ({row.measure}): {problem}") + "$"):
        JobMetrics(["own"]).on_examples(tower(), [batch(4, seed=1)])
