"""Multinomial logistic regression for rows of numbers: one linear layer, one block; 60 features, 10 classes: 610 weights.

The model of FedProx and DAdaQuant for Synthetic(1, 1), without the L2 term of 0.001 of their code; `train.weight_decay`
is a model's.
"""

from __future__ import annotations

from torch import nn


def stages(classes: int, features: int, width: int | None) -> list[tuple[str, list[nn.Module]]]:
    """One stage of one unit: (batch, features) -> (batch, classes)."""
    return [("head", [nn.Linear(features, classes)])]
