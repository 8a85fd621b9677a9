"""Resized crops and colour jitter of a batch do to each image what torchvision's functions do to one."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F
from torchvision.transforms import functional as TF

from edge.data.augment import PROFILES, Profile, prepare
from edge.data.resized_crops import Jitters, Views, boxes, draw_jitters, draw_views, jittered, resized


def pictures(batch: int, height: int, width: int) -> torch.Tensor:
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


def test_the_first_box_that_fits_is_taken_or_the_largest_in_the_centre() -> None:
    # The whole area of 9x16 at 1 to 1 is 12x12, too high; the second try is half of the area, 8x8 (72 by sqrt).
    areas = np.array([[1.0, 0.5, *[1.0] * 8], [1.0] * 10])
    drawn = Views(areas, np.ones((2, 10)), np.zeros((2, 2)))
    # Else all of the height, and of the width 9 * 4/3.
    assert boxes(drawn, 9, 16).tolist() == [[0, 0, 8, 8], [0, 2, 9, 12]]


def test_boxes_stay_within_the_image_and_have_the_drawn_areas() -> None:
    drawn = draw_views(2000, 0.08, np.random.default_rng(0))
    top, left, height, width = boxes(drawn, 256, 256).T
    assert (top >= 0).all() and (left >= 0).all()
    assert (top + height).max() == (left + width).max() == 256
    parts = height * width / 256**2
    assert 0.079 < parts.min() < 0.09
    assert 0.45 < parts.mean() < 0.54
    assert 0.74 < (width / height).min() < (width / height).max() < 1.35


def test_a_box_is_resized_as_interpolation_does_and_mirrored() -> None:
    x = pictures(3, 20, 16)
    drawn = draw_views(3, 0.2, np.random.default_rng(2))
    flips = np.array([False, True, False])
    result = resized(x, drawn, (12, 12), flips)
    for image, out, box, flip in zip(x, result, boxes(drawn, 20, 16).tolist(), flips, strict=True):
        top, left, height, width = box
        part = image[None, :, top : top + height, left : left + width].float()
        expected = F.interpolate(part, (12, 12), mode="bilinear", align_corners=False)[0]
        assert torch.allclose(out, TF.hflip(expected) if flip else expected, atol=1e-3)


def test_the_whole_image_at_its_size_stays_as_it_is() -> None:
    x = pictures(1, 16, 16)
    assert torch.allclose(resized(x, views([1.0], [1.0], [[0.0, 0.0]]), (16, 16)), x.float(), atol=1e-3)


def test_colours_are_adjusted_as_torchvision_does_in_the_drawn_order() -> None:
    x = pictures(3, 8, 8)
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


def test_one_draw_per_image() -> None:
    jitters = draw_jitters(500, 0.4, np.random.default_rng(0))
    assert 0.6 <= jitters.factors.min() < 0.61
    assert 1.39 < jitters.factors.max() <= 1.4
    assert len({tuple(order) for order in jitters.orders.tolist()}) == 6


def test_training_images_are_a_box_and_test_images_the_centre() -> None:
    x = pictures(4, 32, 32)
    profile = Profile("own", flip=True, resized_crop=0.08, jitter=0.4, side=28)
    tested = prepare(x, profile)
    assert torch.allclose(tested, x[:, :, 2:30, 2:30] / 255, atol=1e-6)
    one, same, other = (prepare(x, profile, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert one.shape == (4, 3, 28, 28)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert 0 <= float(one.min()) < float(one.max()) <= 1


def test_fedaligns_profile_of_imagenet() -> None:
    row = PROFILES["fedalign-imagenet200"]
    assert (row.mean, row.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert (row.resized_crop, row.jitter, row.flip) == (0.08, 0.4, True)
