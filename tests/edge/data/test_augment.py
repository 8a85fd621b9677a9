"""Whole-batch augmentation does to each example what torchvision's transforms do one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from edge.data.augment import AugmentationDraws, Profile, move, prepare, profile_for
from edge.data.registry import DATASETS, Split
from edge.data.resized_crops import Jitters, Views, boxes, draw_views, jittered, resized
from edge.training.batches import Loader
from tests.edge.data.made_up import torchvision_functions


def pictures(batch: int = 6, channels: int = 3, side: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(1, 256, (batch, channels, side, side), generator=generator).to(torch.uint8)


def test_a_batch_follows_from_its_generator_and_without_augmentation_no_pixel_moves() -> None:
    x, profile = pictures(), profile_for(DATASETS["cifar100"])
    one, two, other = (prepare(x, profile, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    still = profile_for(DATASETS["cifar10"], "none")
    assert still.mean == (0.4914, 0.4822, 0.4465)
    assert torch.equal(prepare(x, still, np.random.default_rng(0)), prepare(x, still))
    moving = Profile("moving", rotation_degrees=10.0, crop_pad=4, flip=True)
    assert torch.equal((prepare(x, moving) * 255).round().to(torch.uint8), x)  # as in a test set


def test_pixels_are_normalised_as_torchvision_does_and_digits_over_sixteen() -> None:
    TF = torchvision_functions()
    x = pictures()
    expected = TF.normalize(x / 255, [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])
    result = prepare(x, profile_for(DATASETS["cifar10"]))
    assert result.dtype == torch.float32
    assert torch.allclose(result, expected, atol=1e-6)
    x = torch.tensor([0, 4, 16], dtype=torch.uint8).view(1, 1, 1, 3)
    assert prepare(x, profile_for(DATASETS["digits"])).flatten().tolist() == [0.0, 0.25, 1.0]


def test_the_frame_around_28_pixels_is_background() -> None:
    x = torch.full((2, 1, 28, 28), 100, dtype=torch.uint8)
    for name, background in (("mnist", (0 - 0.1307) / 0.3081), ("femnist", (1 - 0.9612) / 0.1656)):
        result = prepare(x, profile_for(DATASETS[name]))
        assert result.shape == (2, 1, 32, 32)
        assert result[0, 0, 1, 15].item() == pytest.approx(background, abs=1e-6)
        assert result[0, 0, 2, 2].item() != pytest.approx(background, abs=1e-3)


def test_crop_and_flip_equal_torchvisions_to_the_bit() -> None:
    TF = torchvision_functions()
    x = pictures()
    corners = np.array([[0, 0], [8, 8], [4, 4], [0, 8], [3, 5], [7, 1]])
    flips = np.array([True, False, True, False, False, True])
    moved = move(x, AugmentationDraws(None, corners, flips), crop_pad=4, background=0)
    for image, result, (top, left), flip in zip(x, moved, corners.tolist(), flips, strict=True):
        expected = TF.crop(TF.pad(image, [4]), top, left, 32, 32)
        assert torch.equal(result, TF.hflip(expected) if flip else expected)


@pytest.mark.parametrize("side", [32, 28, 9])
def test_rotation_equals_torchvisions_nearest(side: int) -> None:
    TF = torchvision_functions()
    x = pictures(side=side)
    degrees = np.array([-10.0, 10.0, 3.3, -7.1, 0.0, 90.0])
    moved = move(x, AugmentationDraws(degrees), crop_pad=0, background=0)
    for image, result, angle in zip(x, moved, degrees.tolist(), strict=True):
        same = (result == TF.rotate(image, angle)).float().mean().item()
        assert same > 0.995  # a pixel that lies halfway between two may round either way


def test_what_a_crop_takes_from_outside_stays_empty_and_images_need_not_be_square() -> None:
    x = torch.full((1, 1, 8, 8), 200, dtype=torch.uint8)
    moved = move(x, AugmentationDraws(np.array([45.0]), np.array([[0, 0]])), crop_pad=4, background=9)
    assert (moved[0, 0, :4] == 9).all()
    assert (moved[0, 0, :, :4] == 9).all()
    x = torch.arange(1, 7, dtype=torch.uint8).view(1, 1, 2, 3)
    up_left = move(x, AugmentationDraws(None, np.array([[0, 0]]), None), crop_pad=1, background=9)
    assert up_left.tolist() == [[[[9, 9, 9], [9, 1, 2]]]]
    turned = move(
        x, AugmentationDraws(np.array([180.0]), np.array([[1, 2]]), np.array([True])), crop_pad=1, background=9
    )
    # Turned: 6 5 4 / 3 2 1; one column further right: 5 4 . / 2 1 . ; mirrored.
    assert turned.tolist() == [[[[9, 4, 5], [9, 1, 2]]]]


# --- batches ----------------------------------------------------------------------------------------------------------


def loader(**how: Any) -> Loader:
    """Twelve pictures, augmented as CIFAR-10's."""
    split = Split(pictures(12).numpy(), np.arange(12, dtype=np.int64))
    return Loader(split, profile_for(DATASETS["cifar10"]), torch.device("cpu"), **how)


@pytest.mark.parametrize(
    "how",
    [{"memory_format": torch.contiguous_format}, {"memory_format": torch.channels_last}, {"resident": True}],
    ids=str,
)
def test_a_batch_is_its_examples_prepared_wherever_the_split_lies_and_in_the_wanted_format(how: Any) -> None:
    chosen = np.array([7, 0, 3])
    chosen.flags.writeable = False  # as in a partition's file that is mapped for reading
    x, y = loader(**how).fetch(chosen, np.random.default_rng(5))
    assert torch.equal(x, prepare(pictures(12)[[7, 0, 3]], profile_for(DATASETS["cifar10"]), np.random.default_rng(5)))
    assert x.is_contiguous(memory_format=how.get("memory_format", torch.contiguous_format))
    assert y.tolist() == [7, 0, 3]


# --- resized crops and colour jitter ----------------------------------------------------------------------------------


def photographs(batch: int, height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (batch, 3, height, width), generator=generator).to(torch.uint8)


def views(areas: list[float], aspects: list[float], places: list[list[float]]) -> Views:
    """With the first try of each image as given, and the others the whole image."""
    tries = (np.array([[first, *[1.0] * 9] for first in firsts]) for firsts in (areas, aspects))
    return Views(next(tries), next(tries), np.array(places))


def test_boxes_by_hand() -> None:
    # A quarter of 16x16 as a square is 8x8, and at 4 to 1 it is 4 high and 16 wide, alone in its rows.
    drawn = views([0.25, 0.25, 0.25], [1.0, 4.0, 1.0], [[0.0, 0.999], [0.5, 0.7], [0.5, 0.5]])
    assert boxes(drawn, 16, 16).tolist() == [[0, 8, 8, 8], [6, 0, 4, 16], [4, 4, 8, 8]]


def test_a_box_is_resized_as_interpolation_does_and_mirrored() -> None:
    TF = torchvision_functions()
    x = photographs(3, 20, 16)
    drawn = draw_views(3, 0.2, np.random.default_rng(2))
    flips = np.array([False, True, False])
    result = resized(x, drawn, (12, 12), flips)
    for image, out, box, flip in zip(x, result, boxes(drawn, 20, 16).tolist(), flips, strict=True):
        top, left, height, width = box
        part = image[None, :, top : top + height, left : left + width].float()
        expected = F.interpolate(part, (12, 12), mode="bilinear", align_corners=False)[0]
        assert torch.allclose(out, TF.hflip(expected) if flip else expected, atol=1e-3)


def test_colours_are_adjusted_as_torchvision_does_in_the_drawn_order() -> None:
    TF = torchvision_functions()
    x = photographs(3, 8, 8)
    jitters = Jitters(
        np.array([[1.3, 0.7, 1.2], [0.6, 1.4, 0.6], [1.0, 1.0, 1.0]]), np.array([[0, 1, 2], [2, 0, 1], [1, 2, 0]])
    )
    result = jittered(x, jitters, 255) / 255
    adjust = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation)
    for image, out, factors, order in zip(x, result, jitters.factors, jitters.orders, strict=True):
        expected = image / 255
        for operation in order.tolist():
            expected = adjust[operation](expected, factors[operation])
        assert torch.allclose(out, expected, atol=1e-5)
    assert torch.allclose(result[2], x[2] / 255, atol=1e-6)


def test_training_images_are_a_box_and_test_images_the_centre() -> None:
    x = photographs(4, 32, 32)
    profile = Profile("own", flip=True, resized_crop=0.08, jitter=0.4, side=28)
    tested = prepare(x, profile)
    assert torch.allclose(tested, x[:, :, 2:30, 2:30] / 255, atol=1e-6)
    one, same, other = (prepare(x, profile, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert one.shape == (4, 3, 28, 28)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert 0 <= float(one.min()) < float(one.max()) <= 1
