"""ResNet-18 for photographs of 224x224, with BatchNorm, as He et al. have it and FedAlign trains it on ImageNet-200.

He et al., Deep Residual Learning for Image Recognition, CVPR 2016, https://arxiv.org/abs/1512.03385. `resnet18` but for
the stem, a 7x7 convolution of stride 2 and a 3x3 max-pool of stride 2, which makes 56x56 of 224x224; and for initial
weights of convolutions drawn from Kaiming's normal distribution of the fan out, as in torchvision's model. Width 64 and
200 classes at 224x224 give 11,279,112 parameters and 1,813,663,744 MACs.
"""

from __future__ import annotations

from torch import nn

from edge.models.layers import initialise_fan_out, normalised
from edge.models.resnet18 import after_stem


def stages(classes: int, channels: int, width: int | None, norm: str) -> list[tuple[str, list[nn.Module]]]:
    """Six stages: (batch, channels, h, w) -> (batch, classes)."""
    assert width is not None
    convolution = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=norm == "none")
    stem = nn.Sequential(convolution, *normalised(norm, width), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1))
    built = after_stem(stem, classes, width, norm)
    initialise_fan_out(unit for _, units in built for unit in units)
    return built
