"""What each stage makes of a few numbers, written out by hand, and how long its frames are."""

from __future__ import annotations

import struct
import sys
from typing import Any

import numpy as np
import pytest

from edge.protocol.codecs.codec import CodecRow
from edge.protocol.codecs.registry import codec_row, make_codec, stage_nbytes
from edge.protocol.codecs.sign import Sign, SignOptions
from edge.protocol.payload import Floats
from edge.protocol.rng import keyed_generator


def stream() -> np.random.Generator:
    return keyed_generator(1, "codec", 2, 3)


def floats(*values: float) -> Floats:
    return np.array(values, np.float32)


def encoded(numbers: Floats, *stages: dict[str, Any]) -> bytes:
    return make_codec(stages).encode(numbers, ((numbers.size,),), stream()).frame.tobytes()


def decoded(frame: bytes, count: int, *stages: dict[str, Any]) -> list[float]:
    return list(make_codec(stages).decode(frame, ((count,),), stream()).tolist())


@pytest.mark.parametrize(
    ("stages", "nbytes"),
    [
        ([{"kind": "fp16"}], 2_000_000),
        ([{"kind": "quantize", "bits": 8}], 1_000_000 + 4 * 1954),
        ([{"kind": "quantize", "bits": 2, "bucket": 128}], 250_000 + 4 * 7813),
        ([{"kind": "quantize", "levels": 10, "bucket": 1_000_000}], 625_000 + 4),  # 21 levels: 5 bits
        ([{"kind": "ternary"}], 200_000 + 4),
        ([{"kind": "sign"}], 125_000 + 4),
        ([{"kind": "topk", "ratio": 0.01}], 80_000),
        ([{"kind": "randk", "ratio": 0.01}], 40_000),
    ],
)
def test_a_million_numbers_take_so_many_bytes(stages: list[dict[str, Any]], nbytes: int) -> None:
    codec = make_codec(stages)
    assert codec.is_fixed_length
    assert codec.nbytes(((1000, 1000),)) == nbytes
    values = np.random.default_rng(1).normal(size=1_000_000).astype(np.float32)
    assert codec.encode(values, ((1_000_000,),), stream()).frame.size == nbytes


def test_levels_of_quantize_stand_behind_their_norms_in_half_bytes() -> None:
    # s = 7, and 7·v/norm is an integer: nothing is left to chance; l + 7 = 14, 0, 7 and 9, 0
    frame = encoded(floats(3.5, -3.5, 0, 7 / 2, -12.25), {"kind": "quantize", "bucket": 3})
    assert frame == struct.pack("<ff", 3.5, 12.25) + bytes([0x0E, 0x97, 0x00])
    assert decoded(frame, 5, {"kind": "quantize", "bucket": 3}) == pytest.approx([3.5, -3.5, 0, 3.5, -12.25])


@pytest.mark.parametrize(
    ("stage", "numbers", "packed"),
    [
        # levels 1, -1, 0, 1, 0 of 1: codes 2, 0, 1, 2, 1 from the lower bits upwards
        ({"kind": "quantize", "bits": 2}, (2, -2, 0, 2, 0), [0b10_01_00_10, 0b01]),
        # of s = 3 as 3 bits: codes 6, 0, 5, 1, 3
        ({"kind": "quantize", "bits": 3}, (3, -3, 2, -2, 0), [0b01_000_110, 0b0_011_001_1]),
        # of s = 2047 as 12 bits: codes 4094 = 0xFFE and 2046 = 0x7FE
        ({"kind": "quantize", "bits": 12}, (2047, -1), [0xFE, 0xEF, 0x7F]),
        ({"kind": "quantize", "levels": 32767}, (32767, -32767), [0xFE, 0xFF, 0, 0]),
        # digits 2, 0, 1, 1, 2 of base 3 from the lowest upwards: 2 + 9 + 27 + 2·81; then 1
        ({"kind": "ternary", "clip": 0}, (5, -5, 0, 0, 5, 0), [200, 1]),
    ],
)
def test_integers_are_packed_without_gaps(stage: dict[str, Any], numbers: tuple[float, ...], packed: list[int]) -> None:
    norm = max(numbers)
    frame = encoded(floats(*numbers), stage)
    assert frame == struct.pack("<f", norm) + bytes(packed)
    assert decoded(frame, len(numbers), stage) == pytest.approx(numbers, rel=1e-6)


def test_signs_are_bits_behind_the_mean_magnitude() -> None:
    numbers = floats(1, -2, 3, 0, -4, 5, 6, 7, -8)  # 36 / 9
    frame = encoded(numbers, {"kind": "sign"})
    assert frame == struct.pack("<f", 4) + bytes([0b00010010, 1])
    assert decoded(frame, 9, {"kind": "sign"}) == [4, -4, 4, 4, -4, 4, 4, 4, -4]


def test_halves_round_to_even_and_stay_finite() -> None:
    numbers = floats(1, 1 + 2**-11, 1 + 3 * 2**-11, -65519, 1e38)  # ties at 1 + 2^-11 and 1 + 3·2^-11
    expected = [1, 1, 1 + 2 * 2**-10, -65504, 65504]
    assert decoded(encoded(numbers, {"kind": "fp16"}), 5, {"kind": "fp16"}) == expected
    numbers = floats(1, 1 + 2**-8, 1 + 3 * 2**-8, -3.4e38)
    frame = encoded(numbers, {"kind": "bf16"})
    assert frame == bytes.fromhex("803f 803f 823f 7fff")
    assert decoded(frame, 4, {"kind": "bf16"}) == [1, 1, 1 + 2**-6, -3.3895313892515355e38]


def test_topk_has_ascending_indices_and_prefers_the_lower_of_equal_magnitudes() -> None:
    topk = {"kind": "topk", "ratio": 0.5}
    frame = encoded(floats(1, -2, 0, 2, -1, 5, 1), topk)  # of 1, 1, 1 none; 2, 2, 5
    assert frame == struct.pack("<IIIfff", 1, 3, 5, -2, 2, 5)
    assert decoded(frame, 7, topk) == [0, -2, 0, 2, 0, 5, 0]
    assert encoded(floats(1, -2, 0, 2, -2, 2, 1), topk) == struct.pack("<IIIfff", 1, 3, 4, -2, 2, -2)
    assert encoded(floats(3, 3, 3, 3), topk) == struct.pack("<IIff", 0, 1, 3, 3)


def test_randk_sends_numbers_alone() -> None:
    numbers = floats(1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    frame = encoded(numbers, {"kind": "randk", "ratio": 0.3, "unbiased": False})
    sent = list(struct.unpack("<fff", frame))
    back = decoded(frame, 10, {"kind": "randk", "ratio": 0.3, "unbiased": False})
    assert sent == sorted(sent)
    assert [value for value in back if value] == sent
    assert all(value in (0, number) for value, number in zip(back, numbers, strict=True))
    scaled = decoded(frame, 10, {"kind": "randk", "ratio": 0.3})
    assert scaled == [pytest.approx(value * 10 / 3) for value in back]


@pytest.mark.parametrize("stages", [[], [{"kind": "topk", "ratio": 1}], [{"kind": "randk", "ratio": 1}]])
def test_the_neutral_value_is_the_vector_to_the_bit(stages: list[dict[str, Any]]) -> None:
    numbers = floats(0.1, -0.0, 1e-42, 3e38, -7)
    assert encoded(numbers, *stages) == numbers.tobytes()
    assert make_codec(stages).decode(numbers.tobytes(), ((5,),), stream()).tobytes() == numbers.tobytes()
    assert make_codec(stages).is_unbiased


OWN = CodecRow("own", "signs of a user's own", "a test", SignOptions, Sign)


def test_a_users_own_stage_is_a_row_by_module_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "own_codecs", sys.modules[__name__])
    assert codec_row("own_codecs:OWN") is OWN
    assert encoded(floats(1, -3), {"kind": "own_codecs:OWN"}) == encoded(floats(1, -3), {"kind": "sign"})


@pytest.mark.parametrize(
    ("stages", "reach"),
    [
        ([{"kind": "quantize"}], [("quantize", 40_000)]),
        # 100 of 10,000 numbers: 400 bytes reach the format, 100 indices and 200 bytes of numbers zstd.
        ([{"kind": "topk"}, {"kind": "fp16"}, {"kind": "zstd"}], [("topk", 40_000), ("fp16", 400), ("zstd", 600)]),
        # 100 indices and 100 levels.
        (
            [{"kind": "topk"}, {"kind": "quantize"}, {"kind": "elias"}],
            [("topk", 40_000), ("quantize", 400), ("elias", 800)],
        ),
        # P and Q of a matrix of 100 x 100.
        ([{"kind": "powersgd"}, {"kind": "bf16"}], [("powersgd", 40_000), ("bf16", 1600)]),
        ([{"kind": "own_codecs:LIKE_SIGN"}], [("sign", 40_000)]),
        # One that says nothing of its cost has its own name, for which no rate is known.
        ([{"kind": "own_codecs:OWN"}], [("own", 40_000)]),
    ],
)
def test_the_bytes_that_reach_each_stage(
    monkeypatch: pytest.MonkeyPatch, stages: list[dict[str, Any]], reach: list[tuple[str, float]]
) -> None:
    monkeypatch.setitem(sys.modules, "own_codecs", sys.modules[__name__])
    assert stage_nbytes(stages, ((100, 100),)) == reach


LIKE_SIGN = CodecRow("own", "signs of a user's own", "a test", SignOptions, Sign, costs_like="sign")
