"""Sub-models on the server side: which part each visit has, and element-wise means of parts.

The next value of an element is the weighted mean over the clients whose part has it; an element that nobody held keeps
its value. With ``mask``, rows of the last layer count for clients that have examples of their class alone (HeteroFL).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edge.protocol.config import TensorAxes
from edge.protocol.messages import Choice
from edge.protocol.submodels import RATE, WINDOW, SliceMap, slice_map

MOST_MAPS = 64
"""Slice maps that are kept: a window is another one in every round."""


@dataclass
class Submodels:
    """The parts of one run's clients."""

    axes: TensorAxes
    rate: Callable[[int, int], float]
    """(client, round) -> rate of its visit"""
    own_rate: Callable[[int], float]
    """client -> the largest rate that it may have, at which its model is evaluated"""
    levels: Sequence[float]
    """All rates that visits may have, the largest first"""
    rolls: bool = False
    """Whether parts are windows that move by a channel each round (FedRolex)"""
    held: NDArray[np.bool_] | None = None
    """(clients, classes): classes that a client has examples of, if rows of the last layer count for these alone"""
    _maps: dict[tuple[float, int], SliceMap] = field(default_factory=dict)

    def choice(self, client: int, round: int) -> Choice:
        """The choices of a visit that name its part."""
        return self._named(self.rate(client, round), round)

    def own_choice(self, client: int, round: int) -> Choice:
        """Those of an evaluation of a client's model."""
        return self._named(self.own_rate(client), round)

    def _named(self, rate: float, round: int) -> Choice:
        return {RATE: rate, WINDOW: round} if self.rolls else {RATE: rate}

    def choices(self, round: int) -> list[Choice]:
        """All that name parts of visits of a round."""
        return [self._named(rate, round) for rate in self.levels]

    def slices(self, choice: Choice) -> SliceMap:
        """The part that these choices name."""
        key = float(choice[RATE]), int(choice.get(WINDOW, 0))
        if key not in self._maps:
            if len(self._maps) >= MOST_MAPS:
                self._maps.clear()
            self._maps[key] = slice_map(self.axes, choice)
        return self._maps[key]

    def counted(self, slices: SliceMap, client: int, key: str) -> NDArray[np.bool_] | None:
        """Which of a client's numbers of this key count; None: all."""
        classes = None if self.held is None else slices.classes(key)
        if classes is None or self.held is None:
            return None
        counted: NDArray[np.bool_] = (classes < 0) | self.held[client][classes]
        return counted
