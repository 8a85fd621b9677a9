"""How well a classifier's scores order examples: sums over examples and labels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from edge.training.block_model import BlockModel
from edge.training.criterion import TARGET
from edge.training.metrics.metric import Metric, Sums

BINS, LOG_ODDS = 96, 12.0
"""Bins of log odds, of the same width between -LOG_ODDS and LOG_ODDS; what is beyond is in the first and the last"""


class ScoreHistogram(Metric):
    """The numbers of positives and of negatives by log odds, from which the AUROC is reckoned.

    Each label of ``bce`` is one decision; so is each class against all others, but of two classes the second alone.
    """

    def measure(self, net: BlockModel, x: Tensor, y: Tensor, logits: Tensor) -> Sums:
        """Part ``p0`` has the positives of the lowest bin, ``n0`` its negatives, and so on; empty bins are left out."""
        if y.is_floating_point():
            odds, has = logits.double(), y[:, TARGET] >= 0.5
        else:
            odds, has = _odds_of_classes(logits.double()), F.one_hot(y, logits.shape[1]).bool()
            if logits.shape[1] == 2:
                odds, has = odds[:, 1:], has[:, 1:]
        # Diverged models have NaN, which orders nothing.
        found = ((odds.nan_to_num(0.0) + LOG_ODDS) * (BINS / (2 * LOG_ODDS))).floor().clamp(0, BINS - 1).long()
        sums: dict[str, tuple[float, int]] = {}
        for sign, chosen in (("p", has), ("n", ~has)):
            counts = torch.bincount(found[chosen], minlength=BINS).tolist()
            sums.update({f"{sign}{at}": (float(count), count) for at, count in enumerate(counts) if count})
        return sums


def _odds_of_classes(logits: Tensor) -> Tensor:
    """(examples, classes): ln p / (1 - p)."""
    log_p = logits.log_softmax(-1)
    return log_p - (-log_p.exp()).log1p()
