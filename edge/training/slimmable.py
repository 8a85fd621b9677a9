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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge.data.registry import DataSet
from edge.models.layers import FEW
from edge.models.squeezenet import Fire
from edge.protocol.options.gradaug import channels
from edge.protocol.payload import FORWARD, INNER_GRADIENT, INPUT_GRADIENT, PASS_TYPES, WEIGHT_GRADIENT
from edge.training.blocks import Block
from edge.training.describe import EXAMPLES, Flops


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
        _check(layer)
        if type(layer) in SLIMMABLE:
            # The same object of a derived class: whatever holds the layer, by any path, has the slimmable one.
            layer.__class__ = SLIMMABLE[type(layer)]
            layer.width = shared  # type: ignore[assignment]
    weighted = [layer for layer in layers if isinstance(layer, SlimConv2d | SlimLinear)]
    if not weighted:
        raise ValueError("has neither a convolution nor a linear layer, so that it has no narrower sub-networks")
    weighted[-1].keeps_outputs = True
    return blocks


def _check(layer: nn.Module) -> None:
    """ValueError for a layer whose first channels make no sub-network."""
    name = type(layer).__name__
    if isinstance(layer, nn.Conv2d) and layer.groups > 1:
        raise ValueError(f"its convolutions in {layer.groups} groups have no narrower sub-networks")
    if isinstance(layer, Fire):
        raise ValueError("its fire modules put channels of two layers side by side, which have no common first ones")
    if type(layer) not in SLIMMABLE and any(True for _ in layer.parameters(recurse=False)):
        raise ValueError(f"{name}: a layer of this kind has no narrower sub-networks")


def _widths(modules: Iterable[nn.Module]) -> set[LayerWidth]:
    return {layer.width for module in modules for layer in module.modules() if isinstance(layer, Slimmable)}


def is_slimmable(modules: Iterable[nn.Module]) -> bool:
    """Whether any of these modules has slimmable layers."""
    return bool(_widths(modules))


@contextmanager
def slimmed(modules: Iterable[nn.Module], factor: float) -> Iterator[None]:
    """Run the models that these modules belong to at ``factor`` times their width."""
    widths = _widths(modules)
    for width in widths:
        width.factor = factor
    try:
        yield
    finally:
        for width in widths:
            width.factor = None


# --- FLOPs ------------------------------------------------------------------------------------------------------------


@dataclass
class LayerUse:
    """One use of a layer in a pass: what its FLOPs depend on."""

    block: int
    weights: float = 0.0
    """Weights in use per place: inputs x outputs, times the kernel's area"""
    places: float = 1.0
    """Places of the output"""
    inner: bool = False
    """Whether its input gradient is needed where only the block's weights learn"""


@dataclass
class PassTrace:
    """The uses of layers in one pass of blocks on tensors without memory."""

    modules: Sequence[nn.Module]
    uses: list[LayerUse] = field(default_factory=list)
    block: int = 0

    def run(self, x: Tensor, factor: float) -> list[LayerUse]:
        """All uses of convolutions and linear layers at a width, in order."""
        layers = [layer for module in self.modules for layer in module.modules()]
        hooks = [each.register_forward_hook(self._note) for each in layers if isinstance(each, SlimConv2d | SlimLinear)]
        try:
            with slimmed(self.modules, factor):
                for index, module in enumerate(self.modules):
                    self.block = index
                    x = module(x.detach())
        finally:
            for hook in hooks:
                hook.remove()
        return self.uses

    def _note(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        given, axis = inputs[0], 1 if isinstance(layer, SlimConv2d) else -1
        weights = given.shape[axis] * output.shape[axis] * math.prod(getattr(layer, "kernel_size", ()))
        places = output[0].numel() / output.shape[axis]
        self.uses.append(LayerUse(self.block, float(weights), places, given.requires_grad))


def subnetwork_flops(
    make: Callable[[], list[Block]], dataset: DataSet, flexible: bool, variants: Sequence[tuple[float, float]]
) -> Flops:
    """FLOPs per example of sub-networks on smaller images: (variants, blocks, 4), a column per type of pass.

    ``variants``: (width, factor on the images' height). Convolutions and matrix products are counted. The weights in
    use depend on the width alone and the places on the images alone, so each width and each height is traced once. A
    model that is not ``flexible``, or takes no images, is charged at its full size. ValueError for images that are too
    small, and for a model that does not run with fewer channels.
    """
    with torch.device("meta"):
        modules = [module for _, module in make()]
    _skip_norms(modules)
    by_width = {width: _narrowed(modules, dataset, width) for width, _ in variants}
    heights = {height if flexible and dataset.kind == "image" else 1.0 for _, height in variants}
    by_height = {height: _traced(modules, dataset, height) for height in heights | {1.0}}
    for height, uses in by_height.items():
        if [use.weights for use in uses] != [use.weights for use in by_height[1.0]]:
            rows, columns = resized(dataset.shape[1:], height)
            raise ValueError(f"a linear layer depends on the images' size, so that it takes none of {rows}x{columns}")
    counts = np.zeros((len(variants), len(modules), PASS_TYPES))
    for found, (width, height) in zip(counts, variants, strict=True):
        for use, image in zip(by_width[width], by_height.get(height) or by_height[1.0], strict=True):
            needed = INNER_GRADIENT if use.inner else INPUT_GRADIENT
            found[use.block, [FORWARD, WEIGHT_GRADIENT, needed]] += 2 * use.weights * image.places
    return counts


def _skip_norms(modules: Iterable[nn.Module]) -> None:
    """Let normalisation pass on what it is given: it has no counted FLOPs, but four fifths of a trace's time."""
    for layer in (layer for module in modules for layer in module.modules()):
        if isinstance(layer, SlimBatchNorm2d | SlimGroupNorm):
            layer.forward = partial(_passed_on, layer.weight is not None)  # type: ignore[method-assign]


def _passed_on(learns: bool, x: Tensor) -> Tensor:
    return x.detach().requires_grad_(learns or x.requires_grad)


def _narrowed(modules: Sequence[nn.Module], dataset: DataSet, width: float) -> list[LayerUse]:
    try:
        return PassTrace(modules).run(_images(dataset, 1.0), width)
    except RuntimeError as error:
        raise ValueError(f"it does not run at {width:g} of its width: {error}") from None


def _traced(modules: Sequence[nn.Module], dataset: DataSet, height: float) -> list[LayerUse]:
    try:
        return PassTrace(modules).run(_images(dataset, height), 1.0)
    except RuntimeError as error:
        size = resized(dataset.shape[1:], height)
        raise ValueError(f"images of {size[0]}x{size[1]} are too small for it: {error}") from None


def resized(shape: Sequence[int], factor: float) -> tuple[int, int]:
    """(height, width) of images at ``factor`` times their height, at least one pixel."""
    rows, columns = shape
    height = max(1, round(rows * factor))
    return height, max(1, round(columns * height / rows))


def _images(dataset: DataSet, height: float) -> Tensor:
    shape = list(dataset.shape)
    if dataset.kind == "image":
        shape[1:] = resized(dataset.shape[1:], height)
    return torch.empty((EXAMPLES, *shape), device="meta", dtype=torch.int64 if dataset.kind == "tokens" else None)


def output_shapes(make: Callable[[], list[Block]], dataset: DataSet) -> Flops:
    """(blocks, 3): channels, height and width of the output of each block; 1 x 1 for features without places.

    Zeros for outputs of other shapes.
    """
    with torch.device("meta"):
        modules = [module for _, module in make()]
    x, shapes = _images(dataset, 1.0), []
    for module in modules:
        x = module(x)
        shape = tuple(x.shape[1:])
        shapes.append({1: (*shape, 1, 1), 3: shape}.get(len(shape), (0, 0, 0)))
    return np.array(shapes, np.float64)
