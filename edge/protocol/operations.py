"""The kinds of operations of a training step, by which a device's time for a model is predicted.

FLOPs alone do not tell a step's time: narrow layers reach a fraction of the FLOP/s of wide ones, normalisation and
element-wise work have hardly any FLOPs, and each layer has an overhead. A model's profile counts its operations by
these kinds, and a calibrated device says how many of each it does per second (`costmodel.fleet.model_demand`). Never
torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

WIDTHS = (2, 4, 8, 16, 32, 64, 128)
"""Width classes: channels of a convolution, log-interpolated between two classes."""
CONVOLUTION, POINTWISE = "conv", "pointwise"
CHANNELWISE, LINEAR, ATTENTION = "channelwise", "linear", "attention"
NORMALISED, ELEMENTWISE, PARAMETERS = "normalised", "elementwise", "parameters"
CONVOLUTIONS, CALLS = "convolutions", "calls"
FLOP_KINDS = (
    *(f"{kind}.w{width}" for kind in (CONVOLUTION, POINTWISE) for width in WIDTHS),
    CHANNELWISE,
    LINEAR,
    ATTENTION,
)
"""Kinds that are counted in FLOPs: convolutions and 1x1 convolutions by width class, with output channels that fill
whole vectors of a processor, depthwise convolutions, products of matrices that examples have of their own,
as attention has, and all other matrix products."""
KINDS = (*FLOP_KINDS, NORMALISED, ELEMENTWISE, PARAMETERS, CONVOLUTIONS, CALLS)
"""All kinds, in the order of a `ModelProfile`'s ``operations``. Beside FLOPs: numbers read and written by
normalisation and by all other layers, trained numbers, and calls: of convolutions with their gradients, and
of all kernels."""


def classes(kind: str, inputs: int, outputs: int) -> Iterator[tuple[str, float]]:
    """(kind with width class, fraction) of a convolution of these channels per group; the fractions add up to 1.

    The width is the harmonic mean of both, since the wider side does not make up for the narrower one.
    """
    width = min(max(2 * inputs * outputs / (inputs + outputs), WIDTHS[0]), WIDTHS[-1])
    place = math.log2(width / WIDTHS[0])
    lower = min(int(place), len(WIDTHS) - 2)
    for index, fraction in ((lower, lower + 1 - place), (lower + 1, place - lower)):
        if fraction > 0:
            yield f"{kind}.w{WIDTHS[index]}", fraction
