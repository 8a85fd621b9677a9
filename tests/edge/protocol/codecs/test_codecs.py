"""The codecs of a run: those of a variant, what devices encode and decode, and what clients keep for them."""

from __future__ import annotations

from dataclasses import replace

from edge.protocol.codecs.codecs import Codecs, unencoded
from edge.protocol.config import CodecConfig
from edge.protocol.submodels import CLASSES, WHOLE
from edge.protocol.variant import Variant

AXES = {
    "conv": (((4, 1), (1, WHOLE)), ((4, 1),)),  # 4 filters of one number, and their biases
    "head": (((3, CLASSES), (8, 2)), ((3, CLASSES),)),  # 3 classes of 4 channels with two places each
}
TENSORS = {"conv": ((4, 1), (4,)), "head": ((3, 8), (3,))}
SIZES = {"conv": 8, "head": 27}
UP = {"model": SIZES, "control": SIZES}
HALF = ({"kind": "fp16"},)
TENTH = ({"kind": "topk", "ratio": 0.1},)
EIGHT = ({"kind": "quantize", "levels": 8},)


def codecs(**config: object) -> Codecs:
    return Codecs(replace(CodecConfig(), **config), 0, TENSORS, AXES)  # type: ignore[arg-type]


def test_a_part_has_its_own_tensors_in_any_window_and_each_is_made_once() -> None:
    own = codecs(up=EIGHT)
    part = own.of(Variant(0.5, 7))
    assert part.tensors == {"conv": ((2, 1), (2,)), "head": ((3, 4), (3,))}
    assert own.of(Variant(0.5, 8)) is part
    assert part.of(Variant(0.5, 7)) is part


def test_levels_change_what_goes_up_alone() -> None:
    """8 levels take values from -8 to 8, 5 bits; 1 level takes 3 values, 2 bits; the norms of both are 4 bytes each."""
    own = codecs(up=EIGHT, down=EIGHT)
    fewer = own.of(Variant(levels=1))
    names = {"model": {"conv": 8}}
    assert own.up.codecs.lengths(names)["model"]["conv"] - fewer.up.codecs.lengths(names)["model"]["conv"] == 3
    assert fewer.down.lengths(names) == own.down.lengths(names)
    assert own.of(Variant(0.5)).of(Variant(0.5, levels=1)).up.config.up == fewer.up.config.up


def test_vectors_without_a_codec_travel_as_they_are() -> None:
    own = codecs(up=HALF, min_values=10)
    encoded = own.up.codecs.lengths(UP)
    assert encoded == {"model": {"head": 54}}
    assert unencoded(UP, encoded) == {"model": {"conv": 8}, "control": SIZES}


def test_clients_keep_residuals_and_the_versions_that_differences_are_from() -> None:
    up = {"model": SIZES}
    assert codecs(up=HALF).kept_numbers(up, (), SIZES) == 0
    assert codecs(up=TENTH, error_feedback=True).kept_numbers(up, (), SIZES) == 35
    assert codecs(up=HALF).kept_numbers(up, ("head",), SIZES) == 27
    assert codecs(down=HALF, of="update").kept_numbers(up, ("head",), SIZES) == 35
    assert codecs(down=HALF, of="weights").kept_numbers(up, ("head",), SIZES) == 0
