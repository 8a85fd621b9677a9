"""Means over seeds with their 95 % intervals (Student's t), and differences that are paired over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scipy import stats

from scenarios.report.progress import spread

LEVEL = 0.95
BySeed = Mapping[int, float]
"""Seed -> a value of its run; seeds without a value are missing."""


def t_quantile(count: int) -> float:
    """The factor of a two-sided 95 % interval of a mean of ``count`` values; 4.303 for 3."""
    return float(stats.t.ppf((1 + LEVEL) / 2, count - 1))


def with_interval(values: Sequence[float | None]) -> dict[str, Any]:
    """`spread` with ``half_width``, half the 95 % interval of the mean; None where `spread` has no deviation."""
    found, count = spread(values), len(values)
    deviation = found["deviation"]
    half_width = None if deviation is None else t_quantile(count) * deviation / math.sqrt(count)
    return {**found, "half_width": half_width}


def paired(values: BySeed, reference: BySeed) -> dict[str, Any] | None:
    """``values`` minus ``reference`` over the ``seeds`` that both have; None if there are none."""
    seeds = sorted(values.keys() & reference.keys())
    if not seeds:
        return None
    return {"seeds": seeds, **with_interval([values[seed] - reference[seed] for seed in seeds])}
