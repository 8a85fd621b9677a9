"""A perceptron with two hidden layers for rows of numbers, three blocks, no normalisation layer.

Layers of w, w and C units with ReLU in between; w = 64, 30 features and 2 classes give 6,274 parameters.
"""

from __future__ import annotations

from torch import nn


def stages(classes: int, features: int, width: int | None) -> list[tuple[str, list[nn.Module]]]:
    """Three stages of one unit each: (batch, features) -> (batch, classes)."""
    assert width is not None
    return [
        ("fc1", [nn.Sequential(nn.Linear(features, width), nn.ReLU())]),
        ("fc2", [nn.Sequential(nn.Linear(width, width), nn.ReLU())]),
        ("head", [nn.Linear(width, classes)]),
    ]
