"""A client's stays and absences, and what all models of them share. Nothing here draws a random number or asks who.

A client is alternately available and away. A spell begins at its first instant and ends just before the next begins.
"""

from __future__ import annotations

import math
from typing import NamedTuple

CACHED = 1 << 16
"""Pieces of clients' lives that are kept; whatever was dropped is made again when it is needed."""


class Spell(NamedTuple):
    """A client's stay or absence."""

    available: bool
    begin: float
    end: float


class Spells:
    """The part that all models below share; a model customises by

    * `at`, which finds the spell at a finite time, and
    * `gone`, if its clients may stay away for good.
    """

    def at(self, client: int, t: float) -> Spell:
        """The spell with begin <= t < end."""
        raise NotImplementedError

    def spell(self, client: int, t: float) -> tuple[bool, float]:
        """(whether the client is available at t, absolute time > t at which that changes; inf if never)."""
        if t == math.inf:
            return False, math.inf
        available, _, end = self.at(client, t)
        return available, end

    def since(self, client: int, t: float) -> float:
        """When the spell at t began; -inf if it has always been so."""
        return -math.inf if t == math.inf else self.at(client, t).begin

    def gone(self, client: int) -> float:
        """From when on the client never is available again; inf if it always comes back."""
        return math.inf
