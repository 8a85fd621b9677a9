"""One bit for each number: Karimireddy, Rebjock, Stich, Jaggi, Error Feedback Fixes SignSGD and other Gradient
Compression Schemes, ICML 2019, https://arxiv.org/abs/1901.09847, Algorithm 1 (EF-signSGD).

A vector p of n numbers becomes (‖p‖₁/n)·sgn(p); the residual, which makes it converge, is the sender's.
"""

from __future__ import annotations

import numpy as np

from edge.protocol.codecs.bits import check_padding
from edge.protocol.codecs.codec import Frame, NumberFormat, finite_floats
from edge.protocol.payload import Floats
from edge.protocol.plugins import PluginOptions

_SIGNS: Floats = np.float32(1) - 2 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
"""(256, 8): of the bits of a byte"""


class SignOptions(PluginOptions):
    """v becomes the mean magnitude with the sign of v; 0 counts as positive."""


class Sign(NumberFormat):
    """The frame: the mean magnitude, then a bit a number, the least significant first: 1 for a negative one."""

    is_unbiased = False

    def nbytes(self, count: int) -> int:
        """4, and a bit a number."""
        return 4 + -(-count // 8)

    def pack(self, numbers: Floats, rng: np.random.Generator) -> Frame:
        """No draws. The mean is that of a sum in float64."""
        mean = np.add.reduce(np.abs(numbers), dtype=np.float64) / max(1, numbers.size)
        scale = np.array([mean], "<f4").view(np.uint8)
        return np.concatenate((scale, np.packbits(numbers < 0, bitorder="little")))

    def unpack(self, frame: Frame, count: int) -> Floats:
        """The mean magnitude with the signs."""
        scale = finite_floats(frame[:4], least=0)
        check_padding(frame, count)
        values = _SIGNS.take(frame[4:], axis=0).reshape(-1)[:count]
        values *= scale
        return values
