"""Sub-models on the server side: which part each visit has, and element-wise means of parts.

The next value of an element is the weighted mean over the clients whose part has it; an element that nobody held keeps
its value. With ``mask``, rows of the last layer count for clients that have examples of their class alone (HeteroFL).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from costmodel.config import Seconds
from edge.protocol.config import Section, TensorAxes
from edge.protocol.submodels import SliceMap, slice_map
from edge.protocol.variant import PLAIN, Variant

Rate = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class SubmodelConfig(Section):
    """Which part of the model each client holds, for methods with sub-models."""

    by: Literal["width", "depth", "rank"] | None = None
    """What a part has less of: width, channels of every hidden layer; depth, blocks; rank, numbers between the products
    of adapters. By default what the method has."""
    rate: Rate | Literal["memory", "deadline", "client", "round"] | dict[str, Rate] = field(default=1.0, hash=False)
    """Share of the channels of every hidden layer, of the model's depths, or of ``adapter.rank``, rounded up: one
    number for all; a number for each device of the fleet, ``{ raspberry-pi-4 = 0.25, jetson-nano = 1.0 }``; ``memory``:
    the largest of ``rates`` that fits the device; ``deadline``: the largest with which a visit without contention ends
    in time; ``client``: drawn once for each client; ``round``: drawn for each visit. 1: the whole model."""
    rates: Annotated[tuple[Rate, ...], Field(min_length=1, max_length=32)] = (1.0, 0.5, 0.25, 0.125, 0.0625)
    """Rates that are chosen from, by ``memory``, ``deadline``, ``client`` and ``round``; HeteroFL's a to e."""
    shares: tuple[Annotated[float, Field(ge=0)], ...] = ()
    """Share of clients (``client``) or probability (``round``) of each of ``rates``; by default all the same."""
    deadline: Seconds | None = None
    """deadline: when a visit must have ended; by default rounds.deadline."""

    @property
    def levels(self) -> tuple[float, ...]:
        """All rates that a visit may have, the largest first."""
        if isinstance(self.rate, float | int):
            return (float(self.rate),)
        return tuple(sorted(set(self.rate.values() if isinstance(self.rate, dict) else self.rates), reverse=True))


WINDOWS = "windows"
"""Name of an array of a checkpoint"""
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
    windows: dict[int, int] = field(default_factory=dict)
    """client -> window of its last visit that counted, if parts are windows"""
    _maps: dict[tuple[float, int], SliceMap] = field(default_factory=dict)

    def variant(self, client: int, round: int) -> Variant:
        """The variant of a visit: its part."""
        return self._variant(self.rate(client, round), round)

    def received(self, client: int, variant: Variant) -> None:
        """Note that a visit of this variant counts."""
        if variant.window is not None:
            self.windows[client] = variant.window

    def own_variant(self, client: int) -> Variant:
        """That of an evaluation of a client's model: with the window that it has trained last, or before its first
        visit the newest that any client has."""
        return self._variant(self.own_rate(client), self.windows.get(client, self._newest))

    def global_variant(self) -> Variant:
        """That of an evaluation of the global model: its parts are evaluated at the newest window that was trained."""
        return Variant(window=self._newest) if self.rolls else PLAIN

    @property
    def _newest(self) -> int:
        return max(self.windows.values(), default=0)

    def state(self) -> dict[str, NDArray[np.generic]]:
        """The windows, for a checkpoint: (clients with a visit, 2)."""
        return {WINDOWS: np.array(sorted(self.windows.items()), np.int64).reshape(-1, 2)} if self.rolls else {}

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Inverse of `state`."""
        if self.rolls:
            self.windows = dict(np.asarray(state[WINDOWS], np.int64).tolist())

    def _variant(self, rate: float, round: int) -> Variant:
        return Variant(rate, round if self.rolls else None)

    def variants(self, round: int) -> list[Variant]:
        """All that visits of a round may have, the largest first."""
        return [self._variant(rate, round) for rate in self.levels]

    def slices(self, variant: Variant) -> SliceMap:
        """The part that a visit of this variant has."""
        key = variant.share, variant.window or 0
        if key not in self._maps:
            if len(self._maps) >= MOST_MAPS:
                self._maps.clear()
            self._maps[key] = slice_map(self.axes, variant)
        return self._maps[key]

    def counted(self, slices: SliceMap, client: int, key: str) -> NDArray[np.bool_] | None:
        """Which of a client's numbers of this key count; None: all."""
        classes = None if self.held is None else slices.classes(key)
        if classes is None or self.held is None:
            return None
        counted: NDArray[np.bool_] = (classes < 0) | self.held[client][classes]
        return counted
