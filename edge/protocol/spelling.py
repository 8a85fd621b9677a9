"""Names: which are a user's own, and the valid one nearest to one that is not known, for messages.

`costmodel`, which imports nothing of ours, has its own of the latter in `costmodel.units`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

FLOWER_APP = "flower:"
"""Begins the name of a method that is a Flower app; its folder follows"""


def is_own(name: str) -> bool:
    """Whether a name is that of a user's own object, ``module:NAME``."""
    return ":" in name and not name.startswith(FLOWER_APP)


def closest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The valid name most like ``name``, whatever its case; None if none is as like it as ``cutoff`` (0..1).

    Of those, one that has ``name`` as a part comes first: async means fedasync rather than sync.
    """
    folded = {valid.lower(): valid for valid in reversed(list(names))}
    near = difflib.get_close_matches(name.lower(), folded, n=3, cutoff=cutoff)
    near.sort(key=lambda valid: name.lower() not in valid)
    return folded[near[0]] if near else None


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a message about an unknown ``name``: the valid one nearest to it, or all of them if none is near."""
    valid = list(names)
    near = closest(name, valid)
    return f"choose from {', '.join(valid)}" if near is None else f"did you mean {near!r}?"
