"""The common layers of the convolutional models: a convolution with its normalisation."""

from __future__ import annotations

from torch import nn

from edge.models.registry import GROUPS


def normalised(norm: str, channels: int) -> list[nn.Module]:
    """The normalisation of ``model.norm`` for images of so many channels, or no layer."""
    if norm == "none":
        return []
    return [nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(GROUPS, channels)]


def conv_norm(
    norm: str,
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    *,
    groups: int = 1,
    padding: int | None = None,
) -> list[nn.Module]:
    """A convolution with biases and its normalisation: (batch, inputs, h, w) -> (batch, outputs, h/stride, w/stride).

    ``padding``: by default, height and width stay the same at stride 1.
    """
    padding = kernel // 2 if padding is None else padding
    convolution = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, groups=groups)
    return [convolution, *normalised(norm, outputs)]
