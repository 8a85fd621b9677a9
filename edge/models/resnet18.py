"""ResNet-18 with GroupNorm and the CIFAR stem, as FedMLB trains it.

He et al., Deep Residual Learning for Image Recognition, CVPR 2016, https://arxiv.org/abs/1512.03385; the 3x3 stride-1
stem and GroupNorm with 2 groups are those of FedMLB's published code. Six stages: stem, four residual
stages of two units, head; pooling belongs to the last residual unit. Width 64 and 100 classes at 32x32 give
11,220,132 parameters and 555,468,800 MACs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from edge.models.layers import GROUPS

FEW = 16
"""Numbers in a vector register. A strided 1x1 convolution of fewer channels, on images in channels_last of 56x56 and
more, makes oneDNN (torch 2.15) write past its memory when it computes the weight gradient."""


def _conv3x3(channels_in: int, channels_out: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False)


def _conv1x1(channels_in: int, channels_out: int, stride: int) -> list[nn.Module]:
    if channels_in >= FEW:
        return [nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=False)]
    # The same numbers: first every stride-th pixel, then a convolution without stride.
    return [nn.AvgPool2d(1, stride), nn.Conv2d(channels_in, channels_out, 1, bias=False)]


class BasicBlock(nn.Module):
    """A basic residual unit: ReLU(norm(conv(ReLU(norm(conv(x))))) + shortcut(x))."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv3x3(channels_in, channels_out, stride),
            nn.GroupNorm(GROUPS, channels_out),
            nn.ReLU(),
            _conv3x3(channels_out, channels_out, 1),
            nn.GroupNorm(GROUPS, channels_out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            convolution = _conv1x1(channels_in, channels_out, stride)
            self.shortcut = nn.Sequential(*convolution, nn.GroupNorm(GROUPS, channels_out))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels_in, h, w) -> (batch, channels_out, h/stride, w/stride)."""
        return torch.relu(self.body(x) + self.shortcut(x))


def stages(classes: int, channels: int, width: int | None) -> list[tuple[str, list[nn.Module]]]:
    """Six stages: (batch, channels, h, w) -> (batch, classes)."""
    assert width is not None
    built: list[tuple[str, list[nn.Module]]] = [
        ("stem", [nn.Sequential(_conv3x3(channels, width, 1), nn.GroupNorm(GROUPS, width), nn.ReLU())])
    ]
    inputs = width
    for stage in range(4):
        outputs = width * 2**stage
        units: list[nn.Module] = [BasicBlock(inputs, outputs, 1 if stage == 0 else 2), BasicBlock(outputs, outputs, 1)]
        built.append((f"stage{stage + 1}", units))
        inputs = outputs
    last = built[-1][1]
    last[-1] = nn.Sequential(last[-1], nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return [*built, ("head", [nn.Linear(inputs, classes)])]
