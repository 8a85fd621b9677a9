"""A user's torch modules, written without a thought of blocks; rows that name them are in `own_rows`."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ConvNet(nn.Module):
    """A chain of its children, in the order in which they were set."""

    def __init__(self, classes: int, channels: int = 1, width: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.act = nn.ReLU()
        self.deep = nn.Sequential(nn.Conv2d(width, 8, 3, stride=2), nn.ReLU())
        self.flat = nn.Flatten()
        self.fc = nn.Linear(72, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, 8, 8) -> (batch, classes)"""
        logits: Tensor = self.fc(self.flat(self.act(self.deep(self.act(self.norm(self.conv(x)))))))
        return logits


class Residual(ConvNet):
    """A shortcut, of the shape that the chain has."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, 8, 8) -> (batch, classes)"""
        return super().forward(x) + super().forward(x.flip(3))


class Cumulative(ConvNet):
    """Its running statistics are means over all batches."""

    def __init__(self, classes: int, channels: int = 1, width: int = 4) -> None:
        super().__init__(classes, channels, width)
        self.norm.momentum = None


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(features, features), nn.Linear(features, features)
        self.second.weight = self.first.weight
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, features) -> (batch, classes)"""
        logits: Tensor = self.head(self.second(self.first(x)))
        return logits


class Scaled(Tied):
    """A parameter of its own beside its children."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.second = nn.Linear(features, features)
        self.scale = nn.Parameter(torch.ones(1))


class NeedsMore(ConvNet):
    """An argument that no row can give."""

    def __init__(self, classes: int, hidden: int) -> None:
        super().__init__(classes)


def broken(classes: int) -> nn.Module:
    """A factory that fails."""
    raise RuntimeError(f"no model for {classes} classes")
