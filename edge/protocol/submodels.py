"""Sub-models: the part of the model that a client holds, as slices of its tensors that both sides derive. Torch-free.

A part of rate r has ⌈r·C⌉ of the C channels of each hidden layer, and of the inputs of the layer after it; inputs of
the model and its classes stay whole. They are the first ones, or a window that begins at a number of a visit and wraps
around. A visit's variant says which (`edge.protocol.variant`), so that no index travels, and lengths follow from
shapes.
By depth, a part of rate r has whole vectors: those of the first ⌈r·D⌉ of the model's D depths.

Diao, Ding and Tarokh, HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients,
ICLR 2021, https://arxiv.org/abs/2010.01264; the window: Alam et al., FedRolex: Model-Heterogeneous Federated Learning
with Rolling Sub-Model Extraction, NeurIPS 2022, https://arxiv.org/abs/2212.01548; depths: Kim et al., DepthFL:
Depthwise Federated Learning for Heterogeneous Clients, ICLR 2023, https://openreview.net/forum?id=pf8RIZTMU58.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edge.protocol.config import Axis, ModelProfile, TensorAxes
from edge.protocol.payload import BUFFERS, BlockShape, LayerShape, Layout, Vector
from edge.protocol.variant import Variant

RATE = "rate"
"""Name of the share of the model that a part has"""
WHOLE, CLASSES, DEPTH = 0, -1, -2
"""Values of ``channel`` in an axis (size, channel): all of it is in every part; so are its rows, one per class; and it
is none of the tensor, but the size is the depth from which on parts have it, 1, 2, .."""
STATISTICS = -3
"""All of an axis (size, STATISTICS - k) is in parts of a rate of at least k / `UNIT`, and nothing in others: running
statistics of a width"""
UNIT = 1 << 30
ROUNDING = 1e-9
"""0.2·5 channels are 1, though the product of floats is above"""


def statistics_axis(channels: int, rate: float) -> Axis:
    """The axis of running statistics of the part of a rate."""
    return channels, STATISTICS - round(rate * UNIT)


def kept_channels(channels: int, rate: float) -> int:
    """How many of so many channels a part has, at least 1."""
    return max(1, math.ceil(rate * channels - ROUNDING))


def axis_length(axis: Axis, rate: float) -> int:
    """The length of an axis in the part of a rate."""
    size, channel = axis
    if channel <= STATISTICS:
        return size if STATISTICS - channel <= round(rate * UNIT) else 0
    return size if channel < 1 else kept_channels(size // channel, rate) * channel


def depth_of(tensors: tuple[tuple[Axis, ...], ...]) -> int:
    """The depth from which on parts have a vector of these tensors; 0 if all have some of it."""
    return max((size for axes in tensors for size, channel in axes if channel == DEPTH), default=0)


def depths(axes: TensorAxes) -> int:
    """How many depths a model has; 0 if parts have less width alone."""
    return max(map(depth_of, axes.values()), default=0)


class SliceMap:
    """The part of one rate: which numbers of the model's vectors it has, in their order."""

    def __init__(self, axes: TensorAxes, rate: float, window: int = 0) -> None:
        """``axes``: of each tensor of each vector, by key."""
        self.rate, most = rate, kept_channels(depths(axes), rate)
        self.absent = frozenset(key for key, tensors in axes.items() if depth_of(tensors) > most)
        """Keys of the model that it does not have"""
        self._axes = {
            key: tuple(tuple(axis for axis in tensor if axis[1] != DEPTH) for tensor in tensors)
            for key, tensors in axes.items()
            if key not in self.absent
        }
        self._window = 0 if rate == 1 else window
        self._places: dict[str, NDArray[np.intp]] = {}

    def _kept(self, axis: Axis) -> NDArray[np.intp]:
        """Places along an axis."""
        size, channel = axis
        if channel < 1:
            return np.arange(axis_length(axis, self.rate))
        channels = size // channel
        first = (self._window + np.arange(kept_channels(channels, self.rate))) % channels
        return (first[:, None] * channel + np.arange(channel)).ravel()

    @cached_property
    def tensors(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """key -> shapes of the tensors in its vector."""
        return {
            key: tuple(tuple(axis_length(axis, self.rate) for axis in axes) for axes in tensors)
            for key, tensors in self._axes.items()
        }

    @cached_property
    def sizes(self) -> dict[str, int]:
        """key -> numbers."""
        return {key: sum(map(math.prod, shapes)) for key, shapes in self.tensors.items()}

    def places(self, key: str) -> NDArray[np.intp]:
        """Places of the part's numbers in the model's vector of this key."""
        if key not in self._places:
            indices, start = [], 0
            for axes in self._axes[key]:
                shape = tuple(size for size, _ in axes)
                indices.append(start + np.ravel_multi_index(np.ix_(*map(self._kept, axes)), shape).ravel())
                start += math.prod(shape)
            self._places[key] = np.concatenate(indices)
        return self._places[key]

    def classes(self, key: str) -> NDArray[np.intp] | None:
        """The class of each number of the part in this key, -1 for numbers of no class; None if none has any."""
        tensors = self._axes[key]
        if not any(channel == CLASSES for axes in tensors for _, channel in axes):
            return None
        classes = []
        for shape, axes in zip(self.tensors[key], tensors, strict=True):
            row = next((index for index, (_, channel) in enumerate(axes) if channel == CLASSES), None)
            numbers = np.full(shape, -1, np.intp) if row is None else np.indices(shape)[row]
            classes.append(numbers.ravel())
        return np.concatenate(classes)

    def is_whole(self, key: str, size: int) -> bool:
        """Whether it has all numbers of the model's vector of this key and size, in their order."""
        return self.rate == 1 or (not self._window and self.sizes.get(key, size) == size)

    def taken(self, model: Mapping[str, Vector]) -> dict[str, Vector]:
        """key -> the part's numbers of the model's vectors; of whole ones the vectors themselves."""
        return {
            key: vector if self.is_whole(key, vector.data.size) else Vector(vector.data[self.places(key)])
            for key, vector in model.items()
            if key not in self.absent
        }

    def of(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """key -> numbers of the part, for vectors of these keys; those of no tensors of the model as they are."""
        return {key: self.sizes.get(key, size) for key, size in sizes.items() if key not in self.absent}

    def layout(self, layout: Layout) -> Layout:
        """The part's layout, of the model's."""
        return Layout(tuple(self._block(block) for block in layout.blocks if block.parts[0].key not in self.absent))

    def _block(self, block: BlockShape) -> BlockShape:
        sizes = self.sizes
        parts = [
            LayerShape(part.key, sizes.get(part.key, 0), sizes.get(f"{part.key}{BUFFERS}", 0)) for part in block.parts
        ]
        params, buffers = sum(part.params for part in parts), sum(part.buffers for part in parts)
        return BlockShape(block.name, params, buffers, tuple(parts) if block.layers else ())


def slice_map(axes: TensorAxes, variant: Variant) -> SliceMap:
    """The part that a visit of this variant has."""
    return SliceMap(axes, variant.share, variant.window or 0)


def part_profile(profile: ModelProfile, rate: float) -> ModelProfile:
    """The profile of the part of a rate, of the model's: layout, counts and tensors are its own."""
    if rate == 1 or rate not in profile.rates:
        return profile
    index, slices = profile.rates.index(rate), SliceMap(profile.axes, rate)
    layout = slices.layout(profile.layout)

    def of_rate(parts: NDArray[np.float64]) -> NDArray[np.float64]:
        values: NDArray[np.float64] = parts.reshape(len(profile.rates), -1, *parts.shape[1:])[index]
        return values

    return replace(
        profile,
        layout=layout,
        flops=of_rate(profile.part_flops)[: len(layout)],
        activations=of_rate(profile.part_activations)[: len(layout)],
        operations=of_rate(profile.part_operations) if len(profile.operations) else profile.operations,
        tensors={key: slices.tensors[key] for key in profile.tensors if key not in slices.absent},
    )
