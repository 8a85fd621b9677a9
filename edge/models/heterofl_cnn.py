"""HeteroFL's convolutional network for MNIST, five blocks, by default with BatchNorm.

Diao, Ding and Tarokh, ICLR 2021, https://arxiv.org/abs/2010.01264: four 3x3 convolutions of w, 2w, 4w and 8w channels,
each with normalisation, ReLU and, but for the last, a 2x2 max-pool; the mean over places, and a linear layer. Width 64,
one channel and 10 classes give 1,556,874 parameters, as its table says, and 391,370, 98,922, 25,274 and 6,594 at the
rates 1/2 to 1/16.

Each max-pool comes before its ReLU, for the reason that `edge.models.cnn` gives.
"""

from __future__ import annotations

from torch import nn

from edge.models.layers import conv_norm


def stages(classes: int, channels: int, width: int | None, norm: str) -> list[tuple[str, list[nn.Module]]]:
    """Five stages of one unit each: (batch, channels, h, w) -> (batch, classes)."""
    assert width is not None
    built: list[tuple[str, list[nn.Module]]] = []
    inputs = channels
    for stage in range(4):
        outputs = width * 2**stage
        after = [nn.MaxPool2d(2), nn.ReLU()] if stage < 3 else [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        built.append((f"conv{stage + 1}", [nn.Sequential(*conv_norm(norm, inputs, outputs, 3), *after)]))
        inputs = outputs
    return [*built, ("head", [nn.Linear(inputs, classes)])]
