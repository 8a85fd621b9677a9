"""Who takes part: the cohort of a round, or one client at a time."""

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
    is_there: Callable[[int], bool] | None = None,
) -> list[int]:
    """``participants`` of the candidates, uniformly without replacement, in ascending order; all if there are fewer.

    With ``is_there``, of those that are there now, however few; nobody is asked who is not needed.
    """
    rng = keyed_generator(seed, "cohort", round)
    if is_there is None:
        if participants >= len(candidates):
            return sorted(candidates)
        chosen = rng.choice(len(candidates), size=participants, replace=False)
        return sorted(candidates[int(i)] for i in chosen)
    found: list[int] = []
    for i in rng.permutation(len(candidates)).tolist():
        if len(found) == participants:
            break
        if is_there(candidates[i]):
            found.append(candidates[i])
    return sorted(found)


class IdleClients:
    """Clients that are not being visited, where visits begin one by one.

    Whoever was asked and was away is not asked again before it is back, so that a search costs about as much among
    10,000 clients as among ten.
    """

    def __init__(
        self,
        seed: int,
        candidates: Sequence[int],
        is_able: Callable[[int], bool],
        back: Callable[[int], float],
    ) -> None:
        """``is_able``: whether a client can still take part; once it cannot, it is never asked again.

        ``back``: client -> when it is there, absolute seconds, now at the earliest; inf: never.
        """
        self._seed, self._is_able, self._back = seed, is_able, back
        self._ready = sorted(candidates)
        """May be there, for all that is known"""
        self._away: list[tuple[float, int]] = []
        """A heap of (when it is back, client)"""

    def take(self, index: int, now: float) -> int | None:
        """One of those that are able and there, uniformly, by the stream of this index; None if there is none."""
        while self._away and self._away[0][0] <= now:
            self.put(heappop(self._away)[1])
        rng = keyed_generator(self._seed, "cohort", index)
        while self._ready:
            client = self._ready.pop(int(rng.integers(len(self._ready))))
            if not self._is_able(client):
                continue
            back = self._back(client)
            if back <= now:
                return client
            if back < math.inf:
                heappush(self._away, (back, client))
        return None

    def put(self, client: int) -> None:
        """A client whose visit has ended is idle again."""
        insort(self._ready, client)

    @property
    def next_return(self) -> float:
        """When the first that was away is back, absolute seconds; inf: nobody is waited for."""
        return self._away[0][0] if self._away else math.inf
