"""Narrower models for sub-models: the axes of a model's tensors, and a model with fewer channels.

Layers are convolutions, linear layers and normalisations of channels, one after another or joined by sums. Layers of
other kinds, or in groups, are refused by name: what their first channels mean is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from edge.data.registry import DataSet
from edge.models.layers import take_places_first
from edge.models.squeezenet import Fire
from edge.protocol.config import Axis, TensorAxes
from edge.protocol.submodels import CLASSES, WHOLE, axis_length, kept_channels, statistics_axis
from edge.training.block_model import BlockModel, named_tensors
from edge.training.blocks import Block
from edge.training.counts import empty_examples, modules_without_memory

STATISTIC_NAMES = ("running_mean", "running_var")
"""Of the buffers of torch's BatchNorm"""


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
            narrower = _statistics_at(layer)
            if narrower and first:
                raise ValueError(f"{_named(layer)} of the inputs has no narrower form with statistics of its own")
            for rate, names in ({1.0: STATISTIC_NAMES} | narrower).items() if narrower else ():
                for statistic in map(layer.get_buffer, names):
                    axes[statistic] = (statistics_axis(len(statistic), rate),)
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
    the channels. Of `add_statistics`, those of wider parts are left out.
    """
    if is_scaled is None:
        norms = _BatchNorm | nn.GroupNorm
        is_scaled = any(isinstance(layer, norms) for _, module in blocks for layer in module.modules())
    for (_, module), own in zip(blocks, keys, strict=True):
        shapes = iter([tuple(axis_length(axis, rate) for axis in each) for key in own for each in axes[key]])
        hidden = iter([all(channel != CLASSES for _, channel in each) for key in own for each in axes[key]])
        for layer in module.modules():
            for name, parameter in list(layer.named_parameters(recurse=False)):
                shape, is_hidden = next(shapes), next(hidden)
                setattr(layer, name, nn.Parameter(torch.empty(shape, device=parameter.device)))
                if name == "weight":
                    _resize(layer, shape, rate)
                    if is_scaled and is_hidden and isinstance(layer, _ConvNd | nn.Linear) and rate != 1:
                        layer.register_forward_hook(_divided(rate))
    take_places_first(module for _, module in blocks)
    return blocks


def _resize(layer: Any, shape: tuple[int, ...], rate: float) -> None:
    """Set what a layer knows of its sizes by the shape of its weight."""
    if isinstance(layer, _ConvNd):
        layer.out_channels, layer.in_channels = shape[:2]
    elif isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = shape
    elif isinstance(layer, nn.GroupNorm):
        layer.num_channels, layer.num_groups = shape[0], math.gcd(layer.num_groups, shape[0])
    else:
        layer.num_features = shape[0]
        for name in STATISTIC_NAMES if layer.track_running_stats else ():
            device = getattr(layer, name).device
            setattr(layer, name, torch.full(shape, float(name == "running_var"), device=device))
        for wider in [other for other in _statistics_at(layer) if other >= rate]:
            for name in _statistics_at(layer).pop(wider):
                delattr(layer, name)


def add_statistics(blocks: list[Block], rates: Sequence[float]) -> None:
    """Give each BatchNorm running statistics for each rate below 1, beside its own, which become those of rate 1."""
    for layer in (layer for _, module in blocks for layer in module.modules()):
        if not isinstance(layer, _BatchNorm) or layer.running_mean is None:
            continue
        at: dict[float, tuple[str, ...]] = {}
        for index, rate in enumerate(sorted({rate for rate in rates if rate < 1}, reverse=True)):
            at[rate] = tuple(f"{name}_{index}" for name in STATISTIC_NAMES)
            channels = kept_channels(layer.num_features, rate)
            for name, number in zip(at[rate], (0.0, 1.0), strict=True):
                layer.register_buffer(name, torch.full((channels,), number, device=layer.running_mean.device))
        layer.statistics_at = at  # type: ignore[assignment]


def _statistics_at(layer: nn.Module) -> dict[float, tuple[str, ...]]:
    """rate -> names of the running statistics of `add_statistics` that a layer has beside its own."""
    at: dict[float, tuple[str, ...]] = vars(layer).get("statistics_at", {})
    return at


def share_numbers(part: Sequence[nn.Module], wider: Sequence[nn.Module], rate: float) -> None:
    """Let the modules of a part of a rate use the first numbers of a wider part's tensors, as views of them.

    A backward pass adds to the gradients of the wider part. Running statistics are the wider part's of this rate, if it
    has any of `add_statistics`, else those of its first channels.
    """
    for module, other in zip(part, wider, strict=True):
        for own, home in zip(module.modules(), other.modules(), strict=True):
            for name, parameter in own.named_parameters(recurse=False):
                whole, first = home.get_parameter(name), tuple(map(slice, parameter.shape))
                assert whole.grad is not None
                parameter.data = whole.data[first]
                move = partial(_add_gradient, whole.grad[first])
                parameter.register_post_accumulate_grad_hook(move)  # type: ignore[no-untyped-call]
            names = dict(zip(STATISTIC_NAMES, _statistics_at(home).get(rate, STATISTIC_NAMES), strict=True))
            for name, buffer in own.named_buffers(recurse=False):
                if buffer.dim():
                    buffer.data = home.get_buffer(names.get(name, name)).data[: len(buffer)]


def _add_gradient(home: Tensor, parameter: Tensor) -> None:
    """Move a parameter's gradient to its home; as its own ``grad``, torch wants no tensor with gaps."""
    assert parameter.grad is not None
    home.add_(parameter.grad)
    parameter.grad = None


def _divided(rate: float) -> Callable[[nn.Module, tuple[Any, ...], Tensor], Tensor]:
    """HeteroFL's scaler: a hook that divides a layer's outputs in training."""

    def divide(layer: nn.Module, inputs: tuple[Any, ...], outputs: Tensor) -> Tensor:
        return outputs / rate if layer.training else outputs

    return divide
