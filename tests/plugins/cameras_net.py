"""The model of `tests.plugins.cameras`."""

from __future__ import annotations

from torch import nn


def net(classes: int, features: int) -> nn.Module:
    """Two layers."""
    return nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, classes))
