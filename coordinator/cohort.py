"""Who takes part in a round."""

from __future__ import annotations

from collections.abc import Sequence

from edge.streams import generator


def draw(seed: int, round: int, candidates: Sequence[int], participants: int) -> list[int]:
    """``participants`` of the candidates, uniformly without replacement, in ascending order; all if there are fewer."""
    if participants >= len(candidates):
        return sorted(candidates)
    chosen = generator(seed, "cohort", round).choice(len(candidates), size=participants, replace=False)
    return sorted(candidates[int(i)] for i in chosen)
