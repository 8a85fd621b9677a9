"""ResNet-56 of bottlenecks for 32x32 images, by default with BatchNorm, as FedAlign trains it.

Mendieta et al., Local Learning Matters: Rethinking Data Heterogeneity in Federated Learning, CVPR 2022,
https://arxiv.org/abs/2111.14213, from the published code; the units are those of He et al., Deep Residual Learning for
Image Recognition, CVPR 2016, https://arxiv.org/abs/1512.03385, whose own ResNet-56 has basic units. Five stages: a 3x3
stem, three residual stages of six bottlenecks with 16, 32 and 64 planes and four times as many channels, head; pooling
belongs to the last residual unit. Initial weights of convolutions are from Kaiming's normal distribution of the fan
out. Width 16 and 100 classes at 32x32 give 614,452 parameters and 87,237,632 MACs, with 8,992 running statistics;
BatchNorm's 58 counters of batches are no vectors, so they neither travel nor count.
"""

from __future__ import annotations

from torch import nn

from edge.models.layers import ResidualUnit, conv1x1, conv3x3, initialise_fan_out, pooled

UNITS = 6
"""Units of a stage: 3 stages of 6 units of 3 convolutions, the stem and the head are 56 layers."""
EXPANSION = 4
"""Channels of a unit's output, in planes."""


class Bottleneck(ResidualUnit):
    """A residual unit of three convolutions: 1x1 to few planes, 3x3 with the stride, 1x1 to many channels."""

    def __init__(self, norm: str, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * planes
        self.body = nn.Sequential(
            *(*conv1x1(norm, inputs, planes), nn.ReLU()),
            *(*conv3x3(norm, planes, planes, stride), nn.ReLU()),
            *conv1x1(norm, planes, outputs),
        )
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(*conv1x1(norm, inputs, outputs, stride))


def stages(classes: int, channels: int, width: int | None, norm: str) -> list[tuple[str, list[nn.Module]]]:
    """Five stages: (batch, channels, h, w) -> (batch, classes)."""
    assert width is not None
    built: list[tuple[str, list[nn.Module]]] = [("stem", [nn.Sequential(*conv3x3(norm, channels, width), nn.ReLU())])]
    inputs = width
    for stage in range(3):
        units: list[nn.Module] = []
        for place in range(UNITS):
            units.append(Bottleneck(norm, inputs, width * 2**stage, 2 if stage and not place else 1))
            inputs = EXPANSION * width * 2**stage
        built.append((f"stage{stage + 1}", units))
    last = built[-1][1]
    last[-1] = pooled(last[-1])
    built.append(("head", [nn.Linear(inputs, classes)]))
    initialise_fan_out(unit for _, units in built for unit in units)
    return built
