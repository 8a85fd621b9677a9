"""How visits of a run differ beside their method's own choices, how that travels, and the part of the model."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.aggregation.server import Download
from coordinator.methods.spec import Traffic
from edge.protocol import serialization
from edge.protocol.messages import Evaluate, Message, Train
from edge.protocol.payload import BlockShape, Layout, Vector
from edge.protocol.submodels import CLASSES, WHOLE, SliceMap, kept_channels, slice_map
from edge.protocol.variant import PLAIN, Variant, split

PART = Variant(0.5, 3, 8)
NUMBERS = {"rate": 0.5, "window": 3, "codec levels": 8}


def test_its_numbers_are_named_in_the_order_of_its_fields() -> None:
    assert list(PART.named().items()) == [*NUMBERS.items()]
    assert (Variant(window=0).named(), PLAIN.named()) == ({"window": 0}, {})


def test_what_is_not_of_the_variant_is_of_the_method() -> None:
    assert split({"alpha": 2, **NUMBERS}) == ({"alpha": 2}, PART)
    assert split({"alpha": 2}) == ({"alpha": 2}, PLAIN)


def through(message: Message) -> Message:
    encoded = serialization.encode(message, "run-1")
    return serialization.decode(encoded.header, encoded.frames, "run-1")


@pytest.mark.parametrize("kind", [Train, Evaluate])
def test_it_travels_among_the_choices(kind: type[Message]) -> None:
    def made(choice: dict[str, float], variant: Variant) -> Message:
        if kind is Train:
            return Train(1, 2, 0.1, choice, {}, variant)
        return Evaluate(0, 1, 2, {}, choice=choice, variant=variant)

    apart, together = made({"alpha": 2}, PART), made({"alpha": 2, **NUMBERS}, PLAIN)
    assert serialization.encode(apart, "run-1").header == serialization.encode(together, "run-1").header
    assert through(apart) == apart


@pytest.mark.parametrize("name", NUMBERS)
def test_no_choice_of_a_method_has_the_name_of_a_field(name: str) -> None:
    with pytest.raises(ValueError, match=f"choice: {name}: is the name of what the run chooses for a visit; rename it"):
        Traffic(choices=("alpha", name))
    with pytest.raises(ValueError, match=f"choice: {name}: "):
        Download(0, {}, {name: 1})


# --- the part of a model ----------------------------------------------------------------------------------------------


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
