"""Texts as examples of a language model: pieces of tokens, of which those behind the given ones are foreseen.

Tokens are counted from 1; 0 is padding, at the end. An example's target is the number of tokens at its front that are
given, at least 1; the model foresees each token behind them from all before it in the piece.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]


def pieces(tokens: Tokens, length: int, every: int | None = None, given: int = 1) -> tuple[Tokens, NDArray[np.float32]]:
    """(pieces, length) tokens and (pieces, 1) given ones, of one text whose first ``given`` tokens are a prompt.

    ``every``: tokens from one piece to the next; by default ``length - 1``, so that the last of a piece is given in the
    next, and each token behind the prompt is foreseen once. With fewer, a piece foresees those alone that the one
    before has not. Pieces that would foresee nothing are left out: none for a text without a token behind the prompt.
    """
    step = length - 1 if every is None else every
    starts = [
        begin for begin in range(0, max(len(tokens) - 1, 0), step) if _foresees(begin, step, length, tokens, given)
    ]
    x = np.zeros((len(starts), length), np.int32)
    y = np.empty((len(starts), 1), np.float32)
    for row, begin in enumerate(starts):
        piece = tokens[begin : begin + length]
        x[row, : len(piece)] = piece
        y[row] = _given(begin, step, length, given)
    return x, y


def _given(begin: int, step: int, length: int, given: int) -> int:
    """Tokens at the front of a piece that are not foreseen in it: of the prompt, or foreseen in the piece before."""
    before = begin - step + length if begin else 0
    return max(1, given - begin, before - begin)


def _foresees(begin: int, step: int, length: int, tokens: Sequence[int] | Tokens, given: int) -> bool:
    return min(len(tokens) - begin, length) > _given(begin, step, length, given)
