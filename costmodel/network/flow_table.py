"""Flows over links that are solved all at once in numpy, as a table: a column each, with a row for each of its numbers.

Operations come in order of time, and none after `FlowTable.next_finish` until `FlowTable.finished` has been called. The
number of a flow may be used again when the flow has left.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles
from costmodel.network.fair_link import Served


class FlowTable(ABC):
    """The flows of a link, and when the next event of theirs is. Subclasses have ``join`` and ``change``."""

    _ROWS: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        self._row_at = {name: place for place, name in enumerate(self._ROWS)}
        self._table = np.zeros((len(self._ROWS), 64))
        self._numbers: list[int] = []
        self._places: dict[int, int] = {}
        self._now = -math.inf
        self._next = math.inf
        self._is_planned = True

    def remove(self, now: float, flow: int) -> Served:
        """Remove ``flow`` before its end."""
        self._move_on(now)
        return self._remove(now, flow, is_whole=False)

    def next_finish(self) -> float:
        """The absolute seconds at which the next flow ends if nothing changes before; inf if none does."""
        self._plan()
        return self._next

    def finished(self, now: float) -> list[tuple[int, Served]]:
        """Remove all flows that have ended by ``now``, in ascending order of their numbers."""
        if now < self.next_finish():
            return []
        self._move_on(now)
        ended = sorted(self._numbers[place] for place in np.flatnonzero(self._have_ended()).tolist())
        return [(flow, self._remove(now, flow, is_whole=True)) for flow in ended]

    @abstractmethod
    def _plan(self) -> None:
        """Find the rates of the present flows and ``_next``, unless ``_is_planned``."""

    @abstractmethod
    def _pass(self, seconds: float) -> None:
        """So many ``seconds`` have passed at the planned rates."""

    @abstractmethod
    def _have_ended(self) -> NDArray[np.bool_]:
        """(flows,)"""

    @abstractmethod
    def _remove(self, now: float, flow: int, is_whole: bool) -> Served:
        """``is_whole``: the last bit of the flow has been sent, though rounding may leave a rest."""

    def _row(self, name: str) -> Doubles:
        """(flows,)"""
        row: Doubles = self._table[self._row_at[name], : len(self._numbers)]
        return row

    def _move_on(self, now: float) -> None:
        if now != self._now:
            self._plan()
            assert self._now < now <= self._next, (self._now, now, self._next)
            seconds, self._now = now - self._now, now
            self._pass(seconds)

    def _add(self, now: float, flow: int, column: Mapping[str, float]) -> None:
        """Let a flow join; rows that are not named are 0."""
        assert 0 < column["bits"] < math.inf, column
        assert flow not in self._places, flow
        self._move_on(now)
        place = self._places[flow] = len(self._numbers)
        if place == self._table.shape[1]:
            self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
        self._numbers.append(flow)
        self._table[:, place] = [column.get(name, 0.0) for name in self._ROWS]
        self._is_planned = False

    def _drop(self, flow: int) -> dict[str, float]:
        """Let a flow leave, whose place the last one takes; returns its rows."""
        self._is_planned = False
        place, last = self._places.pop(flow), len(self._numbers) - 1
        column = dict(zip(self._ROWS, self._table[:, place].tolist(), strict=True))
        if place != last:
            self._table[:, place] = self._table[:, last]
            self._numbers[place] = self._numbers[last]
            self._places[self._numbers[place]] = place
        self._numbers.pop()
        return column
