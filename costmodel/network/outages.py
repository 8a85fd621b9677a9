"""Outages of clients' own links: times in which nothing passes, beside what else varies a link.

An outage hits both directions of a client's link at once. Times between outages are exponential, lengths lognormal
around their median: many are short, a few long. Nothing here knows what TCP makes of an outage.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import lru_cache

import numpy as np

from costmodel.arrays import Doubles, Streams
from costmodel.network.bandwidth import CACHED_CLIENTS, Variation

PURPOSE = "outages"
LENGTH_SIGMA = 1.0
"""Sigma of the logarithm of an outage's length (assumed)."""
CHUNK = 32
"""Outages drawn at a time."""


class WithOutages:
    """A variation of links, interrupted by outages."""

    def __init__(self, variation: Variation, per_hour: Doubles, seconds: Doubles, streams: Streams) -> None:
        """``per_hour``, ``seconds``: (clients,) outages in an hour without any, and their median length; 0: none."""
        assert per_hour.shape == seconds.shape, (per_hour.shape, seconds.shape)
        self._variation, self._streams = variation, streams
        self._between = np.divide(3600.0, per_hour, out=np.full(per_hour.size, math.inf), where=per_hour > 0).tolist()
        self._seconds = seconds.tolist()
        self.has_outages = variation.has_outages or bool(((per_hour > 0) & (seconds > 0)).any())
        self._changes = lru_cache(CACHED_CLIENTS)(lambda client: [0.0])
        self._drawn = lru_cache(CACHED_CLIENTS)(self._draw)

    def factor(self, client: int, direction: int, t: float) -> tuple[float, float]:
        """(factor >= 0 from t on, absolute time > t of the next change)."""
        is_down, until = self._outage(client, t)
        if is_down:
            return 0.0, until
        factor, change = self._variation.factor(client, direction, t)
        return factor, min(until, change)

    def _outage(self, client: int, t: float) -> tuple[bool, float]:
        """(whether there is one at t, absolute time of its end or of the next one's begin)."""
        if math.isinf(self._between[client]) or self._seconds[client] == 0:
            return False, math.inf
        chunk_begins = self._changes(client)
        while chunk_begins[-1] <= t:
            chunk_begins.append(self._drawn(client, len(chunk_begins) - 1, chunk_begins[-1])[-1])
        chunk = bisect_right(chunk_begins, t) - 1
        changes = self._drawn(client, chunk, chunk_begins[chunk])
        place = bisect_right(changes, t)
        return place % 2 == 1, changes[place]

    def _draw(self, client: int, chunk: int, begin: float) -> list[float]:
        """(2 CHUNK,) begin and end of each outage of a chunk, which begins at ``begin`` with the link up."""
        rng = self._streams(PURPOSE, chunk, client)
        between = self._between[client] * rng.standard_exponential(CHUNK)
        lengths = self._seconds[client] * np.exp(LENGTH_SIGMA * rng.standard_normal(CHUNK))
        changes: list[float] = (begin + np.cumsum(np.stack([between, lengths], axis=1).ravel())).tolist()
        return changes
