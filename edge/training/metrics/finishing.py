"""Values of metrics that are no mean: from sums, once these are added over batches, and over clients where they are
pooled. No torch.

Each function has part -> (sum, number), part "" of metrics with one; it gives NaN where there is no value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

Parts = Mapping[str, tuple[float, int]]


def root_mean(parts: Parts) -> float:
    """√(Σ/n)."""
    total, count = parts[""]
    return math.sqrt(total / count) if count and total >= 0 else math.nan


def explained_variance(parts: Parts) -> float:
    """1 − Σ e² / (Σ y² − (Σ y)²/n)."""
    (errors, count), (total, _), (squares, _) = parts["e2"], parts["y"], parts["y2"]
    scatter = squares - total**2 / count if count else 0.0
    return 1 - errors / scatter if scatter > 0 else math.nan


def f1(parts: Parts) -> float:
    """2·TP / (2·TP + FP + FN); NaN without any label."""
    true, wrong = parts["tp"][0], parts["fp"][0] + parts["fn"][0]
    return 2 * true / (2 * true + wrong) if true + wrong else math.nan


def perplexity(parts: Parts) -> float:
    """exp(Σ/n); NaN where that is beyond the largest number."""
    total, count = parts[""]
    return math.exp(total / count) if count and total / count < 709 else math.nan


def auroc(parts: Parts) -> float:
    """P(the score of a positive is above that of a negative), half of those in the same bin; NaN without both."""
    bins = sorted({int(part[1:]) for part in parts})
    counts = {sign: [parts.get(f"{sign}{at}", (0.0, 0))[0] for at in bins] for sign in "pn"}
    pairs = sum(counts["p"]) * sum(counts["n"])
    below = 0.0
    won = 0.0
    for positives, negatives in zip(counts["p"], counts["n"], strict=True):
        won += positives * (below + negatives / 2)
        below += negatives
    return won / pairs if pairs else math.nan
