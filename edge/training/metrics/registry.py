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
        MetricRow(ACCURACY, "accuracy", "edge.training.metrics.accuracy:Accuracy"),
        MetricRow(LOSS, "cross-entropy", "edge.training.metrics.loss:CrossEntropy", LOWER),
        MetricRow("class-accuracy", "accuracy per class", "edge.training.metrics.class_accuracy:ClassAccuracy"),
        MetricRow(
            "hessian",
            "top eigenvalue and trace of the Hessian; H_N and H_D over clients",
            "edge.training.metrics.hessian:LossHessian",
            LOWER,
            per_example=False,
            split="train",
            options=HessianOptions,
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
        ),
    )
}


def metric_row(name: str) -> MetricRow:
    """The row of this name; ValueError with the nearest one if there is none."""
    return find(name, METRICS, MetricRow, "metric")


def metric_rows(names: Sequence[str]) -> list[MetricRow]:
    """Accuracy, loss, and the rows of further names, each once; ValueError for two rows with one name."""
    rows: dict[str, MetricRow] = {}
    for name in (ACCURACY, LOSS, *names):
        row = metric_row(name)
        if rows.setdefault(row.name, row) != row:
            raise ValueError(f"{name!r} has the name of another metric, {row.name!r}")
    return list(rows.values())
