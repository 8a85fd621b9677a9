"""From uint8 batches to float32 batches: augmentation and normalisation as whole-batch tensor operations.

Rotation by the nearest pixel, crop and flip only move pixels, so their composition is one table of source pixels per
example, and a batch is gathered once, still as uint8. An empty place has the background colour before normalisation, as
in the usual transforms: images get a frame of one background pixel, the source of all pixels from outside. Crop and
flip act on rows and columns apart, so the table has one number per row and one per column until a rotation needs one
per pixel.

A resized crop takes a box of each image at the model's size, by bilinear interpolation, and jitter changes its colours;
from there on images are float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from edge.data import resized_crops
from edge.data.registry import DataError, DataSet, ExampleKind, Split
from edge.protocol.spelling import nearest

STANDARDISED: tuple[ExampleKind, ...] = ("features", "series")
"""The kinds of examples that can be standardised"""
FAR = 1e6
"""A row or column far outside any image, in which float32 still counts single pixels."""


@dataclass(frozen=True)
class Profile:
    """The preparation of a batch. `profile_for` fills in the fields of the data set."""

    name: str
    mean: tuple[float, ...] | None = None
    """Mean per channel of pixels in 0..1; None: no normalisation."""
    std: tuple[float, ...] | None = None
    """Standard deviation per channel, given with ``mean``."""
    rotation_degrees: float = 0.0
    """Rotation by a uniform angle of at most this, about the centre, nearest pixel; 0 is off."""
    crop_pad: int = 0
    """Random crop of the image's own size after this many pixels of padding on each side; 0 is off."""
    flip: bool = False
    """Mirror left to right with probability 1/2."""
    resized_crop: float = 0.0
    """Least part of an image's area in a random box that is resized to the model's size, in place of rotation and crop
    (`resized_crops`); 0 is off."""
    jitter: float = 0.0
    """Brightness, contrast and saturation are each multiplied by 1 ± up to this; 0 is off. For colour images alone."""
    pixel_max: int = 255
    """Pixel value of 1.0."""
    background: int = 0
    """Pixel value of an empty place."""
    pad: int = 0
    """Pixels added on each side, last, to reach the model's size."""
    side: int = 0
    """Side of the square that models take of larger stored images: without a resized crop, the centre; 0: as stored."""
    kind: ExampleKind | None = "image"
    """The examples that it is for; None: any."""
    standardise: bool = False
    """Features and series alone: whether `fitted` sets mean and standard deviation, of each feature or channel."""
    by_client: bool = False
    """Whether it does so for each natural client; ``mean`` and ``std`` then hold those of one client after another, and
    last those of all."""

    @property
    def varies(self) -> bool:
        """Whether training examples are augmented at random."""
        return bool(self.rotation_degrees or self.crop_pad or self.flip or self.resized_crop or self.jitter)


_CIFAR10 = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
_TINY = ((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821))
_ALIGN10 = ((0.49139968, 0.48215827, 0.44653124), (0.24703233, 0.24348505, 0.26158768))
_ALIGN100 = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))

_ROWS = (
    # FedMLB normalises CIFAR-100 with CIFAR-10's statistics; FedBR is assumed to do the same.
    Profile("fedmlb-cifar", *_CIFAR10, rotation_degrees=10.0, crop_pad=4, flip=True),
    # FedMLB's published code augments test images too; here they are only normalised.
    Profile("fedmlb-tinyimagenet", *_TINY, rotation_degrees=10.0, crop_pad=4, flip=True),
    Profile("fedalign-cifar10", *_ALIGN10, crop_pad=4, flip=True),
    Profile("fedalign-cifar100", *_ALIGN100, crop_pad=4, flip=True),
    Profile(
        "fedalign-imagenet200",
        (0.485, 0.456, 0.406),
        (0.229, 0.224, 0.225),
        flip=True,
        resized_crop=0.08,
        jitter=0.4,
    ),
    Profile("digits"),
    Profile("mnist", (0.1307,), (0.3081,)),
    # Statistics of the 14,708 training examples of LEAF's 5 % sample by writer, before padding.
    Profile("femnist", (0.9612,), (0.1656,)),
    Profile("plain", kind=None),
    # Ink is 1 and paper 0, where images have dark ink on white: 1 - x.
    Profile("inverted", (1.0,), (-1.0,)),
    Profile("standardise", kind="features", standardise=True),
    Profile("standardise-client", kind="features", standardise=True, by_client=True),
)

PROFILES: dict[str, Profile] = {row.name: row for row in _ROWS}


def profile_for(row: DataSet, augment: str = "default") -> Profile:
    """The profile of a set under ``data.augment``: ``default``, ``none`` (normalisation alone) or a profile's name.

    DataError for an unknown name, or for statistics of another number of channels than the set's.
    """
    name = row.profile if augment in ("default", "none") else augment
    if name not in PROFILES:
        names = ["default", "none", *PROFILES]
        raise DataError(f"data.augment: unknown profile {name!r}; {nearest(name, names)}")
    profile = PROFILES[name]
    kinds = STANDARDISED if profile.standardise else (profile.kind or row.kind,)
    if row.kind not in kinds:
        named = " or ".join(kinds)
        raise DataError(f"data.augment = {name} is for examples of kind {named}; {row.name} has {row.kind}")
    if profile.by_client and row.id_column is None:
        raise DataError(f"data.augment = {name}: {row.name} does not say which client made an example")
    if profile.mean is not None and len(profile.mean) != row.stored[0]:
        raise DataError(f"data.augment = {name} is for {len(profile.mean)} channels; {row.name} has {row.stored[0]}")
    if augment == "none":
        profile = replace(profile, rotation_degrees=0.0, crop_pad=0, flip=False, resized_crop=0.0, jitter=0.0)
    profile = replace(profile, pixel_max=row.pixel_max, background=row.background)
    return replace(profile, pad=row.pad, side=row.side, kind=row.kind)


def fitted(profile: Profile, train: Split) -> Profile:
    """A profile that standardises, with mean and standard deviation of each feature, or channel, of training examples.

    Of all of them, or of each natural client's; a client without any has those of all.
    """
    if not profile.standardise:
        return profile
    parts = [train.x]
    if profile.by_client:
        assert train.ids is not None
        parts = [*(train.x[train.ids == client] for client in range(int(train.ids.max()) + 1)), train.x]
    over = (0, *range(2, train.x.ndim))
    mean, std = (
        np.concatenate([getattr(part if len(part) else train.x, name)(axis=over, dtype=np.float64) for part in parts])
        for name in ("mean", "std")
    )
    return replace(profile, mean=tuple(mean.tolist()), std=tuple(np.where(std > 0, std, 1.0).tolist()))


@dataclass(frozen=True)
class AugmentationDraws:
    """Random draws of a batch, one per example; None for a transform that the profile does not have."""

    degrees: NDArray[np.float64] | None = None
    """(batch,) counter-clockwise."""
    corners: NDArray[np.int64] | None = None
    """(batch, 2) top and left of the crop in the padded image."""
    flips: NDArray[np.bool_] | None = None
    """(batch,)"""
    views: resized_crops.Views | None = None
    jitters: resized_crops.Jitters | None = None


def draw(profile: Profile, batch: int, rng: np.random.Generator) -> AugmentationDraws:
    """The draws of ``batch`` examples, always in the order rotation, crop, flip, resized crop, jitter."""
    limit = profile.rotation_degrees
    degrees = rng.uniform(-limit, limit, batch) if limit else None
    corners = rng.integers(0, 2 * profile.crop_pad + 1, (batch, 2)) if profile.crop_pad else None
    flips = rng.random(batch) < 0.5 if profile.flip else None
    views = resized_crops.draw_views(batch, profile.resized_crop, rng) if profile.resized_crop else None
    jitters = resized_crops.draw_jitters(batch, profile.jitter, rng) if profile.jitter else None
    return AugmentationDraws(degrees, corners, flips, views, jitters)


def prepare(x: Tensor, profile: Profile, rng: np.random.Generator | None = None, ids: Tensor | None = None) -> Tensor:
    """Stored examples as the model takes them, on the device of ``x``.

    Images: uint8 (batch, channels, height, width) to float32 of the model's size; with a generator, the training
    transform; without, the test transform, which only pads and normalises. Features and series: float32, standardised
    where the profile says so. Tokens: int64. ``ids``: (batch,) natural clients, for a profile ``by_client``.
    """
    if profile.kind == "tokens":
        return x.to(torch.int64)
    if profile.kind in STANDARDISED and profile.mean is None:
        return x
    first, second = _statistics(profile, x.device)
    if profile.kind in STANDARDISED:
        # (1 or clients, features or channels), then by example, with a place for the time of series
        by_client = (each.view(-1, x.shape[1]) for each in (first, second))
        # Later clients, with test examples alone, have the last statistics, which are those of all.
        mean, std = (each if ids is None else each[ids.clamp(max=len(each) - 1)] for each in by_client)
        return (x - mean[:, :, None]) / std[:, :, None] if x.dim() == 3 else (x - mean) / std
    assert x.dtype == torch.uint8, x.dtype
    side = profile.side
    if rng is not None and profile.varies:
        draws = draw(profile, len(x), rng)
        if draws.views is not None:
            x = resized_crops.resized(x, draws.views, (side, side) if side else (x.shape[2], x.shape[3]), draws.flips)
        else:
            x = move(x, draws, profile.crop_pad, profile.background)
        if draws.jitters is not None:
            x = resized_crops.jittered(x, draws.jitters, profile.pixel_max)
    if side and x.shape[2] != side:  # the centre of larger images
        top, left = ((length - side) // 2 for length in x.shape[2:])
        x = x[:, :, top : top + side, left : left + side]
    if profile.pad:
        x = F.pad(x, (profile.pad,) * 4, value=profile.background)
    return x.to(torch.float32).mul_(first).add_(second)


@cache
def _statistics(profile: Profile, device: torch.device) -> tuple[Tensor, Tensor]:
    """(features,) or (channels,) mean and standard deviation, client by client where each has its own.

    Of images, (channels, 1, 1) gain and bias.

    With these, (pixel / pixel_max - mean) / std = pixel * gain + bias.
    """
    if profile.kind in STANDARDISED:
        both = torch.tensor([profile.mean, profile.std], dtype=torch.float32, device=device)
    else:
        mean, std = np.array(profile.mean or (0.0,)), np.array(profile.std or (1.0,))
        pair = np.stack([1.0 / (profile.pixel_max * std), -mean / std])
        both = torch.tensor(pair, dtype=torch.float32, device=device).view(2, -1, 1, 1)
    return both[0], both[1]


def move(x: Tensor, draws: AugmentationDraws, crop_pad: int, background: int) -> Tensor:
    """Rotate, then crop, then flip each image of (batch, channels, height, width) by its own draw."""
    batch, channels, height, width = x.shape
    framed = F.pad(x, (1, 1, 1, 1), value=background).view(batch, channels, -1)
    rows, columns = _sources(draws, crop_pad, (height, width), x.device)
    rows, columns = rows.clamp_(-1, height), columns.clamp_(-1, width)
    source = columns.add(rows, alpha=width + 2).add_(width + 3).long()  # (batch, height, width), in the framed image
    return framed.gather(2, source.view(batch, 1, -1).expand(-1, channels, -1)).view(x.shape)


def _sources(
    draws: AugmentationDraws, crop_pad: int, shape: tuple[int, int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Row and column of the source of each output pixel, whole numbers that broadcast to (batch, *shape).

    Of a rotation about the centre, the nearest pixel; what a crop takes from outside the rotated image stays outside.
    Numbers per row and per column are few, and are computed on the host.
    """
    # From an output pixel back to its source: the steps are inverted last to first.
    rows, columns = (np.arange(side, dtype=np.float32)[None] for side in shape)
    if draws.flips is not None:
        columns = np.where(draws.flips[:, None], columns[:, ::-1], columns)  # (batch, width)
    if draws.corners is not None:
        corners = (draws.corners - crop_pad).astype(np.float32)
        rows, columns = rows + corners[:, :1], columns + corners[:, 1:]
    if draws.degrees is None:
        return to_device(rows[:, :, None], device), to_device(columns[:, None, :], device)
    # Sine and cosine on the host, so that they do not depend on the device's approximation.
    angles = np.radians(draws.degrees)[:, None]
    sines, cosines = np.sin(angles).astype(np.float32), np.cos(angles).astype(np.float32)
    middle_row, middle_column = ((side - 1) / 2 for side in shape)
    down, right = rows - np.float32(middle_row), columns - np.float32(middle_column)
    row_parts, column_parts = cosines * down, cosines * right
    row_parts[np.broadcast_to((rows < 0) | (rows >= shape[0]), row_parts.shape)] = FAR
    column_parts[np.broadcast_to((columns < 0) | (columns >= shape[1]), column_parts.shape)] = FAR
    sine_rows, sine_columns = sines * right, sines * down
    source_rows = to_device(sine_rows[:, None, :], device) + to_device(row_parts[:, :, None], device)
    source_columns = to_device(column_parts[:, None, :], device) - to_device(sine_columns[:, :, None], device)
    return source_rows.add_(middle_row).round_(), source_columns.add_(middle_column).round_()


def to_device(numbers: NDArray[Any], device: torch.device) -> Tensor:
    """An array as a tensor on a device; on a CPU, the array's own memory.

    A copy to a GPU is asynchronous, from pinned memory, which torch keeps until the copy has ended.
    """
    host = torch.from_numpy(numbers)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
