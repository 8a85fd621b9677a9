"""The metrics, one row each. Adding one = one file with its `Metric` + one row here. No torch in this table.

``eval.metrics`` names rows, or a user's own row as ``module:NAME``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edge.protocol.better import HIGHER, LOWER, Better
from edge.protocol.config import EvalSplit
from edge.protocol.messages import ACCURACY, BEFORE, LOSS, MAX_VALUE_NAME, SUBVALUE, VALIDATION
from edge.protocol.plugins import PluginOptions, find
from edge.training.metrics.hessian_options import HessianOptions, SurfaceOptions


@dataclass(frozen=True)
class MetricRow:
    """One metric. ValueError for a row that no evaluation can use."""

    name: str
    """The name of its values in the ledger's table ``evaluations``."""
    title: str
    measure: str
    """``module:Class`` of an `edge.training.metrics.metric.Metric`."""
    better: Better | Literal["higher", "lower"] = HIGHER
    per_example: bool = True
    """Whether it adds up over batches of the evaluated examples; else it is measured once per evaluated model."""
    split: EvalSplit | None = None
    """Examples that a metric measured once per model gets; None: the evaluated ones."""
    options: type[PluginOptions] | None = None
    """The options of its entry in ``eval.metric_options``, with which its class is made; None: it is made without.
    Those that ``fedbr replay --measure`` alone can measure with say why in a property ``measure_alone``, as
    ``KEY = VALUE: reason``."""
    over_clients: str | None = None
    """``module:function`` of (client -> its values by part, options, client -> its vectors by name), which gives
    further values by part, over these clients. Only ``fedbr replay --measure`` has vectors."""
    finish: str | None = None
    """``module:function`` of part -> (sum, number), which gives the metric's one value once these are added; None: each
    part's value is sum / number. Never torch."""
    targets: Literal["any", "class", "numbers", "class|tokens"] = "any"
    """The targets that it is measured on: classes, perhaps tokens as well; or real ones, also those of a
    reconstruction"""
    is_share: bool = False
    """Whether its values are shares in [0, 1], which are written as percentages"""
    losses: tuple[str, ...] = ()
    """The losses whose outputs it needs; empty: any"""
    needs_windows: bool = False
    """Whether examples have to be windows of a series, with the values before their targets"""

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= MAX_VALUE_NAME // 2 or not self.name.isprintable() or SUBVALUE in self.name:
            raise ValueError(f"a metric cannot be named {self.name!r}: use a short plain word")
        if self.name in (BEFORE, VALIDATION):
            raise ValueError(f"a metric cannot be named {self.name!r}, as values of evaluations are; use another word")
        if self.per_example and self.split is not None:
            raise ValueError(f"metric {self.name}: split = {self.split!r} needs per_example = False")
        if self.better not in tuple(Better):
            raise ValueError(f"metric {self.name}: better = {self.better!r}: must be {' or '.join(Better)}")
        object.__setattr__(self, "better", Better(self.better))  # users' rows have it as text

    def chosen(self, options: Mapping[str, Mapping[str, Any]]) -> PluginOptions | None:
        """Its options in a table ``eval.metric_options``; None without any. pydantic.ValidationError."""
        return None if self.options is None else self.options.model_validate(options.get(self.name, {}))


METRICS: dict[str, MetricRow] = {
    row.name: row
    for row in (
        MetricRow(
            ACCURACY, "accuracy", "edge.training.metrics.accuracy:Accuracy", targets="class|tokens", is_share=True
        ),
        MetricRow(LOSS, "the loss of train.loss", "edge.training.metrics.loss:MeanLoss", LOWER),
        MetricRow(
            "class-accuracy",
            "accuracy per class",
            "edge.training.metrics.class_accuracy:ClassAccuracy",
            targets="class",
            is_share=True,
        ),
        MetricRow(
            "rmse",
            "root of the mean squared error, in units of the target",
            "edge.training.metrics.regression:SquaredError",
            LOWER,
            finish="edge.training.metrics.finishing:root_mean",
            targets="numbers",
        ),
        MetricRow(
            "mae",
            "mean absolute error, in units of the target",
            "edge.training.metrics.regression:AbsoluteError",
            LOWER,
            targets="numbers",
        ),
        MetricRow(
            "mase",
            "mean absolute error over that of the naive forecast in training",
            "edge.training.metrics.regression:ScaledError",
            LOWER,
            targets="numbers",
            needs_windows=True,
        ),
        MetricRow(
            "r2",
            "share of the targets' variance that is explained",
            "edge.training.metrics.regression:ExplainedVariance",
            finish="edge.training.metrics.finishing:explained_variance",
            targets="numbers",
        ),
        MetricRow(
            "pinball",
            "mean loss of quantiles, in units of the target",
            "edge.training.metrics.regression:Pinball",
            LOWER,
            targets="numbers",
            losses=("pinball",),
        ),
        MetricRow(
            "coverage",
            "share of targets between the lowest and the highest quantile",
            "edge.training.metrics.regression:Coverage",
            is_share=True,
            targets="numbers",
            losses=("pinball",),
        ),
        MetricRow(
            "f1",
            "F1 over all labels, pooled",
            "edge.training.metrics.regression:LabelCounts",
            finish="edge.training.metrics.finishing:f1",
            targets="numbers",
            losses=("bce",),
            is_share=True,
        ),
        MetricRow(
            "auroc",
            "area under the ROC curve, over all labels or classes",
            "edge.training.metrics.scores:ScoreHistogram",
            finish="edge.training.metrics.finishing:auroc",
            losses=("cross-entropy", "bce"),
            is_share=True,
        ),
        MetricRow(
            "perplexity",
            "exponential of the mean negative log-likelihood",
            "edge.training.metrics.loss:MeanLoss",
            LOWER,
            finish="edge.training.metrics.finishing:perplexity",
            targets="class|tokens",
            losses=("cross-entropy", "next-token"),
        ),
        MetricRow(
            "hessian",
            "top eigenvalue and trace of the Hessian; H_N and H_D over clients",
            "edge.training.metrics.hessian:LossHessian",
            LOWER,
            per_example=False,
            split="train",
            options=HessianOptions,
            targets="class",
            over_clients="edge.training.metrics.diagonals:over_clients",
        ),
        MetricRow(
            "loss-surface",
            "loss along the first two eigenvectors of the Hessian",
            "edge.training.metrics.loss_surface:LossSurface",
            LOWER,
            per_example=False,
            split="train",
            options=SurfaceOptions,
            targets="class",
        ),
    )
}


def metric_row(name: str) -> MetricRow:
    """The row of this name; ValueError with the nearest one if there is none."""
    return find(name, METRICS, MetricRow, "metric")


def metric_rows(names: Sequence[str], score: str = ACCURACY) -> list[MetricRow]:
    """The metric that a run is judged by, the loss, and the rows of further names, each once; ValueError for two rows
    with one name."""
    rows: dict[str, MetricRow] = {}
    for name in (score, LOSS, *names):
        row = metric_row(name)
        if rows.setdefault(row.name, row) != row:
            raise ValueError(f"{name!r} has the name of another metric, {row.name!r}")
    return list(rows.values())
