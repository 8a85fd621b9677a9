"""The bottleneck autoencoder of Adaptive Federated Optimization for EMNIST, eight blocks, without normalisation.

Reddi et al., ICLR 2021, https://arxiv.org/abs/2003.00295, with the layers of the authors' code
(https://github.com/google-research/federated): 1000, 500, 250, 30, 250, 500, 1000 and 784 units with sigmoids, but for
the 30, whose activation is the identity; Glorot's normal initialisation. 28x28 pixels give 2,837,314 parameters and
2,833,000 MACs.

FEMNIST comes in a border of two pixels here, which the first unit cuts off and the last one adds again: white, as it
is without normalisation (``data.augment = "plain"``), so that it costs no parameter and adds no error.
"""

from __future__ import annotations

from itertools import pairwise

from torch import nn

BORDER, SIDE, WHITE = 2, 28, 1.0
UNITS = (1.0, 0.5, 0.25, 0.03, 0.25, 0.5, 1.0)
"""Of each hidden layer, over those of the first"""
BOTTLENECK = 3


def stages(classes: int, channels: int, width: int | None) -> list[tuple[str, list[nn.Module]]]:
    """Eight stages of one unit each: (batch, channels, 32, 32) -> (batch, channels * 32 * 32)."""
    assert width is not None
    pixels = channels * SIDE * SIDE
    sizes = [pixels, *(max(1, round(share * width)) for share in UNITS), pixels]
    layers = []
    for place, (inputs, outputs) in enumerate(pairwise(sizes)):
        linear = nn.Linear(inputs, outputs)
        nn.init.xavier_normal_(linear.weight)
        nn.init.zeros_(linear.bias)
        layers.append([linear] if place == BOTTLENECK else [linear, nn.Sigmoid()])
    layers[0] = [nn.ZeroPad2d(-BORDER), nn.Flatten(), *layers[0]]
    layers[-1] += [nn.Unflatten(1, (channels, SIDE, SIDE)), nn.ConstantPad2d(BORDER, WHITE), nn.Flatten()]
    names = [f"encoder{place}" for place in range(1, 5)] + [f"decoder{place}" for place in range(1, 5)]
    return [(name, [nn.Sequential(*layer)]) for name, layer in zip(names, layers, strict=True)]
