"""Client selection: the cohort of a round, or one client at a time."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from edge.protocol.rng import keyed_generator


def sample_cohort(
    seed: int,
    round: int,
    candidates: Sequence[int],
    participants: int,
    is_available: Callable[[int], bool] | None = None,
) -> list[int]:
    """``participants`` of the candidates, uniformly without replacement, in ascending order; all if there are fewer.

    With ``is_available``, only of the available ones; it is called for no more clients than needed.
    """
    rng = keyed_generator(seed, "cohort", round)
    if is_available is None:
        if participants >= len(candidates):
            return sorted(candidates)
        chosen = rng.choice(len(candidates), size=participants, replace=False)
        return sorted(candidates[int(i)] for i in chosen)
    cohort: list[int] = []
    for i in rng.permutation(len(candidates)).tolist():
        if len(cohort) == participants:
            break
        if is_available(candidates[i]):
            cohort.append(candidates[i])
    return sorted(cohort)


class IdleClients:
    """Clients without a visit in flight, in asynchronous policies.

    A client that was unavailable is not checked again before it returns, so that a search costs about as much among
    10,000 clients as among ten.
    """

    def __init__(
        self,
        seed: int,
        candidates: Sequence[int],
        is_eligible: Callable[[int], bool],
        available_at: Callable[[int], float],
    ) -> None:
        """``is_eligible``: whether a client can still take part; once it cannot, it is dropped.

        ``available_at``: client -> absolute seconds at which it is available, not before now; inf: never.
        """
        self._seed, self._is_eligible, self._available_at = seed, is_eligible, available_at
        self._ready = sorted(candidates)
        """Not known to be unavailable"""
        self._away: list[tuple[float, int]] = []
        """A heap of (absolute seconds of its return, client)"""

    def take(self, index: int, now: float) -> int | None:
        """A random eligible and available client, from the random stream of ``index``; None if there is none."""
        while self._away and self._away[0][0] <= now:
            self.put(heappop(self._away)[1])
        rng = keyed_generator(self._seed, "cohort", index)
        while self._ready:
            client = self._ready.pop(int(rng.integers(len(self._ready))))
            if not self._is_eligible(client):
                continue
            time = self._available_at(client)
            if time <= now:
                return client
            if time < math.inf:
                heappush(self._away, (time, client))
        return None

    def put(self, client: int) -> None:
        """Return a client whose visit has ended."""
        insort(self._ready, client)

    @property
    def next_return(self) -> float:
        """Absolute seconds at which the first unavailable client returns; inf: none will."""
        return self._away[0][0] if self._away else math.inf
