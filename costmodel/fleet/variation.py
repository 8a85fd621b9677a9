"""Random numbers that differ from round to round and from visit to visit, drawn whole: for all clients, or many visits.

So a client's numbers never depend on the other clients of a query. Nothing here knows how the numbers are used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles, Streams


@dataclass(frozen=True)
class VisitVariation:
    """Independent random numbers of a batch of visits."""

    normal: Doubles
    """(visits, 3) standard normal"""
    uniform: Doubles
    """(visits, 2) in 0 .. 1"""
    exponential: Doubles
    """(visits,) exponential, of mean 1"""

    @classmethod
    def none(cls, visits: int) -> VisitVariation:
        """The middle of each law, for fleets without variation."""
        return cls(np.zeros((visits, 3)), np.full((visits, 2), 0.5), np.ones(visits))

    def of(self, visits: NDArray[np.intp] | slice) -> VisitVariation:
        """The numbers of some of the visits."""
        return VisitVariation(self.normal[visits], self.uniform[visits], self.exponential[visits])


def visit_variation(streams: Streams, purpose: str, index: int, visits: int) -> VisitVariation:
    """The numbers of the block ``index`` of ``visits`` visits."""
    rng = streams(purpose, index, 0)
    return VisitVariation(rng.standard_normal((visits, 3)), rng.random((visits, 2)), rng.standard_exponential(visits))


def uniforms(streams: Streams, epoch: int, clients: int) -> Doubles:
    """(clients, 3) in 0 .. 1, for the power mode, the rate down and the rate up of an epoch of several rounds."""
    return streams("modes", epoch, 0).random((clients, 3))
