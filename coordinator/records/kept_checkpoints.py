"""Which checkpoints of a run are kept beside the newest ones, with the client states and vectors that belong to them.

They take disk space and change nothing else: neither results nor the hash chain.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator

from edge.protocol.config import Section

NEWEST, BEST = "newest", "best"
EVERY = re.compile("every:([1-9][0-9]{0,15})")


def _checked(keep: str | tuple[int, ...]) -> str | tuple[int, ...]:
    if isinstance(keep, str) and keep not in (NEWEST, BEST) and not EVERY.fullmatch(keep):
        raise ValueError('must be "newest", "best", "every:K" with K from 1 on, or a list of rounds')
    if not isinstance(keep, str) and any(round < 1 for round in keep):
        raise ValueError("rounds are counted from 1")
    return keep


@dataclass(frozen=True)
class CheckpointRules(Section):
    """The checkpoints that a run keeps, for ``fedbr replay --measure``."""

    keep: Annotated[tuple[int, ...] | str, AfterValidator(_checked)] = NEWEST
    """``newest``: what `resume` needs; ``best``: beside it that of the round with the best score; ``every:K``:
    those after K rounds, 2 K rounds, ..; or a list of rounds, such as [1, 10]. Results do not depend on it."""

    def kept(self, stored: Collection[int], best: int | None) -> set[int]:
        """Those to keep of the stored rounds, as the ledger numbers them, from 0 on.

        ``best``: the round with the best score so far, if any was evaluated; for the rule ``best`` alone.
        """
        if self.keep == BEST:
            return {best} & set(stored) if best is not None else set()
        every = EVERY.fullmatch(self.keep) if isinstance(self.keep, str) else None
        if every is not None:
            return {round for round in stored if (round + 1) % int(every[1]) == 0}
        return {round for round in stored if not isinstance(self.keep, str) and round + 1 in self.keep}
