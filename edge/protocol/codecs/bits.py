"""Small integers as bits without gaps. Never a codec.

A code of w bits at index i takes the bits w·i to w·i + w - 1 of the bytes, its least significant bit first; bit j of
the bytes is bit j mod 8 of byte j // 8. The bits left over in the last byte are 0.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.protocol.wire import WireError


def packed_nbytes(count: int, width: int) -> int:
    """Bytes of so many codes of ``width`` bits."""
    return (count * width + 7) // 8


def pack_bits(codes: NDArray[Any], width: int) -> NDArray[np.uint8]:
    """The bytes of integers of any type, from 0 to 2^width - 1; ``width``: 1..16."""
    narrow = "<u1" if width <= 8 else "<u2"
    if width in (8, 16):
        return codes.astype(narrow).view(np.uint8)
    padded = np.zeros(-(-codes.size // 8) * 8, narrow)
    padded[: codes.size] = codes.astype(narrow)
    words: NDArray[np.uint64] = padded.view("<u8")
    for lane, bits, lower in _steps(width):
        words = words & lower | words >> np.uint64(lane - bits) & lower << np.uint64(bits)
    if width <= 8:
        rows = words.view(np.uint8).reshape(-1, 8)
    else:  # four codes in a word: the upper four of eight begin at bit 4·width, in the first word
        first, second, used = words[0::2], words[1::2], np.uint64(4 * width)
        rows = np.stack((first | second << used, second >> np.uint64(64) - used), axis=1).view(np.uint8)
    return rows[:, :width].reshape(-1)[: packed_nbytes(codes.size, width)]


def unpack_bits(frame: NDArray[np.uint8], count: int, width: int) -> NDArray[Any]:
    """The unsigned integers of `packed_nbytes` bytes. WireError for a bit left over that is not 0."""
    check_padding(frame, count * width)
    if width in (8, 16):
        return frame.view("<u1" if width == 8 else "<u2")
    rows = np.zeros((-(-count // 8), 8 if width <= 8 else 16), np.uint8)
    whole = frame.size // width
    rows[:whole, :width] = frame[: whole * width].reshape(whole, width)
    if whole < len(rows):
        rows[whole, : frame.size - whole * width] = frame[whole * width :]
    words: NDArray[np.uint64] = rows.reshape(-1).view("<u8")
    if width > 8:
        first, second, used = words[0::2], words[1::2], np.uint64(4 * width)
        words = np.stack((first, first >> used | second << np.uint64(64) - used), axis=1).reshape(-1)
    for lane, bits, lower in reversed(_steps(width)):
        words = words & lower | words << np.uint64(lane - bits) & lower << np.uint64(lane)
    return words.view("<u1" if width <= 8 else "<u2")[:count]


@cache
def _steps(width: int) -> list[tuple[int, int, np.uint64]]:
    """How codes in lanes of 8 or 16 bits come together in a word of 64: (lane, bits in use, mask of the lower ones) for
    pairs of codes, then for pairs of pairs, .."""
    steps, lane, bits = [], 8 if width <= 8 else 16, width
    while lane < 64:
        lower = sum((1 << bits) - 1 << place for place in range(0, 64, 2 * lane))
        steps.append((lane, bits, np.uint64(lower)))
        lane, bits = 2 * lane, 2 * bits
    return steps


def check_padding(frame: NDArray[np.uint8], bits: int) -> None:
    """WireError if one of the bits after the first ``bits`` of the last byte is not 0."""
    if bits % 8 and frame[-1] >> bits % 8:
        raise WireError(f"codec: ends with byte {frame[-1]}, of which {bits % 8} bits count")
