"""The part of the model that a client holds, as slices that both sides derive."""

from __future__ import annotations

import numpy as np
import pytest

from edge.protocol.payload import BlockShape, Layout, Vector
from edge.protocol.submodels import CLASSES, WHOLE, SliceMap, kept_channels, slice_map
from edge.protocol.variant import PLAIN, Variant

AXES = {
    "conv": (((4, 1), (1, WHOLE), (1, WHOLE)), ((4, 1),)),  # 4 filters of one number, and their biases
    "head": (((3, CLASSES), (8, 2)), ((3, CLASSES),)),  # 3 classes of 4 channels with two places each
}
LAYOUT = Layout((BlockShape("conv", 8), BlockShape("head", 27)))


@pytest.mark.parametrize(
    ("channels", "rate", "kept"), [(64, 0.0625, 4), (6, 0.25, 2), (5, 0.2, 1), (16, 0.01, 1), (7, 1.0, 7), (10, 0.3, 3)]
)
def test_a_part_has_its_share_of_channels_rounded_up(channels: int, rate: float, kept: int) -> None:
    assert kept_channels(channels, rate) == kept


def test_half_of_the_channels_are_the_first_two_and_what_follows_from_them() -> None:
    half = SliceMap(AXES, 0.5)
    assert half.places("conv").tolist() == [0, 1, 4, 5]
    # rows of 8 inputs, of which the first two channels have 4; then the 3 biases
    assert half.places("head").tolist() == [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26]
    assert half.sizes == {"conv": 4, "head": 15}
    assert half.tensors == {"conv": ((2, 1, 1), (2,)), "head": ((3, 4), (3,))}
    assert half.layout(LAYOUT) == Layout((BlockShape("conv", 4), BlockShape("head", 15)))


def test_a_window_begins_at_a_channel_and_wraps_around() -> None:
    window = slice_map(AXES, Variant(0.5, 7))  # 7 modulo 4 channels: 3, then 0
    assert window.places("conv").tolist() == [3, 0, 7, 4]
    assert window.places("head").tolist()[:4] == [6, 7, 0, 1]
    assert window.sizes == SliceMap(AXES, 0.5).sizes


def test_the_whole_model_is_itself_in_any_window() -> None:
    whole = {"conv": Vector(np.arange(8, dtype=np.float32))}
    assert slice_map(AXES, Variant(1.0, 3)).taken(whole)["conv"] is whole["conv"]
    assert slice_map(AXES, PLAIN).sizes == {"conv": 8, "head": 27}


def test_rows_of_the_last_layer_have_classes() -> None:
    half = SliceMap(AXES, 0.5)
    assert half.classes("conv") is None
    classes = half.classes("head")
    assert classes is not None and classes.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [0, 1, 2]


def test_shapes_of_other_vectors_stay() -> None:
    assert SliceMap(AXES, 0.5).of({"conv": 8, "tally": 5}) == {"conv": 4, "tally": 5}
