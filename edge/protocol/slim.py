"""Narrower sub-networks of a model: channels, draws and FLOPs, as both sides of a method foresee them. Never torch.

The layers are `edge.training.slimmable`. The rounding of channels is that of Yu et al., Slimmable Neural Networks, ICLR
2019, https://arxiv.org/abs/1812.08928, which the code of GradAug and FedAlign has taken over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

HUNDREDTHS = 100
"""Widths are drawn from the hundredths, so that the FLOPs of each can be counted before a run."""
SUBNETWORKS = "gradaug: sub-networks"
"""The random stream of GradAug's widths and resolutions"""
LARGEST_LOSS = 0.9
"""Rounding down may leave this fraction of the channels at least."""


def channels(count: int, factor: float, multiple: int = 8) -> int:
    """Channels in use of ``count`` at a width of ``factor``: the nearest multiple of ``multiple``, at least 1.

    One multiple more if rounding lost more than 10 %, and never more than there are.
    """
    wanted = count * factor
    used = max(1, int(wanted + multiple / 2) // multiple * multiple)
    if used < LARGEST_LOSS * wanted:
        used += multiple
    return min(used, count)


def widths_from(least: float) -> tuple[float, ...]:
    """The widths that sub-networks are drawn from: the least one, and all hundredths above it up to 1."""
    first = math.floor(round(HUNDREDTHS * least, 6)) + 1
    return (least, *(hundredth / HUNDREDTHS for hundredth in range(first, HUNDREDTHS + 1)))


def draw_subnetworks(
    rng: np.random.Generator, count: int, least: float, resolutions: Sequence[float], has_least: bool
) -> list[tuple[float, float]]:
    """(width, factor on the images' height) of the sub-networks of one step, widest first.

    ``has_least``: whether one of them always has the least width, and the others alone are drawn.
    """
    grid = widths_from(least)
    drawn = [grid[place] for place in rng.integers(len(grid), size=count - has_least)]
    widths = sorted([*drawn, *([least] if has_least else [])], reverse=True)
    heights = rng.integers(len(resolutions), size=count)
    return [(width, resolutions[place]) for width, place in zip(widths, heights, strict=True)]


def alignment_flops(
    before: Sequence[int], after: Sequence[int], factor: float, multiple: int, iterations: int
) -> float:
    """FLOPs per example of FedAlign's transmitting matrices and their spectral norms; 1 MAC = 2 FLOPs.

    ``before`` and ``after``: (channels, height, width) of the maps that a block takes and makes. A matrix of a x b is
    built once, by sums over the places of ``after``, and each iteration multiplies by it and by its transpose. Those of
    the sub-network have gradients: of the matrix from both products of every iteration, of the vectors from all but the
    first one, and of the maps that the sub-network makes.
    """
    places = after[1] * after[2]
    whole = before[0] * after[0]
    slim = channels(before[0], factor, multiple) * channels(after[0], factor, multiple)
    teacher = 2 * whole * places + 4 * iterations * whole
    student = 2 * slim * places + 4 * iterations * slim
    gradient = 2 * slim * places + (8 * iterations - 2) * slim
    return float(teacher + student + gradient)
