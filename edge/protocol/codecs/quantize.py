"""Numbers as integer levels of a norm, rounded at random so that their mean is kept.

quantize: Alistarh, Grubic, Li, Tomioka, Vojnovic, QSGD, NeurIPS 2017, https://arxiv.org/abs/1610.02132, section 3.1; s
are the levels on each side of 0, d the bucket. With ``norm = "max"`` it is what FedPAQ and 8-bit integers are.

ternary: Wen, Xu, Yan, Wu, Wang, Chen, Li, TernGrad, NeurIPS 2017, https://arxiv.org/abs/1705.07878: one level
on each side of 0, the largest magnitude as norm, and numbers clipped before.

A number v becomes norm·l/s: l is s·v/norm, or one of the two integers around it, the upper one with probability of the
fraction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from edge.protocol.codecs.bits import check_padding, pack_bits, packed_nbytes, unpack_bits
from edge.protocol.codecs.codec import LARGEST, Frame, Integers, NumberFormat, finite_floats
from edge.protocol.payload import Floats
from edge.protocol.plugins import PluginOptions
from edge.protocol.wire import WireError

PIECE = 1 << 14
"""Numbers that are rounded at a time"""


class QuantizeOptions(PluginOptions):
    """v becomes norm·l/s with an integer l in -s..s, for each bucket of so many values."""

    bits: int | None = Field(default=None, ge=2, le=16)
    """Bits of a value, 4 unless levels are given: s = 2^(bits - 1) - 1. 2 leaves -norm, 0 and norm."""
    levels: int | None = Field(default=None, ge=1, le=32767, title="s")
    """Levels on each side of 0, in place of bits: a value takes ⌈log2(2s + 1)⌉ bits."""
    bucket: int = Field(default=512, ge=1, le=1 << 31, title="d")
    """Values that share a norm of 4 bytes; as many as the vector has, or more, are one bucket."""
    norm: Literal["max", "l2"] = "max"
    """max: the largest magnitude; l2: the root of the sum of squares, which leaves more zeros (QSGD's theory)."""

    @model_validator(mode="after")
    def _one_of_both(self) -> QuantizeOptions:
        if self.bits is not None and self.levels is not None:
            raise ValueError("bits and levels are both given; levels = 2^(bits - 1) - 1: give one of them")
        return self

    @property
    def s(self) -> int:
        """Levels on each side of 0."""
        return self.levels or (1 << (self.bits or 4) - 1) - 1


class TernaryOptions(PluginOptions):
    """v becomes -norm, 0 or norm, with the largest magnitude of the whole vector as norm."""

    clip: float = Field(default=2.5, ge=0, title="c")
    """Standard deviations that magnitudes are cut to before; 0: they are not, and the mean is kept."""


class Quantize(NumberFormat):
    """The frame: a norm per bucket, then l + s of each value as an unsigned integer of `width` bits (`bits`)."""

    has_integers = True
    is_unbiased = True
    options: QuantizeOptions

    @property
    def width(self) -> int:
        """Bits of a value."""
        return (2 * self.options.s).bit_length()

    def nbytes(self, count: int) -> int:
        """4 a bucket, and `width` bits a value."""
        return self.rest_nbytes(count) + packed_nbytes(count, self.width)

    def rest_nbytes(self, count: int) -> int:
        """4 a bucket."""
        return 4 * -(-count // self.options.bucket)

    def pack(self, numbers: Floats, rng: np.random.Generator) -> Frame:
        """Levels by the generator's draws, half a word of 64 bits a value."""
        starts = np.arange(0, numbers.size, self.options.bucket)
        if not starts.size:
            return np.empty(0, np.uint8)
        if self.options.norm == "max":
            norms = _largest(numbers, starts)
        else:
            squares = np.add.reduceat(np.square(numbers, dtype=np.float64), starts)
            norms = np.minimum(np.sqrt(squares), LARGEST).astype(np.float32)
        codes = _codes(numbers, norms, self.options.bucket, self.options.s, rng)
        return np.concatenate((norms.astype("<f4").view(np.uint8), pack_bits(codes, self.width)))

    def unpack(self, frame: Frame, count: int) -> Floats:
        """norm·(l/s)."""
        s, width, rest = self.options.s, self.width, self.rest_nbytes(count)
        norms = finite_floats(frame[:rest], least=0)
        if width in (2, 4):
            check_padding(frame, count * width)
            values = byte_table(2 * s + 1, 8 // width, 1 << width).take(frame[rest:], axis=0).reshape(-1)[:count]
        else:
            values = unpack_bits(frame[rest:], count, width).astype(np.float32)
            values -= np.float32(s)
            values /= np.float32(s)
        if count and not np.maximum.reduce(values) <= 1:  # NaN in the table
            raise WireError(f"codec: a level is beyond {s}")
        values *= np.repeat(norms, min(self.options.bucket, count))[:count]
        return values

    def integers(self, frame: Frame, count: int) -> tuple[Integers, Frame]:
        """(l of each value, the norms)."""
        rest = self.rest_nbytes(count)
        levels = unpack_bits(frame[rest:], count, self.width).astype(np.int32)
        return levels - self.options.s, frame[:rest]

    def frame(self, integers: Integers, rest: Frame) -> Frame:
        """WireError for a level beyond s."""
        return np.concatenate((rest, pack_bits(_checked(integers, self.options.s), self.width)))


class Ternary(NumberFormat):
    """The frame: the norm, then five values in a byte, as the number Σ (l_i + 1)·3^i below 243; missing ones are 0."""

    has_integers = True
    options: TernaryOptions

    def __init__(self, options: TernaryOptions) -> None:
        super().__init__(options)
        self.is_unbiased = options.clip == 0

    def nbytes(self, count: int) -> int:
        """4, and a byte for five values."""
        return 4 + -(-count // 5)

    def rest_nbytes(self, count: int) -> int:
        """4."""
        return 4

    def pack(self, numbers: Floats, rng: np.random.Generator) -> Frame:
        """Levels by the generator's draws, half a word of 64 bits a value. Deviations are from the mean."""
        if not numbers.size:
            return np.zeros(4, np.uint8)
        norm = _largest(numbers, np.zeros(1, np.intp))
        if self.options.clip:
            mean, squares = np.add.reduce(numbers, dtype=np.float64) / numbers.size, 0.0
            for piece in _pieces(numbers.size, 1):
                squares += np.add.reduce(np.square(numbers[piece] - mean))
            most = np.float32(min(LARGEST, self.options.clip * math.sqrt(squares / numbers.size)))
            if 0 < most < norm[0]:  # where all are equal, they have no deviation
                norm[0] = most
                numbers = np.clip(numbers, -most, most)
        codes = _codes(numbers, norm, numbers.size, 1, rng)
        return np.concatenate((norm.astype("<f4").view(np.uint8), _pack_digits(codes)))

    def unpack(self, frame: Frame, count: int) -> Floats:
        """norm·l."""
        norm = finite_floats(frame[:4], least=0)
        if count % 5 and frame[-1] >= 3 ** (count % 5):
            raise WireError(f"codec: ends with byte {frame[-1]}, of which {count % 5} ternary digits count")
        values = byte_table(3, 5, 3).take(frame[4:], axis=0).reshape(-1)[:count]
        if count and not values.max() <= 1:
            raise WireError("codec: a byte of five ternary digits is above 242")
        values *= norm
        return values

    def integers(self, frame: Frame, count: int) -> tuple[Integers, Frame]:
        """(l of each value, the norm)."""
        levels = byte_table(3, 5, 3).take(frame[4:], axis=0).reshape(-1)[:count]
        return levels.astype(np.int32), frame[:4]

    def frame(self, integers: Integers, rest: Frame) -> Frame:
        """WireError for a level beyond 1."""
        return np.concatenate((rest, _pack_digits(_checked(integers, 1))))


@cache
def byte_table(levels: int, digits: int, base: int) -> Floats:
    """(256, digits): the numbers l/s of a byte's digits, the first the least; NaN where a digit is none of 2s + 1
    ``levels``, or the byte has more digits."""
    s, bytes_ = levels // 2, np.arange(256)
    codes = bytes_[:, None] // base ** np.arange(digits) % base
    numbers = (codes - s).astype(np.float32) / np.float32(s)
    numbers[(codes >= levels) | (bytes_ >= base**digits)[:, None]] = np.nan
    return numbers


def _largest(numbers: Floats, starts: NDArray[np.intp]) -> Floats:
    """The largest magnitude of each bucket; the addition makes 0 of -0, which processors choose at will."""
    largest: Floats = np.maximum(np.maximum.reduceat(numbers, starts), -np.minimum.reduceat(numbers, starts))
    return largest + np.float32(0)


def _pieces(count: int, bucket: int) -> Iterator[slice]:
    """Whole buckets of about `PIECE` values, or pieces of one bucket: memory of that size stays in the cache."""
    span = max(bucket, PIECE // bucket * bucket)
    for start in range(0, count, span):
        stop = min(start + span, count)
        yield from (slice(at, min(at + PIECE, stop)) for at in range(start, stop, PIECE))


def _codes(numbers: Floats, norms: Floats, bucket: int, s: int, rng: np.random.Generator) -> NDArray[Any]:
    """l + s of each number, for norms of at least the largest magnitude of each bucket."""
    codes = np.empty(numbers.size, np.uint8 if s < 128 else np.uint16)
    divisors = np.where(norms > 0, norms, np.float32(1))
    for piece in _pieces(numbers.size, bucket):
        first, last = piece.start // bucket, -(-piece.stop // bucket)
        count = piece.stop - piece.start
        scaled = numbers[piece] / np.repeat(divisors[first:last], min(bucket, count))[:count]
        scaled *= np.float32(s)
        levels = np.floor(scaled)
        scaled -= levels  # the fraction, without rounding error where it is not tiny
        scaled *= np.float32(1 << 24)
        words = rng.integers(0, (1 << 64) - 1, -(-count // 2), np.uint64, endpoint=True)  # in less time than floats
        draws = words.view("<u4")[:count] >> np.uint32(8)
        levels += draws.astype(np.float32) < scaled
        levels += np.float32(s)
        codes[piece] = levels
    return codes


def _pack_digits(codes: NDArray[Any]) -> Frame:
    """Five of 0, 1, 2 in a byte."""
    digits = np.zeros((-(-codes.size // 5), 5), np.uint8)
    digits.reshape(-1)[: codes.size] = codes
    packed = digits[:, 4].copy()
    for place in (3, 2, 1, 0):
        packed *= np.uint8(3)
        packed += digits[:, place]
    return packed


def _checked(integers: Integers, s: int) -> NDArray[np.int32]:
    if integers.size and not (-s <= integers.min() and integers.max() <= s):
        raise WireError(f"codec: a level is beyond {s}")
    return integers + np.int32(s)
