"""Codes of integers, written out by hand."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from edge.protocol.codecs.elias import omega_bits, rice_bits, rice_width
from edge.protocol.codecs.registry import make_codec
from edge.protocol.payload import Floats
from tests.edge.protocol.codecs.chains import stream


def text(*bits: np.ndarray[Any, np.dtype[np.uint8]]) -> str:
    return "".join(map(str, np.concatenate(bits)))


def coded(numbers: Floats, *stages: dict[str, Any]) -> bytes:
    """What `elias` makes, which must come back as without it."""
    codec, plain = make_codec([*stages, {"kind": "elias"}]), make_codec(stages)
    tensors = ((numbers.size,),)
    frame = codec.encode(numbers, tensors, stream()).frame
    without = plain.encode(numbers, tensors, stream()).frame
    assert not codec.is_fixed_length
    assert frame.size <= codec.nbytes(tensors) == without.size + 1
    expected = plain.decode(without.data, tensors, stream())
    assert codec.decode(frame.data, tensors, stream()).tobytes() == expected.tobytes()
    return frame.tobytes()


def test_omega_codes_are_those_of_elias() -> None:
    codes = {1: "0", 2: "10 0", 3: "11 0", 4: "10 100 0", 7: "10 111 0", 8: "11 1000 0", 16: "10 100 10000 0"}
    for number, code in codes.items():
        assert text(*omega_bits(np.array([number]))) == code.replace(" ", "")
    assert text(*omega_bits(np.array([100]))) == "1011011001000"
    assert text(*omega_bits(np.array([2, 1, 3]))) == "1000110"
    assert len(text(*omega_bits(np.array([2**32 - 1])))) == 2 + 3 + 5 + 32 + 1


def test_rice_codes_are_quotients_in_unary_then_remainders() -> None:
    assert text(*rice_bits(np.array([0, 5, 11]), 2)) == "1 01 001".replace(" ", "") + "00 01 11".replace(" ", "")
    assert text(*rice_bits(np.array([0, 2]), 0)) == "1001"
    # 96.2 of n/k = 100: 64; 9.62 of 10: 8; 1.9 of 2: 1; less than 1 of 1.02
    assert [rice_width(n, k) for n, k in ((100, 1), (10, 1), (2, 1), (51, 50))] == [6, 3, 0, 0]


def test_levels_are_runs_magnitudes_and_signs() -> None:
    # s = 3, levels 0 0 3 0 -1 and nothing: ω(3) for two of them, ω(3) and ω(2) for runs, ω(3) and ω(1), + and -
    numbers = np.zeros(40, np.float32)
    numbers[2], numbers[4] = 3, -1
    frame = coded(numbers, {"kind": "quantize", "levels": 3})
    bits = "110110100110001"
    assert frame == b"\1" + struct.pack("<f", 3) + int(bits.ljust(16, "0"), 2).to_bytes(2, "big")


def test_what_coding_would_not_shorten_travels_as_it_is() -> None:
    # magnitudes of 7 take 6 bits, a sign and a run two more: 4 bits are fewer
    numbers = np.full(100, 7, np.float32)
    frame = coded(numbers, {"kind": "quantize"})
    assert frame == b"\0" + struct.pack("<f", 7) + bytes([0xEE] * 50)


def test_indices_of_topk_are_gaps_behind_the_values() -> None:
    # 3 of 30, n/k = 10: b = 3; gaps 4, 0 and 18 of indices 4, 5 and 24
    numbers = np.zeros(30, np.float32)
    numbers[[4, 5, 24]] = 1, 2, 3
    frame = coded(numbers, {"kind": "topk", "ratio": 0.1})
    bits = "11001100000010"
    assert frame == b"\1" + struct.pack("<fff", 1, 2, 3) + int(bits.ljust(16, "0"), 2).to_bytes(2, "big")
