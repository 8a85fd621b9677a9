"""The metrics of one job, measured on a model. Sums are added batch by batch, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch

from edge.protocol.config import EvalSplit, TrainConfig
from edge.protocol.messages import LOSS, MAX_VALUE_NAME, MAX_VALUES, EvaluatedQuantity
from edge.protocol.payload import Payload
from edge.protocol.plugins import error_text, load
from edge.training.block_model import BlockModel
from edge.training.client_update import Batch, Batches
from edge.training.exits import exit_logits
from edge.training.metrics.metric import Metric, ModelInputs, Sums
from edge.training.metrics.registry import MetricRow, metric_rows

PLAIN = TrainConfig()
Values = dict[EvaluatedQuantity, tuple[float, int]]
"""Quantity -> (sum, number), as in `edge.protocol.messages.Score`"""


class JobMetrics:
    """The metric that the job is judged by, the loss, and its further metrics by name.

    ``options``: by name of the metric, as in ``eval.metric_options``.
    """

    def __init__(
        self,
        names: Sequence[str],
        options: Mapping[str, Mapping[str, Any]] | None = None,
        train: TrainConfig = PLAIN,
    ) -> None:
        made = list[tuple[MetricRow, Metric]]()
        for row in metric_rows(names, train.score):
            chosen = row.chosen(options or {})
            try:
                factory = load(row.measure)
            except ValueError as error:
                raise ValueError(f"eval.metrics: {error}") from None
            with _named(row):
                metric = factory() if chosen is None else factory(chosen)
            if not isinstance(metric, Metric):
                raise ValueError(f"eval.metrics: {row.measure!r} is not a metric")
            made.append((row, metric))
        self._of_batches = [(row, metric) for row, metric in made if row.per_example]
        self._of_all = [(row, metric) for row, metric in made if row.name in (train.score, LOSS)]
        self._of_models = [(row, metric) for row, metric in made if not row.per_example]

    def on_examples(self, net: BlockModel, batches: Iterable[Batch]) -> Values:
        """The metrics that add up over batches, and score and loss of each exit of a model with several."""
        return _summed(self._of_batches, net, batches, self._of_all)

    def score_and_loss(
        self,
        net: BlockModel,
        batches: Iterable[Batch],
        kind: Literal["before", "validation"] | None = None,
        rate: float | None = None,
    ) -> Values:
        """The score and the loss alone, as values of this kind or rate; none without examples."""
        values = _summed(self._of_all, net, batches)
        return {quantity._replace(kind=kind, rate=rate): value for quantity, value in values.items()}

    def on_model(
        self,
        net: BlockModel,
        batches: Callable[[EvalSplit | None, ModelInputs], Batches],
        rng: Callable[[str, bool], np.random.Generator],
    ) -> Values:
        """The metrics of a whole model.

        ``batches``: (split, of which None is the evaluated one; the metric's inputs) -> examples. ``rng``: (purpose,
        whether all models share it) -> generator.
        """
        values: Values = {}
        for row, metric in self._of_models:
            net.train_only()
            net.grad.zero_()
            with _named(row):
                inputs = metric.inputs
                generator = rng(f"metric {row.name}", inputs.shares_draws)
                _add(values, row, metric.measure_model(net, batches(row.split, inputs), generator))
        return values

    def vectors(self) -> Payload:
        """Name of a metric -> its vectors of the model that was measured last, of those with any."""
        by_metric = {row.name: dict(metric.vectors()) for row, metric in self._of_models}
        return {name: vectors for name, vectors in by_metric.items() if vectors}


def _summed(
    metrics: Sequence[tuple[MetricRow, Metric]],
    net: BlockModel,
    batches: Iterable[Batch],
    of_exits: Sequence[tuple[MetricRow, Metric]] = (),
) -> Values:
    values: Values = {}
    with torch.inference_mode():
        for x, y in batches:
            logits = net.run(x)
            for row, metric in metrics:
                with _named(row):
                    _add(values, row, metric.measure(net, x, y, logits))
            for number, outputs in enumerate(exit_logits(net), start=1):
                for row, metric in of_exits:
                    _add(values, row, metric.measure(net, x, y, outputs.float()), number)
    return values


@contextmanager
def _named(row: MetricRow) -> Iterator[None]:
    """Name the metric in an error: a user's may raise anything, and give what is no sum."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"eval.metrics: {row.name} ({row.measure}): {error_text(error)}") from error


def _add(values: Values, row: MetricRow, sums: Sums, exit: int | None = None) -> None:
    """Add the sums of a batch. ValueError for what no score can carry."""
    for part, (total, count) in sums.items():
        quantity = EvaluatedQuantity(row.name, part or None, exit=exit)
        name = quantity.name
        if not len(name) <= MAX_VALUE_NAME or not name.isprintable():
            raise ValueError(f"{name[:MAX_VALUE_NAME]!r} cannot be the name of a value")
        if not 0 <= count < 1 << 63:
            raise ValueError(f"{name}: a sum over {count} examples")
        before, number = values.get(quantity, (0.0, 0))
        values[quantity] = before + float(total), number + int(count)
        if len(values) > MAX_VALUES:
            raise ValueError(f"an evaluation has at most {MAX_VALUES} values")
