"""Texts as examples of a language model: pieces of tokens, of which those behind the given ones are foreseen.

Tokens are counted from 1; 0 is padding, at the end. An example's target is the number of tokens at its front that are
given, at least 1; the model foresees each token behind them from all before it in the piece.
"""

from __future__ import annotations

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
    found: list[tuple[int, int]] = []  # where a piece begins, and how many of its tokens it does not foresee
    for begin in range(0, max(len(tokens) - 1, 0), step):
        foreseen_before = length - step if begin else 0
        known = max(1, given - begin, foreseen_before)
        if min(len(tokens) - begin, length) > known:
            found.append((begin, known))
    x = np.zeros((len(found), length), np.int32)
    for row, (begin, _) in zip(x, found, strict=True):
        piece = tokens[begin : begin + length]
        row[: len(piece)] = piece
    return x, np.array([[known] for _, known in found], np.float32).reshape(len(found), 1)
