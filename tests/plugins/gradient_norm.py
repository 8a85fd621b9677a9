"""A user's metric of the whole model: the norm of its gradient on the first batch of training examples."""

from __future__ import annotations

from edge.training.metrics.registry import MetricRow

GRADIENT_NORM = MetricRow(
    "gradient-norm",
    "gradient norm",
    "tests.plugins.gradient_norm_metric:GradientNorm",
    "lower",
    per_example=False,
    split="train",
)
NAMESAKE = MetricRow("accuracy", "another accuracy", "tests.plugins.gradient_norm_metric:GradientNorm")
