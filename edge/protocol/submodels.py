"""Sub-models: the part of the model that a client holds, as slices of its tensors that both sides derive. Torch-free.

A part of rate r has ⌈r·C⌉ of the C channels of each hidden layer, and of the inputs of the layer after it; inputs of
the model and its classes stay whole. They are the first ones, or a window that begins at a number of a visit and wraps
around. A visit's choices say which (`RATE`, `WINDOW`), so that no index travels, and lengths follow from shapes.

Diao, Ding and Tarokh, HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients,
ICLR 2021, https://arxiv.org/abs/2010.01264; the window: Alam et al., FedRolex: Model-Heterogeneous Federated Learning
with Rolling Sub-Model Extraction, NeurIPS 2022, https://arxiv.org/abs/2212.01548.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edge.protocol.config import Axis, ModelProfile, TensorAxes
from edge.protocol.messages import Choice
from edge.protocol.payload import BUFFERS, BlockShape, Floats, LayerShape, Layout

RATE, WINDOW = "rate", "window"
"""Names among the choices of a visit: its part's share of the channels, and the first channel of it, modulo their
number; without it, 0"""
WHOLE, CLASSES = 0, -1
"""Of an axis (size, channel): all of it is in every part; so are its rows, one per class"""
ROUNDING = 1e-9
"""0.2·5 channels are 1, though the product of floats is above"""


def part_name(rate: float) -> str:
    """In place of the name of a metric: of the part of this rate."""
    return f"{RATE} {rate:g}"


def kept_channels(channels: int, rate: float) -> int:
    """How many of so many channels a part has, at least 1."""
    return max(1, math.ceil(rate * channels - ROUNDING))


class SliceMap:
    """The part of one rate: which numbers of the model's vectors it has, in their order."""

    def __init__(self, axes: TensorAxes, rate: float, window: int = 0) -> None:
        """``axes``: of each tensor of each vector, by key."""
        self._axes, self.rate = axes, rate
        self._window = 0 if rate == 1 else window
        self._places: dict[str, NDArray[np.intp]] = {}

    def _kept(self, axis: Axis) -> NDArray[np.intp]:
        """Places along an axis."""
        size, channel = axis
        if channel < 1:
            return np.arange(size)
        channels = size // channel
        first = (self._window + np.arange(kept_channels(channels, self.rate))) % channels
        return (first[:, None] * channel + np.arange(channel)).ravel()

    @cached_property
    def tensors(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """key -> shapes of the tensors in its vector."""
        return {
            key: tuple(tuple(_length(axis, self.rate) for axis in axes) for axes in tensors)
            for key, tensors in self._axes.items()
        }

    @cached_property
    def sizes(self) -> dict[str, int]:
        """key -> numbers."""
        return {key: sum(map(math.prod, shapes)) for key, shapes in self.tensors.items()}

    def places(self, key: str) -> NDArray[np.intp]:
        """Places of the part's numbers in the model's vector of this key."""
        if key not in self._places:
            found, start = [], 0
            for axes in self._axes[key]:
                shape = tuple(size for size, _ in axes)
                found.append(start + np.ravel_multi_index(np.ix_(*map(self._kept, axes)), shape).ravel())
                start += math.prod(shape)
            self._places[key] = np.concatenate(found)
        return self._places[key]

    def classes(self, key: str) -> NDArray[np.intp] | None:
        """The class of each number of the part in this key, -1 for numbers of no class; None if none has any."""
        tensors = self._axes[key]
        if not any(channel == CLASSES for axes in tensors for _, channel in axes):
            return None
        found = []
        for shape, axes in zip(self.tensors[key], tensors, strict=True):
            row = next((index for index, (_, channel) in enumerate(axes) if channel == CLASSES), None)
            numbers = np.full(shape, -1, np.intp) if row is None else np.indices(shape)[row]
            found.append(numbers.ravel())
        return np.concatenate(found)

    def taken(self, key: str, vector: Floats) -> Floats:
        """The part's numbers of a vector of the model; the vector itself if it is whole."""
        return vector if self.rate == 1 else vector[self.places(key)]

    def of(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """key -> numbers of the part, for vectors of these keys; those of no tensors of the model as they are."""
        return {key: self.sizes.get(key, size) for key, size in sizes.items()}

    def layout(self, layout: Layout) -> Layout:
        """The part's layout, of the model's."""
        return Layout(tuple(self._block(block) for block in layout.blocks))

    def _block(self, block: BlockShape) -> BlockShape:
        sizes = self.sizes
        parts = [
            LayerShape(part.key, sizes.get(part.key, 0), sizes.get(f"{part.key}{BUFFERS}", 0)) for part in block.parts
        ]
        params, buffers = sum(part.params for part in parts), sum(part.buffers for part in parts)
        return BlockShape(block.name, params, buffers, tuple(parts) if block.layers else ())


def _length(axis: Axis, rate: float) -> int:
    size, channel = axis
    return size if channel < 1 else kept_channels(size // channel, rate) * channel


def slice_map(axes: TensorAxes, choice: Choice) -> SliceMap:
    """The part that a visit with these choices has."""
    return SliceMap(axes, float(choice.get(RATE, 1.0)), int(choice.get(WINDOW, 0)))


def part_profile(profile: ModelProfile, rate: float) -> ModelProfile:
    """The profile of the part of a rate, of the model's: layout, counts and tensors are its own."""
    if rate == 1 or rate not in profile.rates:
        return profile
    index, slices = profile.rates.index(rate), SliceMap(profile.axes, rate)

    def own(parts: NDArray[np.float64]) -> NDArray[np.float64]:
        each: NDArray[np.float64] = parts.reshape(len(profile.rates), -1, *parts.shape[1:])[index]
        return each

    return replace(
        profile,
        layout=slices.layout(profile.layout),
        flops=own(profile.part_flops),
        activations=own(profile.part_activations),
        operations=own(profile.part_operations) if len(profile.operations) else profile.operations,
        tensors={key: slices.tensors[key] for key in profile.tensors},
    )
