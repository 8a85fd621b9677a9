"""Multinomial logistic regression for rows of numbers: one linear layer, one block.

60 features and 10 classes give 610 parameters.
The model of FedProx and DAdaQuant for Synthetic(1, 1); FedProx's code has an L2 term of 0.001 beside it.
"""

from __future__ import annotations

from torch import nn


def stages(classes: int, features: int, width: int | None) -> list[tuple[str, list[nn.Module]]]:
    """One stage of one unit: (batch, features) -> (batch, classes)."""
    return [("head", [nn.Linear(features, classes)])]
