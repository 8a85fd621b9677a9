"""The common layers of the convolutional models: convolutions with their normalisation, and residual units."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge.models.registry import GROUPS

FEW = 16
"""Numbers in a vector register with AVX-512; 8 without. A strided 1x1 convolution of fewer channels makes oneDNN (torch
2.15) write past its memory when it computes the weight gradient of two or more images in channels_last: seen with 56x56
pixels and AVX-512, and with 32x32 without, where the process then aborts or hangs."""


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


def conv3x3(norm: str, inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    """A 3x3 convolution of a ResNet and its normalisation, whose biases it has itself where there is none."""
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=norm == "none")
    return [convolution, *normalised(norm, outputs)]


def conv1x1(norm: str, inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    """As `conv3x3`, with kernels of one pixel."""
    after, bias = normalised(norm, outputs), norm == "none"
    if inputs >= FEW or stride == 1:
        return [nn.Conv2d(inputs, outputs, 1, stride=stride, bias=bias), *after]
    # The same numbers: first every stride-th pixel, then a convolution without stride.
    return [nn.AvgPool2d(1, stride), nn.Conv2d(inputs, outputs, 1, bias=bias), *after]


def take_places_first(modules: Iterable[nn.Module]) -> None:
    """Take the stride from all convolutions of `FEW` channels, in place: they get every stride-th pixel alone.

    Their numbers stay the same. What a module computes with functions, without a layer, is not changed.
    """
    for module in modules:
        for layer in module.modules():
            if (
                isinstance(layer, nn.Conv2d)
                and (layer.kernel_size, layer.groups, layer.padding in ((0, 0), "valid")) == ((1, 1), 1, True)
                and layer.in_channels < FEW
                and layer.stride != (1, 1)
            ):
                # A hook keeps the layer's class and name, by which methods and the user's own code know it.
                layer.register_forward_pre_hook(partial(_places, layer.stride))
                layer.stride = (1, 1)


def _places(stride: tuple[int, ...], layer: nn.Module, inputs: tuple[Any, ...]) -> Tensor:
    """(batch, channels, h, w) -> (batch, channels, h/stride, w/stride)."""
    return F.avg_pool2d(inputs[0], 1, stride)


class ResidualUnit(nn.Module):
    """ReLU(body(x) + shortcut(x)), whose body can be left out (stochastic depth, `edge.methods.stochdepth`).

    Subclasses set ``body`` and ``shortcut``, in this order, and can customise by overriding

    * ``residual``: the part that is left out, where it is more than ``body``;
    * ``activated``: what follows the sum, by default ReLU;
    * ``adds``: False in a unit that does not add, which has a ``forward`` of its own and is never left out.
    """

    body: nn.Module
    shortcut: nn.Module
    adds = True
    dropped = False
    """Whether the body is left out, which is set for single steps"""
    keep_probability = 1.0
    """The body's factor in evaluation mode"""
    always_scaled = False
    """Whether it is the body's factor in training mode too"""

    def residual(self, x: Tensor) -> Tensor:
        """The body's output."""
        y: Tensor = self.body(x)
        return y

    def activated(self, x: Tensor) -> Tensor:
        """The unit's output of the sum."""
        return torch.relu(x)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, h, w) -> (batch, outputs, h/stride, w/stride)."""
        if self.dropped:
            return self.activated(self.shortcut(x))
        y = self.residual(x)
        if self.keep_probability != 1 and (self.always_scaled or not self.training):
            y = self.keep_probability * y
        return self.activated(y + self.shortcut(x))


def residual_units(modules: Iterable[nn.Module]) -> list[ResidualUnit]:
    """The residual units of modules that run one after another, in the order of their use."""
    return [unit for module in modules for unit in module.modules() if isinstance(unit, ResidualUnit) and unit.adds]


def pooled(unit: nn.Module) -> nn.Sequential:
    """A model's last residual unit with the mean over places: (batch, inputs, h, w) -> (batch, outputs)."""
    return nn.Sequential(unit, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def initialise_fan_out(modules: Iterable[nn.Module]) -> None:
    """Draw the weights of convolutions from Kaiming's normal distribution of the fan out, as He et al. do.

    He et al., Delving Deep into Rectifiers, ICCV 2015, https://arxiv.org/abs/1502.01852.
    """
    for module in modules:
        for layer in module.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
