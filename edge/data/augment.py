"""From uint8 batches to float32 batches: augmentation and normalisation as whole-batch tensor operations.

Rotation by the nearest pixel, crop and flip only move pixels, so that their composition is one table of source pixels
per example and a batch is gathered once, still as uint8. An empty place shows the background, in pixel space, before
normalisation, as in the transforms that it stands for.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from edge.data.sets import DataError, DataSet


@dataclass(frozen=True)
class Profile:
    """How a batch is prepared. `profile_for` fills in what belongs to the data set."""

    name: str
    mean: tuple[float, ...] | None = None
    """Per channel, of pixels in 0..1; None leaves pixels in 0..1."""
    std: tuple[float, ...] | None = None
    """Beside ``mean``."""
    rotation_degrees: float = 0.0
    """Uniform in +- this, about the centre, nearest pixel; 0 is off."""
    crop_pad: int = 0
    """Random crop of the image's own size after this many pixels of padding on each side; 0 is off."""
    flip: bool = False
    """Mirror left to right with probability 1/2."""
    pixel_max: int = 255
    """Pixel value that stands for 1."""
    background: int = 0
    """Pixel value of an empty place."""
    pad: int = 0
    """Pixels added on each side, last, to reach the model's size."""


_CIFAR10 = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
_ALIGN10 = ((0.49139968, 0.48215827, 0.44653124), (0.24703233, 0.24348505, 0.26158768))
_ALIGN100 = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))

_ROWS = (
    # FedMLB normalises CIFAR-100 with CIFAR-10's statistics, and FedBR is taken to do as FedMLB.
    Profile("fedmlb-cifar", *_CIFAR10, rotation_degrees=10.0, crop_pad=4, flip=True),
    Profile("fedalign-cifar10", *_ALIGN10, crop_pad=4, flip=True),
    Profile("fedalign-cifar100", *_ALIGN100, crop_pad=4, flip=True),
    Profile("digits"),
    Profile("mnist", (0.1307,), (0.3081,)),
    # Of the 14,708 training examples of LEAF's 5 % sample by writer, before padding.
    Profile("femnist", (0.9612,), (0.1656,)),
    Profile("plain"),
)

PROFILES: dict[str, Profile] = {row.name: row for row in _ROWS}


def profile_for(row: DataSet, augment: str = "default") -> Profile:
    """The profile of a set under ``data.augment``: ``default``, ``none`` (normalisation alone) or a profile's name.

    DataError for an unknown name, or for statistics of another number of channels than the set has.
    """
    name = row.profile if augment in ("default", "none") else augment
    if name not in PROFILES:
        near = difflib.get_close_matches(name, [*PROFILES, "default", "none"], n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: default, none, {', '.join(PROFILES)}"
        raise DataError(f"data.augment: unknown profile {name!r}; {hint}")
    profile = PROFILES[name]
    if profile.mean is not None and len(profile.mean) != row.stored[0]:
        raise DataError(f"data.augment = {name} is for {len(profile.mean)} channels; {row.name} has {row.stored[0]}")
    if augment == "none":
        profile = replace(profile, rotation_degrees=0.0, crop_pad=0, flip=False)
    return replace(profile, pixel_max=row.pixel_max, background=row.background, pad=row.pad)


@dataclass(frozen=True)
class Draws:
    """One draw per example for each thing that a profile varies; None where it does not."""

    degrees: NDArray[np.float64] | None = None
    """(batch,) counter-clockwise."""
    corners: NDArray[np.int64] | None = None
    """(batch, 2) top and left of the crop in the padded image."""
    flips: NDArray[np.bool_] | None = None
    """(batch,)"""


def draw(profile: Profile, batch: int, rng: np.random.Generator) -> Draws:
    """Draw for ``batch`` examples, always in the order rotation, crop, flip."""
    limit = profile.rotation_degrees
    degrees = rng.uniform(-limit, limit, batch) if limit else None
    corners = rng.integers(0, 2 * profile.crop_pad + 1, (batch, 2)) if profile.crop_pad else None
    flips = rng.random(batch) < 0.5 if profile.flip else None
    return Draws(degrees, corners, flips)


def prepare(x: Tensor, profile: Profile, rng: np.random.Generator | None = None) -> Tensor:
    """uint8 (batch, channels, height, width) to float32 of the model's size, on the device of ``x``.

    With a generator, the training transform; without, the test transform, which only pads and normalises.
    """
    assert x.dtype == torch.uint8, x.dtype
    if rng is not None and (profile.rotation_degrees or profile.crop_pad or profile.flip):
        x = move(x, draw(profile, len(x), rng), profile.crop_pad, profile.background)
    if profile.pad:
        x = F.pad(x, (profile.pad,) * 4, value=profile.background)
    gain, bias = _scaling(profile, x.device)
    return x.to(torch.float32).mul_(gain).add_(bias)


def move(x: Tensor, draws: Draws, crop_pad: int, background: int) -> Tensor:
    """Rotate, then crop, then flip each image of (batch, channels, height, width) by its own draw."""
    batch, channels, height, width = x.shape
    rows = torch.arange(height, device=x.device).view(1, height, 1)
    columns = torch.arange(width, device=x.device).view(1, 1, width)
    # From an output pixel back to its source: the steps are undone last to first.
    if draws.flips is not None:
        flipped = torch.from_numpy(draws.flips).to(x.device).view(batch, 1, 1)
        columns = torch.where(flipped, width - 1 - columns, columns)
    inside = torch.ones((batch, height, width), dtype=torch.bool, device=x.device)
    if draws.corners is not None:
        corners = torch.from_numpy(draws.corners).to(x.device).view(batch, 2, 1, 1) - crop_pad
        rows, columns = rows + corners[:, 0], columns + corners[:, 1]
        inside = _within(rows, columns, height, width)
    if draws.degrees is not None:
        rows, columns = _unrotate(rows, columns, draws.degrees, height, width)
        # What the crop took from outside the rotated image stays empty, wherever the rotation would find it.
        inside = inside & _within(rows, columns, height, width)
    source = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)  # (batch, height, width)
    source = source.expand(batch, height, width).reshape(batch, 1, -1).expand(batch, channels, -1)
    moved = x.reshape(batch, channels, -1).gather(2, source)
    return moved.masked_fill_(~inside.reshape(batch, 1, -1), background).view(batch, channels, height, width)


def _within(rows: Tensor, columns: Tensor, height: int, width: int) -> Tensor:
    return (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)


def _unrotate(
    rows: Tensor, columns: Tensor, degrees: NDArray[np.float64], height: int, width: int
) -> tuple[Tensor, Tensor]:
    """The pixel that a rotation about the image's centre brings to (rows, columns), rounded to the nearest."""
    # Sine and cosine on the host, where they do not depend on the device's own approximation.
    angles = np.radians(degrees).reshape(-1, 1, 1)
    sines, cosines = (torch.from_numpy(f(angles).astype(np.float32)).to(rows.device) for f in (np.sin, np.cos))
    down, right = rows - (height - 1) / 2, columns - (width - 1) / 2
    source_rows = sines * right + cosines * down + (height - 1) / 2
    source_columns = cosines * right - sines * down + (width - 1) / 2
    return source_rows.round().long(), source_columns.round().long()


@cache
def _scaling(profile: Profile, device: torch.device) -> tuple[Tensor, Tensor]:
    """(channels, 1, 1) gain and bias with (pixel / pixel_max - mean) / std = pixel * gain + bias."""
    mean, std = np.array(profile.mean or (0.0,)), np.array(profile.std or (1.0,))
    gain, bias = 1.0 / (profile.pixel_max * std), -mean / std
    both = torch.tensor(np.stack([gain, bias]), dtype=torch.float32, device=device).view(2, -1, 1, 1)
    return both[0], both[1]
