"""ShuffleNet V1 with three groups, by default with GroupNorm, one of FedMLB's backbones.

Zhang et al., ShuffleNet: An Extremely Efficient Convolutional Neural Network for Mobile Devices, CVPR 2018,
https://arxiv.org/abs/1707.01083; the stem for small images, the normalisation and the split into blocks are those of
the published code of FedACG, by FedMLB's authors, where the first convolution of the first unit has groups too (in the
paper it has none). That these are the networks of FedMLB's Table 9 is inferred. Five stages: stem, three stages of
shuffle units, head. Width 24 and 100 classes at 32x32 give 1,012,108 parameters and 41,693,952 MACs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edge.models.layers import ResidualUnit, conv_norm, pooled

CONV_GROUPS = 3
"""Groups of the 1x1 convolutions, g in the paper."""
STAGES = ((10, 4), (20, 8), (40, 4))
"""Channels, in widths, and units."""


class ShuffleUnit(ResidualUnit):
    """1x1 convolution in groups, shuffle, 3x3 depthwise convolution, 1x1 convolution in groups.

    The first unit of a stage halves height and width and joins its result to the average-pooled input; the others add.
    """

    def __init__(self, norm: str, inputs: int, outputs: int) -> None:
        super().__init__()
        self.adds = inputs == outputs
        inner = outputs // 4
        self.squeeze = nn.Sequential(*conv_norm(norm, inputs, inner, 1, groups=CONV_GROUPS), nn.ReLU())
        self.body = nn.Sequential(
            *conv_norm(norm, inner, inner, 3, 1 if self.adds else 2, groups=inner),
            *conv_norm(norm, inner, outputs if self.adds else outputs - inputs, 1, groups=CONV_GROUPS),
        )
        self.shortcut = nn.Identity()

    def residual(self, x: Tensor) -> Tensor:
        """The three convolutions."""
        y: Tensor = self.body(torch.channel_shuffle(self.squeeze(x), CONV_GROUPS))
        return y

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, h, w) -> (batch, outputs, h/2, w/2) or, where inputs = outputs, (batch, outputs, h, w)."""
        if self.adds:
            return super().forward(x)
        return self.activated(torch.cat([F.avg_pool2d(x, 3, stride=2, padding=1), self.residual(x)], dim=1))


def stages(classes: int, channels: int, width: int | None, norm: str) -> list[tuple[str, list[nn.Module]]]:
    """Five stages: (batch, channels, h, w) -> (batch, classes)."""
    assert width is not None
    built: list[tuple[str, list[nn.Module]]] = [
        ("stem", [nn.Sequential(*conv_norm(norm, channels, width, 3), nn.ReLU())])
    ]
    inputs = width
    for number, (widths, count) in enumerate(STAGES, start=1):
        outputs = widths * width
        built.append(
            (f"stage{number}", [ShuffleUnit(norm, inputs if n == 0 else outputs, outputs) for n in range(count)])
        )
        inputs = outputs
    last = built[-1][1]
    last[-1] = pooled(last[-1])
    return [*built, ("head", [nn.Linear(inputs, classes)])]
