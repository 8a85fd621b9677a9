"""ResNet-18 with the CIFAR stem, by default with GroupNorm, as FedMLB trains it; He et al. have BatchNorm.

He et al., Deep Residual Learning for Image Recognition, CVPR 2016, https://arxiv.org/abs/1512.03385; the 3x3 stride-1
stem and GroupNorm with 2 groups are those of FedMLB's published code. Six stages: stem, four residual
stages of two units, head; pooling belongs to the last residual unit. Width 64 and 100 classes at 32x32 give
11,220,132 parameters and 555,468,800 MACs.
"""

from __future__ import annotations

from torch import nn

from edge.models.layers import ResidualUnit, conv1x1, conv3x3, pooled


class BasicBlock(ResidualUnit):
    """A basic residual unit: ReLU(norm(conv(ReLU(norm(conv(x))))) + shortcut(x))."""

    def __init__(self, norm: str, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*conv3x3(norm, inputs, outputs, stride), nn.ReLU(), *conv3x3(norm, outputs, outputs))
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(*conv1x1(norm, inputs, outputs, stride))


def stages(classes: int, channels: int, width: int | None, norm: str) -> list[tuple[str, list[nn.Module]]]:
    """Six stages: (batch, channels, h, w) -> (batch, classes)."""
    assert width is not None
    return after_stem(nn.Sequential(*conv3x3(norm, channels, width), nn.ReLU()), classes, width, norm)


def after_stem(stem: nn.Module, classes: int, width: int, norm: str) -> list[tuple[str, list[nn.Module]]]:
    """The six stages with this stem, which makes maps of ``width`` channels."""
    built: list[tuple[str, list[nn.Module]]] = [("stem", [stem])]
    inputs = width
    for stage in range(4):
        outputs = width * 2**stage
        stride = 1 if stage == 0 else 2
        units: list[nn.Module] = [BasicBlock(norm, inputs, outputs, stride), BasicBlock(norm, outputs, outputs, 1)]
        built.append((f"stage{stage + 1}", units))
        inputs = outputs
    last = built[-1][1]
    last[-1] = pooled(last[-1])
    return [*built, ("head", [nn.Linear(inputs, classes)])]
