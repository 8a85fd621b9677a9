"""Named random streams: every draw of the product comes from a generator keyed by what it is for.

A method that draws extra numbers from its own stream can never change the order of batches, and no draw depends on
which worker makes it or when.
"""

from __future__ import annotations

import hashlib

import numpy as np


def keyed_generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """A Philox generator keyed by (seed, purpose, round, client).

    Purposes in use: ``init``, ``partition``, ``partition.test``, ``validation``, ``cohort``, ``batches``, ``augment``,
    ``eval``, ``adapt``, ``adapt: augment``, ``metric NAME``, ``metric examples``, ``gmbs``, ``fedfomo`` (with the
    client's visits in place of the round), ``calibrate``, ``describe``; of the fleet (with an index of its own in place
    of the round): ``fleet``, ``trace``, ``modes``, ``visits of a round``, ``visits one by one``, ``availability``,
    ``availability of a trace``, ``bandwidth``; of a replay with draws: ``uncertainty: ...``.
    """
    text = f"{seed}|{purpose}|{round}|{client}".encode()
    key = int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "little")
    return np.random.Generator(np.random.Philox(key=key))
