"""Narrower models for sub-models: the axes of a model's tensors, and a model with fewer channels.

Layers are convolutions, linear layers and normalisations of channels, one after another or joined by sums. Layers of
other kinds, or in groups, are refused by name: what their first channels mean is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from edge.data.registry import DataSet
from edge.models.layers import take_places_first
from edge.models.squeezenet import Fire
from edge.protocol.config import Axis, TensorAxes
from edge.protocol.submodels import CLASSES, WHOLE, kept_channels
from edge.training.block_model import BlockModel, named_tensors
from edge.training.blocks import Block
from edge.training.counts import empty_examples, modules_without_memory


def model_axes(net: BlockModel, make: Callable[[], list[Block]], dataset: DataSet) -> TensorAxes:
    """key -> axes of the tensors in its vector (`edge.protocol.submodels`), by the order in which layers run.

    ``make``: the blocks of ``net``. ValueError for a layer that has no narrower form.
    """
    modules = modules_without_memory(make)
    order = _weighted_in_order(modules, empty_examples(dataset.shape, dataset.kind))
    axes: dict[Tensor, tuple[Axis, ...]] = {}
    channels = 0  # of the last convolution or linear layer that has run
    last = next((layer for layer in reversed(order) if isinstance(layer, _ConvNd | nn.Linear)), None)
    for layer in order:
        first = not channels
        if not isinstance(layer, _ConvNd | nn.Linear):
            per_channel = [*layer.parameters(), *(buffer for buffer in layer.buffers() if buffer.dim())]
            axes |= {tensor: ((len(tensor), WHOLE if first else 1),) for tensor in per_channel}
            continue
        outputs, inputs, *kernel = layer.weight.shape
        if isinstance(layer, nn.Linear) and not first and inputs % channels:
            raise ValueError(f"Linear takes {inputs} inputs, of {channels} channels before it: it has no narrower form")
        places = WHOLE if first else inputs // channels if isinstance(layer, nn.Linear) else 1
        out = (outputs, CLASSES if layer is last else 1)
        axes[layer.weight] = (out, (inputs, places), *((size, WHOLE) for size in kernel))
        if layer.bias is not None:
            axes[layer.bias] = (out,)
        channels = outputs
    named = named_tensors(net.layout, modules, net.by_layer)
    return {key: tuple(axes[tensor] for tensor in tensors) for key, tensors in named.items()}


def _weighted_in_order(modules: Sequence[nn.Module], x: Tensor) -> list[Any]:
    """The layers with weights or statistics, in the order of their first use; ValueError for other kinds."""
    order: dict[nn.Module, None] = {}
    layers = [layer for module in modules for layer in module.modules()]
    for layer in layers:
        if isinstance(layer, Fire):
            raise ValueError("Fire puts channels of two layers side by side, so that it has no narrower form")
        own = [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]
        if not own:
            continue
        if not isinstance(layer, _ConvNd | nn.Linear | _BatchNorm | nn.GroupNorm) or getattr(
            layer, "transposed", False
        ):
            raise ValueError(f"{_named(layer)}: a layer of this kind has no narrower form")
        if getattr(layer, "groups", 1) > 1:
            raise ValueError(f"{_named(layer)} in {layer.groups} groups has no narrower form")
        layer.register_forward_pre_hook(lambda layer, inputs: order.setdefault(layer))
    for module in modules:
        x = module(x)
    return [*order]


def _named(layer: nn.Module) -> str:
    return type(layer).__name__


def narrowed(
    blocks: list[Block], axes: TensorAxes, keys: Sequence[Sequence[str]], rate: float, is_scaled: bool | None
) -> list[Block]:
    """The blocks with ⌈rate·C⌉ of the C channels of each hidden layer, in place; their numbers mean nothing.

    ``keys``: of each block's vectors, in the order of its tensors; ``is_scaled``: outputs of hidden layers are divided
    by the rate in training; None: if there is normalisation. GroupNorm has as many groups as divide both its own and
    the channels.
    """
    if is_scaled is None:
        norms = _BatchNorm | nn.GroupNorm
        is_scaled = any(isinstance(layer, norms) for _, module in blocks for layer in module.modules())
    for (_, module), own in zip(blocks, keys, strict=True):
        shapes = iter([tuple(_size(axis, rate) for axis in each) for key in own for each in axes[key]])
        hidden = iter([all(channel != CLASSES for _, channel in each) for key in own for each in axes[key]])
        for layer in module.modules():
            for name, parameter in list(layer.named_parameters(recurse=False)):
                shape, is_hidden = next(shapes), next(hidden)
                setattr(layer, name, nn.Parameter(torch.empty(shape, device=parameter.device)))
                if name == "weight":
                    _resize(layer, shape)
                    if is_scaled and is_hidden and isinstance(layer, _ConvNd | nn.Linear) and rate != 1:
                        layer.register_forward_hook(_divided(rate))
    take_places_first(module for _, module in blocks)
    return blocks


def _size(axis: Axis, rate: float) -> int:
    size, channel = axis
    return size if channel < 1 else kept_channels(size // channel, rate) * channel


def _resize(layer: Any, shape: tuple[int, ...]) -> None:
    """Set what a layer knows of its sizes by the shape of its weight."""
    if isinstance(layer, _ConvNd):
        layer.out_channels, layer.in_channels = shape[:2]
    elif isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = shape
    elif isinstance(layer, nn.GroupNorm):
        layer.num_channels, layer.num_groups = shape[0], math.gcd(layer.num_groups, shape[0])
    else:
        layer.num_features = shape[0]
        for name, buffer in list(layer.named_buffers(recurse=False)):
            if buffer.dim():
                setattr(layer, name, torch.full(shape, float(name == "running_var"), device=buffer.device))


def _divided(rate: float) -> Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor]:
    """HeteroFL's scaler: a hook that divides a layer's outputs in training."""

    def divide(layer: nn.Module, inputs: tuple[Any, ...], outputs: Tensor) -> Tensor:
        return outputs / rate if layer.training else outputs

    return divide
