"""Random resized crops and colour jitter of whole batches, with draws per example: ImageNet's usual augmentation.

As torchvision's ``RandomResizedCrop`` and ``ColorJitter`` in distribution, not in the order of draws. A box has a
uniform part of the image's area and an aspect ratio of 3/4 to 4/3, uniform in its logarithm; of ten such boxes the
first that fits is taken, at a uniform place, or else the largest centre box. It is resized by bilinear interpolation
without antialiasing, within the box alone. Colours are not rounded to whole numbers between operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

TRIES = 10
ASPECTS = (3 / 4, 4 / 3)
GREY = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue in the brightness of a pixel; ITU-R BT.601"""
BRIGHTNESS, CONTRAST, SATURATION = range(3)


@dataclass(frozen=True)
class Views:
    """The draws of boxes, for images of any size."""

    areas: NDArray[np.float64]
    """(batch, TRIES) parts of the image's area"""
    aspects: NDArray[np.float64]
    """(batch, TRIES) width / height"""
    places: NDArray[np.float64]
    """(batch, 2) top and left in 0..1: from the first to the last place where the box fits"""


@dataclass(frozen=True)
class Jitters:
    """The draws of colours."""

    factors: NDArray[np.float64]
    """(batch, 3) of brightness, contrast and saturation"""
    orders: NDArray[np.int64]
    """(batch, 3) the operations in the order in which they are applied"""


def draw_views(batch: int, least_area: float, rng: np.random.Generator) -> Views:
    """The boxes of ``batch`` images, with at least this part of their area."""
    areas = rng.uniform(least_area, 1, (batch, TRIES))
    aspects = np.exp(rng.uniform(math.log(ASPECTS[0]), math.log(ASPECTS[1]), (batch, TRIES)))
    return Views(areas, aspects, rng.random((batch, 2)))


def draw_jitters(batch: int, limit: float, rng: np.random.Generator) -> Jitters:
    """The colours of ``batch`` images, with factors of 1 ± ``limit``, at least 0."""
    factors = rng.uniform(max(0.0, 1 - limit), 1 + limit, (batch, 3))
    return Jitters(factors, rng.permuted(np.tile(np.arange(3), (batch, 1)), axis=1))


def boxes(views: Views, height: int, width: int) -> NDArray[np.int64]:
    """(batch, 4): top, left, height and width of each box in an image of this size."""
    areas = views.areas * height * width
    widths, heights = np.rint(np.sqrt(areas * views.aspects)), np.rint(np.sqrt(areas / views.aspects))
    fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
    rows, first = np.arange(len(areas)), fits.argmax(axis=1)
    sizes = np.stack([heights[rows, first], widths[rows, first]], axis=1)
    spare = (height, width) - sizes + 1
    corners = np.minimum(np.floor(views.places * spare), spare - 1)
    found = np.concatenate([corners, sizes], axis=1)
    # The largest box in the centre whose aspect ratio is allowed.
    centre_height, centre_width = min(height, round(width / ASPECTS[0])), min(width, round(height * ASPECTS[1]))
    centre = (height - centre_height) // 2, (width - centre_width) // 2, centre_height, centre_width
    found[~fits.any(axis=1)] = centre
    return found.astype(np.int64)


def resized(x: Tensor, views: Views, size: tuple[int, int], flips: NDArray[np.bool_] | None = None) -> Tensor:
    """The box of each image (batch, channels, height, width), uint8, as float32 (batch, channels, *size).

    ``flips``: (batch,) images that are mirrored left to right.
    """
    height, width = x.shape[2:]
    top, left, box_height, box_width = boxes(views, height, width).T[:, :, None]
    rows = _sources(top, box_height, size[0], height)
    columns = _sources(left, box_width, size[1], width)
    if flips is not None:
        columns = np.where(flips[:, None], columns[:, ::-1], columns)
    across, down = (torch.from_numpy(each.astype(np.float32)).to(x.device) for each in (columns, rows))
    shape = (len(x), *size)
    grid = torch.stack([across[:, None, :].expand(shape), down[:, :, None].expand(shape)], dim=3)  # (batch, *size, 2)
    return F.grid_sample(x.float(), grid, align_corners=False)


def _sources(start: NDArray[np.int64], length: NDArray[np.int64], side: int, whole: int) -> NDArray[np.float64]:
    """(batch, side): where the output's pixels lie in the image, as -1..1 from its one edge to its other.

    ``start`` and ``length``, both (batch, 1), are those of a box, which no place leaves.
    """
    places = start + (np.arange(side) + 0.5) * length / side - 0.5
    return np.asarray((2 * np.clip(places, start, start + length - 1) + 1) / whole - 1)


def jittered(x: Tensor, jitters: Jitters, pixel_max: float) -> Tensor:
    """Colour images (batch, 3, height, width) of pixels in 0..pixel_max as float32, each with its own jitter.

    factor·x + (1 − factor)·y, y being black, the mean brightness, or each pixel's brightness.
    """
    x = x.float()
    weights = torch.tensor(GREY, device=x.device).view(1, 3, 1, 1)
    for step in range(3):
        for operation in range(3):
            chosen = np.flatnonzero(jitters.orders[:, step] == operation)
            if not len(chosen):
                continue
            places = torch.from_numpy(chosen).to(x.device)
            factors = torch.from_numpy(jitters.factors[chosen, operation].astype(np.float32)).to(x.device)
            factors, images = factors.view(-1, 1, 1, 1), x[places]
            adjusted = images * factors
            if operation != BRIGHTNESS:
                grey = (images * weights).sum(1, keepdim=True)  # (batch, 1, height, width)
                grey = grey.mean((2, 3), keepdim=True) if operation == CONTRAST else grey
                adjusted = adjusted + grey * (1 - factors)
            x[places] = adjusted.clamp_(0, pixel_max)
    return x
