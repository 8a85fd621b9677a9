"""Frozen blocks, and low-rank adapters of their layers: what learns is in a model's flat vectors, the base is not.

E. Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022, https://arxiv.org/abs/2106.09685: a layer
with weights W (outputs, inputs) gives W x + (alpha / r) B A x, with A (r, inputs) as a layer is initialised, and B
(outputs, r) zero at first; only A and B learn. Y. Sun et al., Improving LoRA in Privacy-preserving Federated Learning
(FFA-LoRA), ICLR 2024, https://arxiv.org/abs/2403.12313: A is frozen as well, and half as much travels.

A frozen parameter has the attribute `FROZEN`. It has no gradient, no key, no bytes in a visit's messages and no vector
of an optimizer; the numbers of the base follow from the run's seed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from edge.protocol.config import AdapterConfig, TensorAxes
from edge.protocol.spelling import nearest
from edge.protocol.submodels import WHOLE
from edge.training.blocks import Block

FROZEN = "is_frozen"
LAYERS = "linear"
"""In ``adapter.on``: every linear layer, and every convolution of 1 x 1"""


class LowRank(nn.Module):
    """B A, and the dropout before it."""

    def __init__(self, inputs: int, outputs: int, config: AdapterConfig) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.empty(config.rank, inputs))
        self.b = nn.Parameter(torch.zeros(outputs, config.rank))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))
        self.scale = config.scale
        self.merged: Tensor | None = None
        """(outputs, inputs) the sum of products that the base has taken up (FLoRA); None: of none. Always in the same
        place, so that replayed steps find it"""
        self.dropout = nn.Dropout(config.dropout) if config.dropout else nn.Identity()


class LowRankLinear(nn.Module):
    """A linear layer and its adapter."""

    def __init__(self, base: nn.Module, config: AdapterConfig) -> None:
        """``base``: as `_is_linear`."""
        super().__init__()
        self.base = base
        sides: tuple[int, int] = base.weight.shape  # type: ignore[assignment]
        outputs, inputs = sides if isinstance(base, nn.Linear) else sides[::-1]
        self.adapter = LowRank(inputs, outputs, config)

    def forward(self, x: Tensor) -> Tensor:
        """(.., inputs) -> (.., outputs)."""
        own = self.adapter
        added: Tensor = F.linear(F.linear(own.dropout(x), own.a), own.b)
        if own.merged is not None:
            added = added + F.linear(x, own.merged)
        result: Tensor = self.base(x) + own.scale * added
        return result


class LowRankConvolution(nn.Module):
    """A convolution of 1 x 1, without groups, and its adapter."""

    def __init__(self, base: nn.Conv2d, config: AdapterConfig) -> None:
        super().__init__()
        self.base = base
        self.adapter = LowRank(base.in_channels, base.out_channels, config)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, height, width) -> (batch, outputs, height, width)."""
        own, base = self.adapter, self.base
        inner = F.conv2d(own.dropout(x), own.a[:, :, None, None], stride=base.stride)
        added = F.conv2d(inner, own.b[:, :, None, None])
        if own.merged is not None:
            added = added + F.conv2d(x, own.merged[:, :, None, None], stride=base.stride)
        result: Tensor = base(x) + own.scale * added
        return result


def merge(module: nn.Module, products: Sequence[NDArray[np.float32]]) -> None:
    """Let the layers of a block with adapters have these sums of products in place of former ones.

    ``products``: vectors with (outputs, inputs) numbers of one layer after another. They stay beside the base, which
    all workers share.
    """
    adapters = [layer for layer in module.modules() if isinstance(layer, LowRank)]
    numbers = torch.from_numpy(np.concatenate(products)) if adapters else torch.zeros(0)
    sides = [(layer.b.shape[0], layer.a.shape[1]) for layer in adapters]
    for layer, shape, piece in zip(adapters, sides, torch.split(numbers, [*map(math.prod, sides)]), strict=True):
        if layer.merged is None:
            layer.merged = torch.empty(shape, device=layer.a.device)
        layer.merged.copy_(piece.view(shape))


def rank_axes(tensors: Mapping[str, Sequence[Tensor]], adapters: Collection[str]) -> TensorAxes:
    """key -> axes of the tensors in its vector (`edge.protocol.submodels`), where parts have adapters of a lower rank.

    ``tensors``: of each key, in the order of its vector; of the keys ``adapters`` they are A and B of each in turn.
    """
    whole = {key: tuple(tuple((size, WHOLE) for size in each.shape) for each in own) for key, own in tensors.items()}
    of_rank = {
        key: tuple(
            ((size, 1), (other, WHOLE)) if place % 2 == 0 else ((size, WHOLE), (other, 1))
            for place, (size, other) in enumerate(each.shape for each in tensors[key])
        )
        for key in adapters
    }
    return whole | of_rank


def share_base(modules: Sequence[nn.Module], of: Sequence[nn.Module]) -> None:
    """Let modules use the frozen numbers of others, which differ from them by their adapters' rank alone."""
    own, home = ([each for module in side for each in module.parameters() if is_frozen(each)] for side in (modules, of))
    for mine, theirs in zip(own, home, strict=True):
        mine.data = theirs.data


def is_frozen(parameter: Tensor) -> bool:
    """Whether a parameter belongs to the base."""
    return bool(getattr(parameter, FROZEN, False))


def learnable(module: nn.Module, recurse: bool = True) -> Iterator[nn.Parameter]:
    """The parameters of a module that are not frozen, in the order of ``module.parameters()``."""
    return (parameter for parameter in module.parameters(recurse=recurse) if not is_frozen(parameter))


def let_learn(module: nn.Module, learns: bool) -> None:
    """Let the parameters of a module that are not frozen receive gradients, or none."""
    for parameter in learnable(module):
        parameter.requires_grad_(learns)


def adapted(blocks: Sequence[Block], config: AdapterConfig) -> list[Block]:
    """These blocks with adapters, and everything else frozen but the blocks of ``adapter.train``.

    ValueError for names that are no block or layer, and where nothing is left to learn.
    """
    names = [name for name, _ in blocks]
    for name in config.train:
        if name not in names:
            raise ValueError(f"adapter.train: {name!r}: {nearest(name, names)}")
    unmatched = set(config.on) if config.kind == "lora" else set()
    found: list[Block] = []
    for name, module in blocks:
        if name in config.train:
            found.append((name, module))
            continue
        for parameter in module.parameters():
            _freeze(parameter)
        found.append((name, _with_adapters(name, module, config, unmatched) if config.kind == "lora" else module))
    if LAYERS in unmatched:
        raise ValueError("adapter.on: no block outside of adapter.train has a linear layer, or a convolution of 1 x 1")
    if unmatched:
        layers = sorted({path.rpartition(".")[2] for _, module in blocks for path, _ in _targets(module) if path})
        why = nearest(sorted(unmatched)[0], [LAYERS, *layers])
        raise ValueError(f"adapter.on: no layer is called {sorted(unmatched)[0]!r}; {why}")
    if not any(True for _, module in found for _ in learnable(module)):
        raise ValueError("adapter: nothing is left to learn; name blocks in adapter.train, or layers in adapter.on")
    return found


def _with_adapters(block: str, module: nn.Module, config: AdapterConfig, unmatched: set[str]) -> nn.Module:
    """The module with adapters on the layers that ``adapter.on`` names, which are no longer ``unmatched``."""
    for path, layer in [*_targets(module)]:
        last = path.rpartition(".")[2]
        matching = {name for name in config.on if name in (LAYERS, last, path, f"{block}.{path}" if path else block)}
        if not matching:
            continue
        unmatched -= matching
        wrapped = LowRankConvolution(layer, config) if isinstance(layer, nn.Conv2d) else LowRankLinear(layer, config)
        if config.aggregate == "ffa":
            _freeze(wrapped.adapter.a)
        if not path:
            return wrapped
        parent = module.get_submodule(path.rpartition(".")[0])
        if isinstance(parent, nn.Sequential | nn.ModuleList):
            parent[int(last)] = wrapped
        else:
            setattr(parent, last, wrapped)
    return module


def _targets(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """(path, layer) of the layers that may have adapters."""
    for path, layer in module.named_modules():
        is_pointwise = isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1) and layer.groups == 1
        if _is_linear(layer) or is_pointwise:
            yield path, layer


def _is_linear(layer: nn.Module) -> bool:
    """Whether it is a linear layer: torch's, or GPT-2's of transformers, whose weights are (inputs, outputs)."""
    return isinstance(layer, nn.Linear) or (type(layer).__name__ == "Conv1D" and hasattr(layer, "nf"))


def _freeze(parameter: nn.Parameter) -> None:
    parameter.requires_grad_(False)
    setattr(parameter, FROZEN, True)
