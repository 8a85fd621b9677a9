"""The networks that calibration measures: of every kind of layer and several width classes, and none that ships.

Each is a pyramid: a stem, and stages whose width doubles while height and width of the images shrink. They are as deep
as real networks, since the activations of few layers stay in the processor's cache, and their steps would be too short.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from edge.models.layers import conv_norm
from edge.models.llama import GroupedAttention
from edge.protocol.options.llama import LlamaOptions
from edge.training.blocks import Block

IMAGE_SIDE = 32
CLASSES = 10

conv_group_norm = partial(conv_norm, "group")


class ReferenceResidual(nn.Module):
    """A body that is added to its input."""

    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) -> the same."""
        return torch.relu(x + self.body(x))


class ReferenceAttention(nn.Module):
    """Attention of all places to those before them, added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = GroupedAttention(width, LlamaOptions())

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) -> the same."""
        places = x.flatten(2).transpose(1, 2)
        result: Tensor = x + self.attention(places).transpose(1, 2).reshape(x.shape)
        return result


class ReferenceJoin(nn.Module):
    """1x1 and 3x3 convolutions of a narrow layer, joined."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.narrow = nn.Sequential(*conv_group_norm(width, width // 4, 1), nn.ReLU())
        self.point = nn.Sequential(*conv_group_norm(width // 4, width // 2, 1), nn.ReLU())
        self.wide = nn.Sequential(*conv_group_norm(width // 4, width // 2, 3), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) -> the same."""
        x = self.narrow(x)
        return torch.cat([self.point(x), self.wide(x)], dim=1)


def plain(width: int) -> nn.Module:
    """A 3x3 convolution."""
    return nn.Sequential(*conv_group_norm(width, width, 3), nn.ReLU())


def bare(width: int) -> nn.Module:
    """A 3x3 convolution without normalisation."""
    return nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU())


def large(width: int) -> nn.Module:
    """A 5x5 convolution without normalisation."""
    return nn.Sequential(nn.Conv2d(width, width, 5, padding=2), nn.ReLU())


def point(width: int) -> nn.Module:
    """A 1x1 convolution."""
    return nn.Sequential(*conv_group_norm(width, width, 1), nn.ReLU())


def residual(width: int) -> nn.Module:
    """Two 3x3 convolutions, added to their input."""
    return ReferenceResidual(*conv_group_norm(width, width, 3), nn.ReLU(), *conv_group_norm(width, width, 3))


def inverted(width: int) -> nn.Module:
    """A depthwise convolution between 1x1 convolutions that widen and narrow, added to its input."""
    wide = 4 * width
    depthwise = conv_group_norm(wide, wide, 3, groups=wide)
    return ReferenceResidual(
        *conv_group_norm(width, wide, 1), nn.ReLU(), *depthwise, nn.ReLU(), *conv_group_norm(wide, width, 1)
    )


def grouped(width: int) -> nn.Module:
    """A depthwise convolution between 1x1 convolutions in groups, which are shuffled, added to its input."""
    half = width // 2
    squeeze = (*conv_group_norm(width, half, 1, groups=3), nn.ReLU(), nn.ChannelShuffle(3))
    depthwise = (*conv_group_norm(half, half, 3, groups=half), nn.ReLU())
    return ReferenceResidual(*squeeze, *depthwise, *conv_group_norm(half, width, 1, groups=3))


def joined(width: int) -> nn.Module:
    """A narrow 1x1 convolution, and a 1x1 and a 3x3 convolution of its result."""
    return ReferenceJoin(width)


def attending(width: int) -> nn.Module:
    """Attention with four heads."""
    return ReferenceAttention(width)


@dataclass(frozen=True)
class Reference:
    """A network of one kind of layer."""

    family: str
    unit: Callable[[int], nn.Module] | None
    """Layers of a width; None: only linear layers."""
    width: int
    """Of the first stage."""
    sides: tuple[int, ...] = (32, 16, 8)
    """Height and width of the images in each stage."""
    depth: int = 1
    """Units of each stage."""
    hidden: int = 0
    """Units of a linear layer before the last; 0: none, and the mean over all places before the last."""

    @property
    def name(self) -> str:
        """For tables."""
        kind = "linear" if self.unit is None else self.unit.__name__
        return f"{kind}-{self.width}x{self.depth}@{self.sides[0]}"

    def make(self) -> list[Block]:
        """One block: (batch, 1, 32, 32) -> (batch, 10)."""
        if self.unit is None:
            layers = [nn.Flatten(), nn.Linear(IMAGE_SIDE**2, self.width), nn.ReLU()]
            for _ in range(self.depth):
                layers += [nn.Linear(self.width, self.width), nn.ReLU()]
            return [("all", nn.Sequential(*layers, nn.Linear(self.width, CLASSES)))]
        layers, side, channels = list[nn.Module](), IMAGE_SIDE, 1
        for place, smaller in enumerate(self.sides):
            outputs = self.width << place
            if place == 0 and smaller < 16:  # else the stem would take most of the step
                layers, side = [nn.AvgPool2d(side // smaller)], smaller
            stem = conv_group_norm(channels, outputs, 1 if place else 3)
            layers += [*(stem[:1] if self.unit in (bare, large) else stem), nn.ReLU()]
            if smaller < side:
                layers.append(nn.MaxPool2d(side // smaller))
            layers += [self.unit(outputs) for _ in range(self.depth)]
            side, channels = smaller, outputs
        if self.hidden:
            layers += [nn.Flatten(), nn.Linear(side**2 * channels, self.hidden), nn.ReLU()]
        else:
            layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return [("all", nn.Sequential(*layers, nn.Linear(self.hidden or channels, CLASSES)))]


CONV, DEPTHWISE, ATTENTION = "conv", "depthwise", "attention"
REFERENCES = (
    Reference(CONV, large, 4, (32, 16, 8), hidden=64),
    Reference(CONV, large, 8, (16, 8)),
    Reference(CONV, plain, 6, depth=2),
    Reference(CONV, bare, 8, (16, 8), hidden=200),
    Reference(CONV, plain, 12, (32, 16, 8, 4)),
    Reference(CONV, plain, 16),
    Reference(CONV, plain, 32, (16, 8)),
    Reference(CONV, plain, 64, (8, 4)),
    Reference(CONV, bare, 24, (16, 8), hidden=400),
    Reference(CONV, plain, 48, (16, 8, 4)),
    Reference(CONV, residual, 6, (32, 16, 8, 4), 2),
    Reference(CONV, residual, 12, depth=2),
    Reference(CONV, residual, 16, depth=2),
    Reference(CONV, residual, 32),
    Reference(CONV, residual, 64, (8, 4)),
    Reference(CONV, residual, 48, (16, 8, 4)),
    Reference(CONV, point, 12, depth=2),
    Reference(CONV, point, 48, (16, 8, 4), 2),
    Reference(CONV, joined, 16, (16, 8, 4), 3),
    Reference(CONV, joined, 16, (4, 2), 6),
    Reference(CONV, joined, 40, (16, 8), 3),
    Reference(CONV, joined, 80, (16, 8, 4), 2),
    Reference(CONV, bare, 6, (8, 4), 1),
    Reference(CONV, bare, 12, (8,), 10),
    Reference(CONV, bare, 12, (8,), 3),
    Reference(CONV, bare, 24, (8,), 3),
    Reference(CONV, bare, 32, (8,), 8),
    Reference(CONV, bare, 48, (8,), 3),
    Reference(CONV, bare, 96, (8,), 2),
    Reference(CONV, None, 128, depth=1),
    Reference(CONV, None, 300, depth=3),
    Reference(DEPTHWISE, inverted, 6, depth=3),
    Reference(DEPTHWISE, inverted, 12, depth=2),
    Reference(DEPTHWISE, inverted, 12, (8, 4), 5),
    Reference(DEPTHWISE, inverted, 20, depth=2),
    Reference(DEPTHWISE, grouped, 12, depth=2),
    Reference(DEPTHWISE, grouped, 24, depth=2),
    Reference(DEPTHWISE, grouped, 60, (16, 8), 4),
    Reference(DEPTHWISE, grouped, 120, (16, 8, 4), 2),
    Reference(ATTENTION, attending, 32, (16,), 2),
    Reference(ATTENTION, attending, 64, (8,), 3),
    Reference(ATTENTION, attending, 128, (8,), 2),
    Reference(ATTENTION, attending, 256, (8,)),
)
"""The reference networks; together they have all kinds of operations. Some widths are multiples of 16, which fill the
vectors of processors, and some are not."""
