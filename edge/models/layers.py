"""The common layers of the convolutional models: a convolution with its normalisation."""

from __future__ import annotations

from torch import nn

GROUPS = 2
"""Normalisation groups of every `GroupNorm`, as in FedMLB's published code."""


def conv_norm(
    inputs: int, outputs: int, kernel: int, stride: int = 1, *, groups: int = 1, padding: int | None = None
) -> list[nn.Module]:
    """A convolution with biases and its GroupNorm: (batch, inputs, h, w) -> (batch, outputs, h/stride, w/stride).

    ``padding``: by default, height and width stay the same at stride 1.
    """
    padding = kernel // 2 if padding is None else padding
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, groups=groups)
    return [convolution, nn.GroupNorm(GROUPS, outputs)]
