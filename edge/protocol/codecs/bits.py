"""Small integers as bits without gaps. Never a codec.

A code of w bits at index i takes the bits w·i to w·i + w - 1 of the bytes, its least significant bit first; bit j of
the bytes is bit j mod 8 of byte j // 8. The bits left over in the last byte are 0.
"""

from __future__ import annotations

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
    words: NDArray[Any] = np.zeros(-(-codes.size // 8) * 8, narrow)
    words[: codes.size] = codes.astype(narrow)
    bits = width
    while words.itemsize < 8:  # until eight codes are in a word, or four of more than 8 bits
        wider = f"<u{2 * words.itemsize}"
        words = words[0::2].astype(wider) | words[1::2].astype(wider) << np.uint8(bits)
        bits *= 2
    if width <= 8:
        rows = words.view(np.uint8).reshape(-1, 8)
    else:  # the upper four codes of eight begin at bit 4·width, in the first word
        lower, upper = words[0::2], words[1::2]
        pair = np.stack((lower | upper << np.uint64(bits), upper >> np.uint64(64 - bits)), axis=1)
        rows = pair.view(np.uint8).reshape(-1, 16)
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
    words: NDArray[Any] = rows.reshape(-1).view("<u8")
    bits = 8 * width
    if width > 8:
        bits = 4 * width
        lower, upper = words[0::2], words[1::2]
        pair = (lower & np.uint64((1 << bits) - 1), lower >> np.uint64(bits) | upper << np.uint64(64 - bits))
        words = np.stack(pair, axis=1).reshape(-1)
    while bits > width:
        bits //= 2
        narrower = f"<u{words.itemsize // 2}"
        halves = np.empty(2 * words.size, narrower)
        halves[0::2] = words & words.dtype.type((1 << bits) - 1)
        halves[1::2] = words >> words.dtype.type(bits)
        words = halves
    return words[:count]


def check_padding(frame: NDArray[np.uint8], bits: int) -> None:
    """WireError if one of the bits after the first ``bits`` of the last byte is not 0."""
    if bits % 8 and frame[-1] >> bits % 8:
        raise WireError(f"codec: ends with byte {frame[-1]}, of which {bits % 8} bits count")
