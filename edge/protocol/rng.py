"""Named random streams: every draw of the product comes from a generator keyed by what it is for.

A method that draws extra numbers from its own stream can never change the order of batches, and no draw depends on
which worker makes it or when.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence


def keyed_generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """A Philox generator keyed by (seed, purpose, round, client).

    Purposes in use: ``init``, ``partition``, ``partition.test``, ``validation``, ``cohort``, ``partial work``,
    ``batches``, ``augment``, ``eval``, ``adapt``, ``adapt: augment``, ``metric NAME``, ``metric examples``, ``gmbs``,
    ``fedfomo`` (with the client's visits in place of the round), ``calibrate``, ``describe``, ``aggregators``; of
    the fleet (with an index of its own in place of the round): ``fleet``, ``trace``, ``modes``, ``visits of a round``,
    ``visits one by one``, ``availability``, ``availability of a trace``, ``bandwidth``; of aggregators the same with
    their level before it (``tier 0: fleet``); of a replay with draws: ``uncertainty: ...``.
    """
    text = f"{seed}|{purpose}|{round}|{client}".encode()
    key: Any = _Key(hashlib.blake2b(text, digest_size=16).digest())  # NumPy's types know its own class alone
    return np.random.Generator(np.random.Philox(key))


class _Key(ISeedSequence):
    """A key in place of a seed: Philox's own argument for it also draws entropy, which takes half of the time."""

    def __init__(self, digest: bytes) -> None:
        self._words = np.frombuffer(digest, np.dtype("<u8")).astype(np.uint64)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """The two words of the key."""
        assert (n_words, np.dtype(dtype)) == (2, np.uint64), (n_words, dtype)
        return self._words
