"""The head of a model, cut off: where feature maps end, and where logits begin.

Methods that look at the features before the classifier (a projection head, the feature maps of the last stage) find
them here, whatever the model.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from edge.models.vgg9 import PoolToSide
from edge.training.blocks import Block


@dataclass(frozen=True)
class CutHead:
    """A model in three parts, which run one after another."""

    trunk: list[Block]
    """All blocks but the last; their outputs are feature maps (batch, channels, h, w) in a model of images that pools
    last."""
    joint: list[nn.Module]
    """Layers without parameters: from the trunk's output to the features (batch, features) of an example."""
    name: str
    """Of the last block"""
    head: list[nn.Module]
    """The rest of the last block, from its first linear layer on"""

    @property
    def features(self) -> int:
        """Numbers per example that the head takes."""
        first = self.head[0]
        assert isinstance(first, nn.Linear)
        return first.in_features


def cut_head(blocks: list[Block]) -> CutHead:
    """Cut a model before the first linear layer of its last block.

    Pooling, flattening and dropout that end the block before, or begin the last one, are the joint. ValueError if the
    last block does not begin with a linear layer, those aside: a model that is cut elsewhere (``balanced:M``), or
    whose classifier is a convolution.
    """
    *trunk, (name, last) = blocks
    layers = layers_of(last)
    first = next((place for place, layer in enumerate(layers) if isinstance(layer, nn.Linear)), None)
    if (
        not trunk
        or first is None
        or any(True for layer in layers[:first] for _ in (*layer.parameters(), *layer.buffers()))
    ):
        raise ValueError(
            f"the last block, {name}, must begin with a linear layer: take such a model, with model.blocks = 'stages'"
        )
    before, module = trunk[-1]
    kept = layers_of(module)
    end = len(kept)
    # What makes features of maps: flattening, and pooling to one size.
    while end > 1 and isinstance(kept[end - 1], nn.Flatten | nn.AdaptiveAvgPool2d | nn.Dropout | PoolToSide):
        end -= 1
    if end < len(kept):
        trunk[-1] = (before, kept[0] if end == 1 else nn.Sequential(*kept[:end]))
    return CutHead(trunk, [*kept[end:], *layers[:first]], name, layers[first:])


def layers_of(module: nn.Module) -> list[nn.Module]:
    """The layers of nested sequences, in order."""
    if not isinstance(module, nn.Sequential):
        return [module]
    return [layer for child in module for layer in layers_of(child)]
