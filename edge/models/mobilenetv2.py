"""MobileNetV2, by default with GroupNorm, one of FedMLB's backbones.

Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, CVPR 2018, https://arxiv.org/abs/1801.04381; the
strides, the normalisation and the split into blocks are those of the published code of FedACG, by FedMLB's authors.
That these are the networks of FedMLB's Table 9 is inferred. Eight stages: the stem (a 1x1 convolution whose padding
makes 34x34 of 32x32), six stages of inverted residual units, and the head, which begins with the last such unit.
Width 32 and 100 classes at 32x32 give 2,369,380 parameters and 64,947,264 MACs.
"""

from __future__ import annotations

from torch import Tensor, nn

from edge.models.layers import ResidualUnit, conv_norm

OWN_WIDTH = 32
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 1))
"""t, c, n, s of the paper's Table 2: expansion, channels at the model's own width, units, stride of the first unit."""
HEAD_UNIT, HEAD_CHANNELS = 320, 1280
"""Channels of the last unit and of the convolution after it, at the model's own width."""


class InvertedResidual(ResidualUnit):
    """An inverted residual unit: 1x1 expansion, 3x3 depthwise convolution, 1x1 projection without an activation.

    A unit that changes the shape of its maps does not add.
    """

    def __init__(self, norm: str, inputs: int, outputs: int, expansion: int, stride: int) -> None:
        super().__init__()
        hidden = expansion * inputs
        self.body = nn.Sequential(
            *(*conv_norm(norm, inputs, hidden, 1), nn.ReLU6()),
            *(*conv_norm(norm, hidden, hidden, 3, stride, groups=hidden), nn.ReLU6()),
            *conv_norm(norm, hidden, outputs, 1),
        )
        self.shortcut = nn.Identity()
        self.adds = stride == 1 and inputs == outputs

    def activated(self, x: Tensor) -> Tensor:
        """The sum as it is."""
        return x

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, h, w) -> (batch, outputs, h/stride, w/stride)."""
        return super().forward(x) if self.adds else self.residual(x)


def stages(classes: int, channels: int, width: int | None, norm: str) -> list[tuple[str, list[nn.Module]]]:
    """Eight stages: (batch, channels, h, w) -> (batch, classes)."""
    assert width is not None
    built: list[tuple[str, list[nn.Module]]] = [
        ("stem", [nn.Sequential(*conv_norm(norm, channels, width, 1, padding=1), nn.ReLU6())])
    ]
    inputs = width
    for number, (expansion, own_channels, count, stride) in enumerate(STAGES, start=1):
        units: list[nn.Module] = []
        outputs = own_channels * width // OWN_WIDTH
        for place in range(count):
            units.append(InvertedResidual(norm, inputs, outputs, expansion, stride if place == 0 else 1))
            inputs = outputs
        built.append((f"stage{number}", units))
    unit, wide = (number * width // OWN_WIDTH for number in (HEAD_UNIT, HEAD_CHANNELS))
    head: list[nn.Module] = [
        InvertedResidual(norm, inputs, unit, 6, 1),
        nn.Sequential(*conv_norm(norm, unit, wide, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1)),
        nn.Sequential(nn.Conv2d(wide, classes, 1), nn.Flatten()),
    ]
    return [*built, ("head", head)]
