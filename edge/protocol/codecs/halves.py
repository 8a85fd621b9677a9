"""Numbers of 2 bytes, rounded to nearest, ties to even: IEEE 754's binary16, and bfloat16, the upper half of a float32
(Kalamkar et al., A Study of BFLOAT16 for Deep Learning Training, 2019, https://arxiv.org/abs/1905.12322).

Numbers beyond the largest one of a format become that one: 65504, and 3.3895e38.
"""

from __future__ import annotations

import numpy as np

from edge.protocol.codecs.codec import Frame, NumberFormat
from edge.protocol.payload import Floats
from edge.protocol.plugins import PluginOptions
from edge.protocol.wire import WireError

LARGEST_FP16 = np.float32(65504)
LARGEST_BF16 = np.uint32(0x7F7F0000).view(np.float32)


class HalfOptions(PluginOptions):
    """None; the formats say all."""


class Float16(NumberFormat):
    """binary16: 11 significant bits, magnitudes from 6.0e-8 (below 6.1e-5 with fewer bits) to 65504."""

    is_unbiased = False
    is_nearest = True

    def nbytes(self, count: int) -> int:
        """2 a number."""
        return 2 * count

    def pack(self, numbers: Floats, rng: np.random.Generator) -> Frame:
        """No draws."""
        return np.clip(numbers, -LARGEST_FP16, LARGEST_FP16).astype("<f2").view(np.uint8)

    def unpack(self, frame: Frame, count: int) -> Floats:
        """The same numbers as float32."""
        halves = frame.view("<u2")
        if ((halves & np.uint16(0x7C00)) == 0x7C00).any():
            raise WireError("codec: a number is not finite")
        return halves.view("<f2").astype(np.float32)


class BFloat16(NumberFormat):
    """bfloat16: 8 significant bits, and the range of float32."""

    is_unbiased = False
    is_nearest = True

    def nbytes(self, count: int) -> int:
        """2 a number."""
        return 2 * count

    def pack(self, numbers: Floats, rng: np.random.Generator) -> Frame:
        """No draws."""
        bits = np.clip(numbers, -LARGEST_BF16, LARGEST_BF16).view(np.uint32)
        bits += np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
        return (bits >> np.uint32(16)).astype("<u2").view(np.uint8)

    def unpack(self, frame: Frame, count: int) -> Floats:
        """The same numbers as float32."""
        halves = frame.view("<u2")
        if ((halves & np.uint16(0x7F80)) == 0x7F80).any():
            raise WireError("codec: a number is not finite")
        bits = halves.astype(np.uint32)
        bits <<= np.uint32(16)
        return bits.view(np.float32)
