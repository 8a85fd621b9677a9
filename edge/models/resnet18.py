"""ResNet-18 with the CIFAR stem, by default with GroupNorm, as FedMLB trains it; He et al. have BatchNorm.

He et al., Deep Residual Learning for Image Recognition, CVPR 2016, https://arxiv.org/abs/1512.03385; the 3x3 stride-1
stem and GroupNorm with 2 groups are those of FedMLB's published code. Six stages: stem, four residual
stages of two units, head; pooling belongs to the last residual unit. Width 64 and 100 classes at 32x32 give
11,220,132 parameters and 555,468,800 MACs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from edge.models.layers import normalised

FEW = 16
"""Numbers in a vector register. A strided 1x1 convolution of fewer channels, on images in channels_last of 56x56 and
more, makes oneDNN (torch 2.15) write past its memory when it computes the weight gradient."""


def _conv3x3(norm: str, channels_in: int, channels_out: int, stride: int) -> list[nn.Module]:
    """Biases stand in for those of a normalisation where there is none."""
    convolution = nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=norm == "none")
    return [convolution, *normalised(norm, channels_out)]


def _conv1x1(norm: str, channels_in: int, channels_out: int, stride: int) -> list[nn.Module]:
    after, bias = normalised(norm, channels_out), norm == "none"
    if channels_in >= FEW:
        return [nn.Conv2d(channels_in, channels_out, 1, stride=stride, bias=bias), *after]
    # The same numbers: first every stride-th pixel, then a convolution without stride.
    return [nn.AvgPool2d(1, stride), nn.Conv2d(channels_in, channels_out, 1, bias=bias), *after]


class BasicBlock(nn.Module):
    """A basic residual unit: ReLU(norm(conv(ReLU(norm(conv(x))))) + shortcut(x))."""

    def __init__(self, norm: str, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_conv3x3(norm, channels_in, channels_out, stride),
            nn.ReLU(),
            *_conv3x3(norm, channels_out, channels_out, 1),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(*_conv1x1(norm, channels_in, channels_out, stride))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels_in, h, w) -> (batch, channels_out, h/stride, w/stride)."""
        return torch.relu(self.body(x) + self.shortcut(x))


def stages(classes: int, channels: int, width: int | None, norm: str) -> list[tuple[str, list[nn.Module]]]:
    """Six stages: (batch, channels, h, w) -> (batch, classes)."""
    assert width is not None
    built: list[tuple[str, list[nn.Module]]] = [
        ("stem", [nn.Sequential(*_conv3x3(norm, channels, width, 1), nn.ReLU())])
    ]
    inputs = width
    for stage in range(4):
        outputs = width * 2**stage
        stride = 1 if stage == 0 else 2
        units: list[nn.Module] = [BasicBlock(norm, inputs, outputs, stride), BasicBlock(norm, outputs, outputs, 1)]
        built.append((f"stage{stage + 1}", units))
        inputs = outputs
    last = built[-1][1]
    last[-1] = nn.Sequential(last[-1], nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return [*built, ("head", [nn.Linear(inputs, classes)])]
