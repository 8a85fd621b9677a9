"""Exits of a model: classifiers of its blocks, so that its first blocks alone are a model, too.

The outputs of a block go on to the next one and through its exit, which keeps its logits; the last block of a model
with exits, whole or cut, gives the mean of all logits of the pass. Kim, Yu, Kim and Moon, DepthFL: Depthwise Federated
Learning for Heterogeneous Clients, ICLR 2023, https://openreview.net/forum?id=pf8RIZTMU58.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from edge.models.registry import GROUPS
from edge.protocol.config import Axis, TensorAxes
from edge.protocol.options.depthfl import STEM, DepthFLOptions
from edge.protocol.submodels import DEPTH, WHOLE
from edge.training.block_model import BlockModel, named_tensors
from edge.training.blocks import Block
from edge.training.heads import cut_head, layers_of

POOLS: dict[type[nn.Module], type[nn.Module]] = {nn.Conv1d: nn.AdaptiveAvgPool1d, nn.Conv2d: nn.AdaptiveAvgPool2d}


class ExitBlock(nn.Module):
    """A block with an exit."""

    logits: Tensor
    """(batch, classes) of the last pass"""

    def __init__(self, body: nn.Module, exit: nn.Module | None, earlier: tuple[ExitBlock, ...]) -> None:
        """``exit``: None for the model's own classifier, whose outputs are logits; ``earlier``: the exits before it."""
        super().__init__()
        self.body, self.exit, self.earlier = body, exit, earlier
        self.is_last = exit is None

    def branches(self, x: Tensor) -> tuple[Tensor, ...]:
        """What is computed of its input: its output, unless the model ends here, and its logits."""
        x = self.body(x)
        if self.exit is None:
            return (x,)
        return (self.exit(x),) if self.is_last else (x, self.exit(x))

    def forward(self, x: Tensor) -> Tensor:
        """Its output, or (batch, classes) the mean of all exits' logits if the model ends here."""
        *outputs, self.logits = self.branches(x)
        if outputs:
            return outputs[0]
        return torch.stack([each.logits.float() for each in (*self.earlier, self)]).mean(0)


def with_exits(blocks: list[Block], options: DepthFLOptions, classes: int, width: int | None) -> list[Block]:
    """The model with an exit behind each block, but a first one called ``stem`` and the one before the classifier: a
    ``wrap_model``.

    ValueError as of `cut_head`, and for a model of fewer than two depths or of other layers.
    """
    cut_head(blocks)
    made: list[Block] = []
    earlier: tuple[ExitBlock, ...] = ()
    for place, (name, body) in enumerate(blocks[:-2]):
        if place or name != STEM:
            earlier = (*earlier, ExitBlock(body, _exit(blocks[place:], options.exits, classes), earlier))
            made.append((name, earlier[-1]))
        else:
            made.append((name, body))
    if not earlier:
        raise ValueError(
            f"its blocks {', '.join(name for name, _ in blocks)} have one depth; it needs two blocks or more before "
            f"the last, a {STEM} aside"
        )
    name, head = blocks[-1]
    return [*made, blocks[-2], (name, ExitBlock(head, None, earlier))]


def _exit(blocks: Sequence[Block], kind_of_exit: str, classes: int) -> nn.Module:
    """The exit behind the first of these blocks, by the first layer of the next one that tells what it takes.

    Before a linear layer, it is another linear layer of the same features.
    """
    name, layers = blocks[0][0], layers_of(blocks[1][1])
    first = next((place for place, layer in enumerate(layers) if any(True for _ in layer.parameters())), 0)
    for layer in (part for whole in layers[first:] for part in whole.modules()):
        if isinstance(layer, nn.Linear):
            return nn.Sequential(*map(deepcopy, layers[:first]), nn.Flatten(), nn.Linear(layer.in_features, classes))
        if isinstance(layer, nn.Conv1d | nn.Conv2d):
            channels, convolutions = layer.in_channels, list[nn.Module]()
            for _, block in blocks[1:] if kind_of_exit == "convolutional" else ():
                if own := [each for each in block.modules() if isinstance(each, type(layer))]:
                    convolutions += _halved(type(layer), channels, own[-1].out_channels, blocks[0][1])
                    channels = own[-1].out_channels
            return nn.Sequential(*convolutions, POOLS[type(layer)](1), nn.Flatten(), nn.Linear(channels, classes))
        if any(True for _ in layer.parameters(recurse=False)) and not isinstance(layer, _BatchNorm | nn.GroupNorm):
            raise ValueError(f"{type(layer).__name__} follows block {name}, so that it can have no exit")
    raise ValueError(f"no convolution and no linear layer follows block {name}, so that it can have no exit")


def _halved(kind: type[Any], inputs: int, outputs: int, like: nn.Module) -> list[nn.Module]:
    """Two depthwise separable convolutions: (batch, inputs, places ..) -> (batch, outputs, half as many each way).

    They have BatchNorm where ``like`` has, else GroupNorm: without any, torch's initial weights make the
    outputs of a chain of them so small that it does not begin to learn.
    """
    norm: Any = next((layer for layer in like.modules() if isinstance(layer, _BatchNorm)), None)
    layers: list[nn.Module] = []
    for channels, stride in ((inputs, 2), (outputs, 1)):
        layers += [
            kind(inputs, inputs, 3, stride=stride, padding=1, groups=inputs, bias=False),
            kind(inputs, channels, 1, bias=False),
            nn.GroupNorm(math.gcd(GROUPS, channels), channels) if norm is None else type(norm)(channels),
            nn.ReLU(),
        ]
    return layers


def exit_logits(net: BlockModel) -> list[Tensor]:
    """(batch, classes) of each exit in the last pass through the model, the shallowest first; none without exits."""
    return [module.logits for module in net.modules if isinstance(module, ExitBlock)]


def depth_axes(net: BlockModel) -> TensorAxes:
    """key -> axes of the tensors in its vector (`edge.protocol.submodels`): each is whole, in parts of its depth."""
    named = named_tensors(net.layout, net.modules, net.by_layer)
    axes = dict[str, tuple[tuple[Axis, ...], ...]]()
    depth = 1
    for name, module in zip(net.layout.names, net.modules, strict=True):
        for key in net.layout.keys([name]):
            own = named.get(key, [])
            axes[key] = tuple(((depth, DEPTH), *((size, WHOLE) for size in tensor.shape)) for tensor in own)
        depth += isinstance(module, ExitBlock)
    return axes


def shortened(blocks: list[Block], count: int) -> list[Block]:
    """So many of the first blocks, of which the last is the model's end."""
    if count < len(blocks):
        last = blocks[count - 1][1]
        assert isinstance(last, ExitBlock), blocks[count - 1][0]
        last.is_last = True
    return blocks[:count]
