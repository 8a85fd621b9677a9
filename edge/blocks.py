"""A model as M consecutive blocks over flat vectors.

All parameters of a `Net` are views into one flat vector and all gradients into another, block after block, so that a
download is one copy per block, an upload is a buffer, and an optimiser step is a few operations on whole vectors.
A `Net` also counts what it executes: per block, how many examples went through forward, weight gradient and input
gradient.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edge.config import ModelConfig
from edge.models import model
from edge.payload import (
    BUFFERS,
    FORWARD,
    INNER_GRADIENT,
    INPUT_GRADIENT,
    KINDS,
    WEIGHT_GRADIENT,
    BlockShape,
    Floats,
    Layout,
    Vector,
)

Block = tuple[str, nn.Module]


def load_dotted(name: str) -> Any:
    """The object that ``module:attribute`` names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def build(config: ModelConfig, classes: int, channels: int) -> list[Block]:
    """The blocks of a model, initialised by torch's defaults from its current random state.

    Raises ValueError if the model cannot be cut as asked.
    """
    row = model(config.name)
    width = row.width if config.width is None else config.width
    stages: list[tuple[str, list[nn.Module]]] = load_dotted(row.stages)(classes, channels, width)
    if config.blocks == "stages":
        return [(name, units[0] if len(units) == 1 else nn.Sequential(*units)) for name, units in stages]
    units = [unit for _, some in stages for unit in some]
    sizes = [sum(p.numel() for p in unit.parameters()) for unit in units]
    count = row.block_count(config.blocks)
    cuts = [0, *balanced_cuts(sizes, count), len(units)]
    return [(f"b{i + 1}", nn.Sequential(*units[cuts[i] : cuts[i + 1]])) for i in range(count)]


def balanced_cuts(sizes: Sequence[int], count: int) -> tuple[int, ...]:
    """Where to cut a row of units into ``count`` parts of as equal size as their order allows.

    Minimises the sum of squared part sizes over all cuts; ties go to the earlier cut.
    """
    ends = np.concatenate([[0], np.cumsum(np.asarray(sizes, dtype=object))])

    def cost(cuts: tuple[int, ...]) -> int:
        edges = (0, *cuts, len(sizes))
        return sum((ends[b] - ends[a]) ** 2 for a, b in pairwise(edges))

    return min(combinations(range(1, len(sizes)), count - 1), key=lambda cuts: (cost(cuts), cuts))


class Net:
    """M blocks whose numbers live in flat vectors. Made once per worker and reused for every client."""

    def __init__(self, make: Callable[[], list[Block]], device: torch.device) -> None:
        self._make = make
        self._twin: Net | None = None
        self.device = device
        blocks = make()
        self.modules = [module.to(device) for _, module in blocks]
        self.layout = Layout(
            tuple(
                BlockShape(name, sum(p.numel() for p in m.parameters()), sum(b.numel() for b in _float_buffers(m)))
                for name, m in blocks
            )
        )
        total = sum(shape.params for shape in self.layout.blocks)
        self.flat = torch.empty(total, device=device)
        self.grad = torch.zeros(total, device=device)
        self.slices: dict[str, slice] = {}
        self._buffers: dict[str, list[Tensor]] = {}
        self._flatten()
        self.executed: NDArray[np.int64] = np.zeros((len(self.modules), KINDS), dtype=np.int64)

    def _flatten(self) -> None:
        offset = 0
        for shape, module in zip(self.layout.blocks, self.modules, strict=True):
            start = offset
            for parameter in module.parameters():
                end = offset + parameter.numel()
                self.flat[offset:end].copy_(parameter.data.reshape(-1))
                parameter.data = self.flat[offset:end].view_as(parameter)
                parameter.grad = self.grad[offset:end].view_as(parameter)
                offset = end
            self.slices[shape.name] = slice(start, offset)
            if shape.buffers:
                self._buffers[shape.name + BUFFERS] = _float_buffers(module)

    def __len__(self) -> int:
        return len(self.modules)

    def load(self, named: dict[str, Vector]) -> None:
        """Copy vectors into the model, by key."""
        for key, vector in named.items():
            if key in self.slices:
                _copy(self.flat[self.slices[key]], vector.data)
                continue
            offset = 0
            for buffer in self._buffers[key]:
                _copy(buffer.view(-1), vector.data[offset : offset + buffer.numel()])
                offset += buffer.numel()

    def dump(self, keys: Iterable[str]) -> dict[str, Vector]:
        """The numbers of these keys, as copies that later training does not change."""
        return {key: Vector(self._read(key)) for key in keys}

    def _read(self, key: str) -> Floats:
        if key in self.slices:
            source = self.flat[self.slices[key]]
        else:
            source = torch.cat([buffer.reshape(-1) for buffer in self._buffers[key]])
        numbers: Floats = source.detach().to("cpu", copy=True).numpy()
        return numbers

    def run(self, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Through blocks ``start`` (counted from 0) up to, not including, ``stop``."""
        for index in range(start, len(self) if stop is None else stop):
            self._count(index, x)
            x = self.modules[index](x)
        return x

    def features(self, x: Tensor) -> list[Tensor]:
        """The outputs of all blocks, first to last; the last are the logits."""
        outputs = []
        for index in range(len(self)):
            x = self.run(x, index, index + 1)
            outputs.append(x)
        return outputs

    def _count(self, index: int, x: Tensor) -> None:
        row, examples = self.executed[index], x.shape[0]
        row[FORWARD] += examples
        if torch.is_grad_enabled():
            trains, passes_on = self._trains(index), x.requires_grad
            row[WEIGHT_GRADIENT] += examples if trains else 0
            row[INNER_GRADIENT] += examples if trains or passes_on else 0
            row[INPUT_GRADIENT] += examples if passes_on else 0

    def _trains(self, index: int) -> bool:
        return any(parameter.requires_grad for parameter in self.modules[index].parameters())

    def train_mode(self, training: bool) -> None:
        """Set the mode of all blocks (only normalisation by batch statistics and dropout care)."""
        for module in self.modules:
            module.train(training)

    def train_only(self, names: Iterable[str] | None = None) -> None:
        """Let only these blocks receive gradients (default: all)."""
        wanted = set(self.layout.names if names is None else names)
        for name, module in zip(self.layout.names, self.modules, strict=True):
            module.requires_grad_(name in wanted)

    def frozen(self) -> Net:
        """A second model of the same shape that never learns; gradients flow through it, never into it.

        It is made once, counts into this model's ``executed``, and runs in evaluation mode (FedMLB's G).
        """
        if self._twin is None:
            twin = Net(self._make, self.device)
            twin.train_only(())
            twin.train_mode(False)
            twin.executed = self.executed
            self._twin = twin
        return self._twin


def _float_buffers(module: nn.Module) -> list[Tensor]:
    return [buffer for buffer in module.buffers() if buffer.is_floating_point()]


def _copy(target: Tensor, numbers: Floats) -> None:
    """numbers -> target, flat. Frames of a socket are read-only, which torch will not view; numpy copies from them."""
    if target.device.type == "cpu":
        np.copyto(target.numpy(), numbers)
    else:
        target.copy_(torch.from_numpy(numbers.copy()))
