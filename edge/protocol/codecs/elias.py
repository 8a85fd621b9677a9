"""Integers as codes whose length grows with their logarithm: Elias, Universal Codeword Sets and Representations of the
Integers, IEEE Transactions on Information Theory 21(2), 1975 (omega code), as QSGD has them (Alistarh et al., NeurIPS
2017, section 3.1): runs of zeros, levels and signs; and Rice's code for the gaps between topk's indices, as Sattler,
Wiedemann, Müller, Samek, Robust and Communication-Efficient Federated Learning from Non-IID Data, IEEE TNNLS 31(9),
2020, have them.

What a frame has beside integers comes first, as it is: norms, or the numbers of a format without integers. Then bits,
the highest of a byte first, and zeros at the end of the last byte:

* behind topk with k < n, for its k indices: the gaps g_i ≥ 0 of indices that are not sent before each, as Rice codes
  of b bits: ⌊g_i / 2^b⌋ zeros and a one, for all i; then the b lower bits of each. 2^b is the power of two next below
  0.962 n/k, at least 1;
* behind quantize or ternary, for its levels: ω(z + 1) for the number z of those that are not 0; ω(1 + zeros before it)
  of each of them; ω(its magnitude) of each; and a bit of each, 1 for a negative one.

ω(N) is: from right to left, a 0; and while N > 1, N in binary, whose number of digits less one is the next N.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from edge.protocol.codecs.codec import EntropyCoder, Frame, PlainStages, size
from edge.protocol.plugins import PluginOptions
from edge.protocol.wire import WireError

Bits = NDArray[np.uint8]
"""One to a byte."""
Numbers = NDArray[np.int64]
CHUNK = 1 << 16
"""Numbers that are coded, or bits that are read, at a time"""
STRIDE = 64
"""Codes between those that are looked for one after another"""
WINDOW = 64
"""Bits of the longest code that is read; one of a number below 2^32 has up to 43"""
MOST = 1 << 32


class EliasOptions(PluginOptions):
    """None: the codes follow from the integers and their number."""


class Elias(EntropyCoder):
    """Rice and omega codes of indices and levels."""

    needs_integers = True

    def shorten(self, plain: Frame, stages: PlainStages) -> Frame:
        """See the format above."""
        side, rest = plain[: stages.side_nbytes], plain[stages.side_nbytes :]
        bits: list[Bits] = []
        if stages.reduction.has_indices and side.size:
            indices = side.view("<u4").astype(np.int64)
            bits += rice_bits(np.diff(indices, prepend=-1) - 1, rice_width(size(stages.tensors), stages.count))
        if stages.number_format.has_integers:
            levels, rest = stages.number_format.integers(rest, stages.count)
            places = np.flatnonzero(levels)
            coded = levels[places]
            runs = np.diff(places, prepend=-1)
            bits += omega_bits(np.concatenate(([places.size + 1], runs, np.abs(coded))).astype(np.int64))
            bits.append((coded < 0).astype(np.uint8))
        return np.concatenate((rest, np.packbits(np.concatenate(bits)) if bits else rest[:0]))

    def lengthen(self, coded: Frame, stages: PlainStages) -> Frame:
        """WireError for a stream that ends early or late, or numbers out of range."""
        count, number_format = stages.count, stages.number_format
        has_levels = number_format.has_integers
        start = number_format.rest_nbytes(count) if has_levels else number_format.nbytes(count)
        if coded.size < start:
            raise WireError(f"elias: {coded.size} bytes, which begin with {start} of no code")
        rest, stream = coded[:start], _Stream(coded[start:])
        side = rest[:0]
        if stages.reduction.has_indices and stages.side_nbytes:
            n = size(stages.tensors)
            indices = np.cumsum(stream.rice(count, rice_width(n, count), n) + 1) - 1
            if indices[-1] >= n:
                raise WireError(f"elias: an index is not below {n}")
            side = indices.astype("<u4").view(np.uint8)
        if has_levels:
            levels = np.zeros(count, np.int32)
            nonzero = int(stream.omega(1, count + 1)[0]) - 1
            places = np.cumsum(stream.omega(nonzero, count)) - 1
            if nonzero and places[-1] >= count:
                raise WireError(f"elias: a level is not within {count}")
            magnitudes = stream.omega(nonzero, np.iinfo(np.int32).max)
            levels[places] = np.where(stream.take(nonzero), -magnitudes, magnitudes)
            rest = number_format.frame(levels, rest)
        stream.close()
        return np.concatenate((side, rest))


def rice_width(n: int, k: int) -> int:
    """b for k of n indices, 0 < k < n: shortest codes where all choices are equally likely, or nearly so."""
    return max(0, (962 * n // (1000 * k)).bit_length() - 1)


def rice_bits(gaps: Numbers, width: int) -> list[Bits]:
    """Zeros and a one for each, then their lower bits."""
    ends = np.cumsum((gaps >> width) + 1)
    unary = np.zeros(ends[-1], np.uint8)
    unary[ends - 1] = 1
    lower = gaps[:, None] >> np.arange(width - 1, -1, -1) & 1
    return [unary, lower.astype(np.uint8).reshape(-1)]


def omega_bits(numbers: Numbers) -> list[Bits]:
    """The codes of numbers in 1..2^32 - 1, one after another."""
    return [_omega_bits(numbers[start : start + CHUNK]) for start in range(0, numbers.size, CHUNK)]


def _omega_bits(numbers: Numbers) -> Bits:
    codes, lengths, n = np.zeros_like(numbers), np.ones_like(numbers), numbers
    where = np.arange(numbers.size)
    while (is_more := n > 1).any():  # groups of digits from right to left
        where, n = where[is_more], n[is_more]
        codes[where] |= n << lengths[where]
        digits = np.frexp(n)[1].astype(np.int64)
        lengths[where] += digits
        n = digits - 1
    ends = np.cumsum(lengths)
    shifts = np.repeat(ends, lengths)
    shifts -= np.arange(1, shifts.size + 1)
    return (np.repeat(codes, lengths) >> shifts & 1).astype(np.uint8)


class _Stream:
    """Bits that are read one after another. WireError if they end early."""

    def __init__(self, frame: Frame) -> None:
        self.bits = np.unpackbits(frame)
        self.place = 0

    def take(self, count: int) -> Bits:
        """The next so many bits."""
        if self.place + count > self.bits.size:
            raise WireError(f"elias: {self.bits.size} bits end within a code")
        self.place += count
        return self.bits[self.place - count : self.place]

    def close(self) -> None:
        """WireError if more than zeros at the end of a byte are left."""
        left = self.bits[self.place :]
        if left.size > 7 or left.any():
            raise WireError(f"elias: {left.size} bits are left")

    def rice(self, count: int, width: int, n: int) -> Numbers:
        """Gaps of at most n."""
        most = count + (n >> width)  # zeros and ones of indices below n
        ends = np.flatnonzero(self.bits[self.place : self.place + most])[:count] + 1
        if ends.size < count:
            raise WireError(f"elias: {ends.size} indices instead of {count}")
        self.take(int(ends[-1]))
        high = np.diff(ends, prepend=0) - 1
        lower = self.take(count * width).reshape(count, width)
        gaps: Numbers = high << width
        for digit in range(width):
            gaps |= lower[:, digit].astype(np.int64) << width - 1 - digit
        return gaps

    def omega(self, count: int, most: int) -> Numbers:
        """So many numbers in 1..most."""
        chunks: list[Numbers] = []
        while count:
            if self.place >= self.bits.size:
                raise WireError(f"elias: {self.bits.size} bits end within a code")
            reach = min(CHUNK, 4 * count + WINDOW)
            numbers, lengths = _omega_everywhere(self.bits[self.place : self.place + reach + WINDOW], reach)
            starts = _chain(lengths)[:count]
            chunks.append(numbers[starts])
            if chunks[-1].max() > most:
                raise WireError(f"elias: a number is above {most}")
            self.take(int(starts[-1] + lengths[starts[-1]]))
            count -= starts.size
        return np.concatenate(chunks) if chunks else np.empty(0, np.int64)


def _omega_everywhere(bits: Bits, places: int) -> tuple[Numbers, Numbers]:
    """(number, length) of the code that begins at each of the first so many bits; `MOST` for any above."""
    words = np.zeros(bits.size + WINDOW, np.uint64)
    words[: bits.size] = bits
    reach = 1
    while reach < WINDOW:  # words[p]: the bits from p on, the first the highest
        words[:-reach] = words[:-reach] << np.uint64(reach) | words[reach:]
        reach *= 2
    words = words[: min(bits.size, places)]
    numbers, lengths = np.ones(words.size, np.int64), np.ones(words.size, np.int64)
    where = np.arange(words.size)
    while (is_more := words >> np.uint64(63) == 1).any():
        where, words = where[is_more], words[is_more]
        n = numbers[where]
        digits = n.astype(np.uint64) + np.uint64(1)
        numbers[where] = (words >> np.uint64(64) - digits).astype(np.int64)
        words = words << digits
        lengths[where] += digits.astype(np.int64)
        is_long = (numbers[where] >= 32) & (words >> np.uint64(63) == 1)
        numbers[where[is_long]] = MOST
        where, words = where[~is_long], words[~is_long]
    return numbers, lengths


def _chain(lengths: Numbers) -> Numbers:
    """The places of the codes that follow one another from the first bit on, among the places of all."""
    end = lengths.size
    jumps = [np.append(np.minimum(np.arange(end) + lengths, end), end)]
    reach = 1
    while reach < STRIDE:  # the place that many codes on
        jumps.append(jumps[-1][jumps[-1]])
        reach *= 2
    anchors, place = [], 0
    while place < end:
        anchors.append(place)
        place = int(jumps[-1][place])
    places = np.array(anchors)
    for jump in reversed(jumps[:-1]):
        places = np.stack((places, jump[places]), axis=1).reshape(-1)
    return places[places < end]
