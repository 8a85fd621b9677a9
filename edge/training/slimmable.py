"""Slimmable layers: a model whose narrower sub-networks share its numbers. How they are trained is not known here.

Yu et al., Slimmable Neural Networks, ICLR 2019, https://arxiv.org/abs/1812.08928, in the form of GradAug and FedAlign.

Within `slimmed`, a layer uses its first channels: as many outputs as the width says
(`edge.protocol.options.gradaug.channels`), and as many inputs as it is given. So the first layer takes all inputs; the
last one keeps all outputs. Elsewhere, a layer is torch's to the bit, and its parameters, buffers and their names are
the same.

BatchNorm at a width, also of 1, normalises with the statistics of the batch and the first numbers of its shared affine
parameters; it neither uses nor changes running statistics, which are those of the full width. A single number per
channel becomes 0. GroupNorm has as many groups as divide both its own groups and the channels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge.models.layers import FEW
from edge.models.squeezenet import Fire
from edge.protocol.options.gradaug import channels
from edge.training.blocks import Block


@dataclass(eq=False)
class LayerWidth:
    """The width that all layers of a model have now."""

    multiple: int
    """Channels in use are a multiple of this"""
    factor: float | None = None
    """None: torch's own layers"""


class Slimmable:
    """The part that slimmable layers have in common."""

    width: LayerWidth
    keeps_outputs: bool = False

    def used(self, count: int) -> int:
        """Channels in use of ``count`` outputs at the present width."""
        factor = self.width.factor
        return count if self.keeps_outputs or factor is None else channels(count, factor, self.width.multiple)


class SlimConv2d(Slimmable, nn.Conv2d):
    """A convolution, all channels of which see all others."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs in use, h, w) -> (batch, outputs in use, ..)."""
        if self.width.factor is None:
            return super().forward(x)
        weight, bias = _first(self, self.used(self.out_channels), x.shape[1])
        if x.shape[1] < FEW and self.kernel_size == (1, 1) and self.padding == (0, 0):
            down, across = self.stride  # `FEW` says why such a convolution must not be strided
            return F.conv2d(x[:, :, ::down, ::across], weight, bias)
        y: Tensor = self._conv_forward(x, weight, bias)
        return y


class SlimLinear(Slimmable, nn.Linear):
    """A linear layer; of flattened maps, the first inputs are those of the first channels."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs in use) -> (batch, outputs in use)."""
        if self.width.factor is None:
            return super().forward(x)
        return F.linear(x, *_first(self, self.used(self.out_features), x.shape[-1]))


class SlimBatchNorm2d(Slimmable, nn.BatchNorm2d):
    """BatchNorm, with statistics of the batch at a width."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels in use, h, w), unchanged in shape."""
        if self.width.factor is None:
            return super().forward(x)
        weight, bias = _first(self, x.shape[1])
        enabled = torch.backends.cudnn.enabled
        return torch.batch_norm(x, weight, bias, None, None, True, 0.0, self.eps, enabled)


class SlimGroupNorm(Slimmable, nn.GroupNorm):
    """GroupNorm over the channels in use."""

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels in use, ..), unchanged in shape."""
        if self.width.factor is None:
            return super().forward(x)
        return F.group_norm(x, math.gcd(self.num_groups, x.shape[1]), *_first(self, x.shape[1]), self.eps)


def _first(layer: nn.Module, outputs: int, inputs: int | None = None) -> tuple[Any, Any]:
    """The first outputs of a layer's weight and bias, and the first inputs of the weight."""
    weight: Any = layer._parameters["weight"]
    bias: Any = layer._parameters["bias"]
    if weight is not None and outputs < weight.shape[0]:
        weight, bias = weight[:outputs], None if bias is None else bias[:outputs]
    if weight is not None and inputs is not None and inputs < weight.shape[1]:
        weight = weight[:, :inputs]
    return weight, bias


SLIMMABLE: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: SlimConv2d,
    nn.Linear: SlimLinear,
    nn.BatchNorm2d: SlimBatchNorm2d,
    nn.GroupNorm: SlimGroupNorm,
}


def slimmable(blocks: list[Block], options: Any, classes: int, width: int | None) -> list[Block]:
    """The blocks with slimmable layers in place of torch's, and the same parameters: a ``wrap_model``.

    ``options``: ``multiple``, of which channels in use are a multiple. ValueError for a model with other layers that
    have weights, or in which a layer takes channels of two others side by side.
    """
    shared = LayerWidth(options.multiple)
    layers = [layer for _, module in blocks for layer in module.modules()]
    for layer in layers:
        if isinstance(layer, nn.Conv2d) and layer.groups > 1:
            raise ValueError(f"its convolutions in {layer.groups} groups have no narrower sub-networks")
        if isinstance(layer, Fire):
            raise ValueError(
                "its fire modules put channels of two layers side by side, which have no common first ones"
            )
        if type(layer) not in SLIMMABLE and any(True for _ in layer.parameters(recurse=False)):
            raise ValueError(f"{type(layer).__name__}: a layer of this kind has no narrower sub-networks")
        if type(layer) in SLIMMABLE:
            # The same object of a derived class: whatever holds the layer, by any path, has the slimmable one.
            layer.__class__ = SLIMMABLE[type(layer)]
            layer.width = shared  # type: ignore[assignment]
    weighted = [layer for layer in layers if isinstance(layer, SlimConv2d | SlimLinear)]
    if not weighted:
        raise ValueError("has neither a convolution nor a linear layer, so that it has no narrower sub-networks")
    weighted[-1].keeps_outputs = True
    return blocks


@contextmanager
def slimmed(modules: Iterable[nn.Module], factor: float) -> Iterator[None]:
    """Run the models that these modules belong to at ``factor`` times their width."""
    layers = (layer for module in modules for layer in module.modules())
    widths = {layer.width for layer in layers if isinstance(layer, Slimmable)}
    for width in widths:
        width.factor = factor
    try:
        yield
    finally:
        for width in widths:
            width.factor = None


def resized(shape: Sequence[int], factor: float) -> tuple[int, int]:
    """(height, width) of images at ``factor`` times their height, at least one pixel."""
    rows, columns = shape
    height = max(1, round(rows * factor))
    return height, max(1, round(columns * height / rows))
