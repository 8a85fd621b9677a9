"""What differs from round to round and from visit to visit, drawn whole: for all clients of a round, or many visits.

So what a client meets never depends on who else is asked about. Nothing here knows what the numbers are used for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Streams = Callable[[str, int, int], np.random.Generator]
"""(purpose, index, client) -> generator, always the same one for the same key"""


@dataclass(frozen=True)
class VisitVariation:
    """Independent random numbers, as many rows as there are visits."""

    normal: Doubles
    """(visits, 3) standard normal"""
    uniform: Doubles
    """(visits, 2) in 0 .. 1"""
    exponential: Doubles
    """(visits,) of mean 1"""

    @classmethod
    def none(cls, visits: int) -> VisitVariation:
        """Where no use is made of them: the middle of each law."""
        return cls(np.zeros((visits, 3)), np.full((visits, 2), 0.5), np.ones(visits))

    def of(self, visits: NDArray[np.intp] | slice) -> VisitVariation:
        """Those of some visits."""
        return VisitVariation(self.normal[visits], self.uniform[visits], self.exponential[visits])


def visit_variation(streams: Streams, purpose: str, index: int, visits: int) -> VisitVariation:
    """Of the block ``index`` of visits."""
    rng = streams(purpose, index, 0)
    return VisitVariation(rng.standard_normal((visits, 3)), rng.random((visits, 2)), rng.standard_exponential(visits))


def uniforms(streams: Streams, epoch: int, clients: int) -> Doubles:
    """(clients, 3) in 0 .. 1: of a client's power mode, its rate down and its rate up in an epoch of several rounds."""
    return streams("modes", epoch, 0).random((clients, 3))
