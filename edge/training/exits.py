"""Exits of a model: classifiers of its blocks, so that its first blocks alone are a model, too.

The outputs of a block go on to the next one and through its exit, which keeps its logits; the last block of a model
with exits, whole or cut, gives the mean of all logits of the pass. Kim, Yu, Kim and Moon, DepthFL: Depthwise Federated
Learning for Heterogeneous Clients, ICLR 2023, https://openreview.net/forum?id=pf8RIZTMU58. The paper's exits also have
convolutions, which make maps as small as the last ones before they are averaged, and attention; these are linear.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from edge.protocol.config import TensorAxes
from edge.protocol.options.base import Options
from edge.protocol.options.depthfl import STEM
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


def with_exits(blocks: list[Block], options: Options, classes: int, width: int | None) -> list[Block]:
    """The model with an exit behind each block, but a first one called ``stem`` and the one before the classifier: a
    ``wrap_model``.

    An exit is a linear layer of the means of the channels over their places, or of what the next block's linear layer
    takes. ValueError as of `cut_head`, and for a model of fewer than two depths or of other layers.
    """
    cut_head(blocks)
    made: list[Block] = []
    earlier: tuple[ExitBlock, ...] = ()
    for place, (name, module) in enumerate(blocks[:-2]):
        if place or name != STEM:
            module = ExitBlock(module, _exit(name, blocks[place + 1][1], classes), earlier)
            earlier = (*earlier, module)
        made.append((name, module))
    if not earlier:
        raise ValueError(
            f"its blocks {', '.join(name for name, _ in blocks)} have one depth; it needs two blocks or more before "
            f"the last, a {STEM} aside"
        )
    name, head = blocks[-1]
    return [*made, blocks[-2], (name, ExitBlock(head, None, earlier))]


def _exit(name: str, following: nn.Module, classes: int) -> nn.Module:
    """The exit behind a block, by the first layer of the next one that tells what it takes."""
    layers = layers_of(following)
    first = next((place for place, layer in enumerate(layers) if any(True for _ in layer.parameters())), 0)
    for layer in (part for whole in layers[first:] for part in whole.modules()):
        if isinstance(layer, nn.Linear):
            return nn.Sequential(*map(deepcopy, layers[:first]), nn.Flatten(), nn.Linear(layer.in_features, classes))
        if type(layer) in POOLS:
            channels = layer.in_channels
            assert isinstance(channels, int)
            return nn.Sequential(POOLS[type(layer)](1), nn.Flatten(), nn.Linear(channels, classes))
        if any(True for _ in layer.parameters(recurse=False)) and not isinstance(layer, _BatchNorm | nn.GroupNorm):
            raise ValueError(f"{type(layer).__name__} follows block {name}, so that it can have no exit")
    raise ValueError(f"no convolution and no linear layer follows block {name}, so that it can have no exit")


def exit_logits(net: BlockModel) -> list[Tensor]:
    """(batch, classes) of each exit in the last pass through the model, the shallowest first; none without exits."""
    return [module.logits for module in net.modules if isinstance(module, ExitBlock)]


def depth_axes(net: BlockModel) -> TensorAxes:
    """key -> axes of the tensors in its vector (`edge.protocol.submodels`): each is whole, in parts of its depth."""
    named = named_tensors(net.layout, net.modules, net.by_layer)
    axes: TensorAxes = {}
    depth = 1
    for name, module in zip(net.layout.names, net.modules, strict=True):
        for key in net.layout.keys([name]):
            own = named.get(key, [])
            axes |= {key: tuple(((depth, DEPTH), *((size, WHOLE) for size in tensor.shape)) for tensor in own)}
        depth += isinstance(module, ExitBlock)
    return axes


def shortened(blocks: list[Block], count: int) -> list[Block]:
    """So many of the first blocks, of which the last is the model's end."""
    if count < len(blocks):
        last = blocks[count - 1][1]
        assert isinstance(last, ExitBlock), blocks[count - 1][0]
        last.is_last = True
    return blocks[:count]
