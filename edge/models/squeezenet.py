"""SqueezeNet, by default with GroupNorm, one of FedMLB's backbones.

Iandola et al., SqueezeNet: AlexNet-Level Accuracy with 50x Fewer Parameters and <0.5MB Model Size, 2016,
https://arxiv.org/abs/1602.07360; the stem for small images, the normalisation and the split into blocks are those of
the published code of FedACG, by FedMLB's authors, where modules 3, 5 and 7 have a bypass (in the paper, 9 too). That
these are the networks of FedMLB's Table 9 is inferred. Nine stages: stem, seven fire modules, and the head, which
begins with the eighth. Width 96 and 100 classes at 32x32 give 781,156 parameters and 53,280,768 MACs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from edge.models.layers import conv_norm

OWN_WIDTH = 96
FIRES = {2: 16, 3: 16, 4: 32, 5: 32, 6: 48, 7: 48, 8: 64, 9: 64}
"""Squeezed channels at the model's own width."""
BYPASSED, POOLED = (3, 5, 7), (4, 8)
"""Modules whose input is added to their output, and modules that a 2x2 max-pool follows."""


class Fire(nn.Module):
    """A fire module: 1x1 convolution to s channels, then 1x1 and 3x3 convolutions to 4s channels each."""

    def __init__(self, norm: str, inputs: int, squeezed: int, bypassed: bool) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(*conv_norm(norm, inputs, squeezed, 1), nn.ReLU())
        self.expand1 = nn.Sequential(*conv_norm(norm, squeezed, 4 * squeezed, 1))
        self.expand3 = nn.Sequential(*conv_norm(norm, squeezed, 4 * squeezed, 3))
        self.bypassed = bypassed

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, h, w) -> (batch, 8s, h, w)."""
        s = self.squeeze(x)
        y = torch.relu(torch.cat([self.expand1(s), self.expand3(s)], dim=1))
        return x + y if self.bypassed else y


def stages(classes: int, channels: int, width: int | None, norm: str) -> list[tuple[str, list[nn.Module]]]:
    """Nine stages: (batch, channels, h, w) -> (batch, classes)."""
    assert width is not None
    # The max-pool comes before the ReLU, for the reason that `edge.models.cnn` gives.
    built: list[tuple[str, list[nn.Module]]] = [
        ("stem", [nn.Sequential(*conv_norm(norm, channels, width, 3), nn.MaxPool2d(2), nn.ReLU())])
    ]
    inputs = width
    for number, own_squeezed in FIRES.items():
        squeezed = own_squeezed * width // OWN_WIDTH
        fire = Fire(norm, inputs, squeezed, number in BYPASSED)
        built.append((f"fire{number}", [nn.Sequential(fire, nn.MaxPool2d(2)) if number in POOLED else fire]))
        inputs = 8 * squeezed
    classifier = nn.Sequential(nn.Conv2d(inputs, classes, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return [*built[:-1], ("head", [*built[-1][1], classifier])]
