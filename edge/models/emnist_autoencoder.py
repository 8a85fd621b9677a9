"""The bottleneck autoencoder of Adaptive Federated Optimization for EMNIST, eight blocks, without normalisation.

Reddi et al., ICLR 2021, https://arxiv.org/abs/2003.00295, with the layers of the authors' code
(https://github.com/google-research/federated): 1000, 500, 250, 30, 250, 500, 1000 and 784 units with sigmoids, but for
the 30, whose activation is the identity; Glorot's normal initialisation. 28x28 pixels give 2,837,314 parameters and
2,833,000 MACs. With it thousands of rounds go by before anything but the mean image is learned; ``wide_stages`` begin
with four times the weights, as X. Glorot and Y. Bengio advise for sigmoids (AISTATS 2010), and learn from the first.

FEMNIST comes in a border of two pixels here, which the first unit cuts off and the last one adds again: 0, as the
background is where ``data.augment = "inverted"``, so that it costs no parameter and adds no error.
"""

from __future__ import annotations

from itertools import pairwise

from torch import nn

BORDER, SIDE = 2, 28
UNITS = (1.0, 0.5, 0.25, 0.03, 0.25, 0.5, 1.0)
"""Of each hidden layer, over those of the first"""
BOTTLENECK = 3
WIDE = 4.0
NAMES = ("encoder1", "encoder2", "encoder3", "encoder4", "decoder1", "decoder2", "decoder3", "head")

Stages = list[tuple[str, list[nn.Module]]]


def stages(classes: int, channels: int, width: int | None, gain: float = 1.0) -> Stages:
    """Eight stages of one unit each: (batch, channels, 32, 32) -> (batch, channels * 32 * 32)."""
    assert width is not None
    pixels = channels * SIDE * SIDE
    sizes = [pixels, *(max(1, round(share * width)) for share in UNITS), pixels]
    layers: list[list[nn.Module]] = []
    for place, (inputs, outputs) in enumerate(pairwise(sizes)):
        linear = nn.Linear(inputs, outputs)
        nn.init.xavier_normal_(linear.weight, gain)
        nn.init.zeros_(linear.bias)
        layers.append([linear] if place == BOTTLENECK else [linear, nn.Sigmoid()])
    layers[0] = [nn.ZeroPad2d(-BORDER), nn.Flatten(), *layers[0]]
    layers[-1] += [nn.Unflatten(1, (channels, SIDE, SIDE)), nn.ZeroPad2d(BORDER), nn.Flatten()]
    return [(name, [nn.Sequential(*layer)]) for name, layer in zip(NAMES, layers, strict=True)]


def wide_stages(classes: int, channels: int, width: int | None) -> Stages:
    """The same with a wider initialisation."""
    return stages(classes, channels, width, WIDE)
