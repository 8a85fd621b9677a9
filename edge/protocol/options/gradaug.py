"""The options of GradAug, one object for both of its sides, and its draws of sub-networks, which both foresee.

The rounding of channels is that of Yu et al., Slimmable Neural Networks, ICLR 2019, https://arxiv.org/abs/1812.08928,
which the code of GradAug and FedAlign has taken over. The layers are `edge.training.slimmable`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from edge.protocol.options.base import Options

HUNDREDTHS = 100
"""Widths are drawn from the hundredths, so that the FLOPs of each can be counted before a run."""
SUBNETWORKS = "gradaug: sub-networks"
"""The random stream of GradAug's widths and resolutions"""
LARGEST_LOSS = 0.9
"""Rounding down may leave this fraction of the channels at least."""


class GradAugOptions(Options):
    """CE + μ Σ_i KL(σ(z) ‖ σ(z_i)), z_i being the logits of the i-th of n sub-networks and z fixed in it."""

    subnets: int = Field(default=2, ge=0, le=32, title="n")
    """Sub-networks per step. 0 is FedAvg."""
    width: float = Field(default=0.8, gt=0, le=1, title="ω_b")
    """The least width. Widths are drawn from this and the hundredths above it up to 1, as far as ``widths`` says."""
    weight: float | None = Field(default=None, ge=0, title="μ")
    """Weight of the divergence. By default the paper's: 2, 1.75, 1.5 for 1, 2, 3 sub-networks, and 1.25 for more. 0 is
    FedAvg."""
    widths: Literal["code", "paper"] = "code"
    """code: one sub-network always has the least width, and the others are drawn; paper: all are drawn."""
    resolutions: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(
        default=(1.0, 0.875, 0.75, 0.625), min_length=1
    )
    """Factors on the images' height and width, of which each sub-network draws one: of 32x32 images 32, 28, 24, 20.
    FedAlign's code has 224, 192, 160, 128 of 224x224 images, which are 1 and 6/7, 5/7, 4/7 (0.8571, 0.7143, 0.5714).
    A model that takes images of one size gets them reduced and enlarged again."""
    multiple: int = Field(default=8, ge=1)
    """Channels in use are a multiple of this, as far as there are so many."""


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
