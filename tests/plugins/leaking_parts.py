"""A model, a metric and a codec that carry something from one task into the next of their process."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from edge.models.registry import module_row
from edge.protocol.codecs.codec import CodecRow, Frame
from edge.protocol.codecs.sign import Sign
from edge.protocol.payload import Floats
from edge.protocol.plugins import PluginOptions
from edge.training.block_model import BlockModel
from edge.training.metrics.metric import Metric, Sums
from edge.training.metrics.registry import MetricRow


class Counting(nn.Module):
    """Multiplies by numbers of its calls, too near 1 to be noticed, and drops half of the inputs."""

    calls = 0
    counted: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.own_calls, self.last = 0, torch.zeros(1)
        self.register_buffer("counted", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(1))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, features) -> (batch, features)"""
        if not self.training:
            return x
        Counting.calls += 1
        self.own_calls += 1
        self.counted += 1
        self.mean += 1
        numbers = Counting.calls + self.own_calls + self.counted + self.mean + self.last
        self.last = x.detach().mean()
        dropped: Tensor = self.drop(x)
        return dropped * (1 + 1e-6 * numbers)


def counting_net(classes: int, channels: int) -> nn.Module:
    """For digits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * channels, 8), Counting(), nn.Linear(8, classes))


MODEL = module_row("counting", "tests.plugins.leaking_parts:counting_net", ["0+1+2", "3"])


class Growing(Metric):
    """The number of batches that it has seen."""

    def __init__(self) -> None:
        self.batches = 0

    def measure(self, net: BlockModel, x: Tensor, y: Tensor, logits: Tensor) -> Sums:
        """In this evaluation."""
        self.batches += 1
        return {"": (self.batches, 1)}


METRIC = MetricRow("growing", "counts its calls", "tests.plugins.leaking_parts:Growing")


class CountingSign(Sign):
    """Sends more with each call."""

    calls = 0

    def pack(self, numbers: Floats, rng: np.random.Generator) -> Frame:
        """Of so many times the numbers."""
        self.calls += 1
        return super().pack(numbers * np.float32(self.calls), rng)


CODEC = CodecRow("counting-sign", "counts its calls", "a test", PluginOptions, CountingSign, costs_like="sign")
