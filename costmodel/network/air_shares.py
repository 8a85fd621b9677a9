"""Exact rates of fluid flows that share the air of access points, in both directions, behind a server's two links.

A flow i of link rate r_i that sends x_i bit/s is on the air for the fraction x_i / r_i of the time. The flows of an
access point, downloads and uploads, fill at most all of it: sum of x_i / r_i <= 1. Behind the access points, the
server's downlink and uplink carry at most their capacities. Nothing here knows of time, frames or collisions: a link
rate is the rate of a station alone on the air, after all overhead.

A flow runs at x_i = min(its cap, its share of the air, the level w of its direction at the server), the share being

- ``time``: s r_i, the same fraction s of the time for all flows of the access point: airtime fairness;
- ``packets``: v, the same rate for all: equal chances to send a packet, so that a slow station slows all others.

Each level is infinite, or fills its access point or its direction at the server. The levels exist and the rates are
unique: for given w the level of an access point is, since the time in use grows with it. A larger w of one direction
takes air from other flows, so it raises the load of its direction and lowers the other's. Weighted by 1 / w, each
flow that rises counts for at least as much as the flows that lose its air: they run at their share s r_i <= w, and it
at w <= s r_i. So the derivative of the two loads is an M-matrix, and at most one w fills each direction.

``packets`` is plain 802.11: M. Heusse, F. Rousseau, G. Berger-Sabbatel, A. Duda, Performance anomaly of 802.11b,
INFOCOM 2003. ``time`` is the scheduler of Linux: T. Høiland-Jørgensen, M. Kazior, D. Täht, P. Hurtig, A. Brunstrom,
Ending the anomaly: achieving low latency and airtime fairness in WiFi, USENIX ATC 2017.

Against the frame-by-frame simulation of both in the INET Framework (showcase IEEE 802.11 Rate Anomaly; four stations at
54 Mbit/s and one slower): with ``packets`` a cell carries 1 to 4 % more than simulated while the slow station has
12 Mbit/s or more, 8 % at 9 and 13 % at 6 Mbit/s, since collisions with its long frames are not modelled; where the
access point sends in turn, within 3 %. With ``time`` fast stations get 7 % less, and the slow one 1.0 Mbit/s in place
of 0.7, since the simulated scheduler charges stations for frames without the gaps and acknowledgements around them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles
from costmodel.network.bandwidth import DOWN, UP
from costmodel.network.water_filling import ROUNDING, SLACK

FAIR = ("time", "packets")
"""How the flows of an access point share the air."""
MOST_STEPS = 200
"""Bound on the steps to one level: bisection alone ends earlier, at neighbouring numbers."""


@dataclass(frozen=True)
class _Loads:
    """The flows at given levels of the server."""

    rates: Doubles
    """(flows,) bit/s"""
    load: Doubles
    """(2,) Sum of the rates of each direction"""
    slope: Doubles
    """(2, 2) Derivative of ``load`` by the server's levels"""


@dataclass(frozen=True)
class AirDemand:
    """The flows of all access points, each array of shape (flows,), and the levels that they find."""

    access_link: NDArray[np.intp]
    direction: NDArray[np.intp]
    cap: Doubles
    air_per_bit: Doubles
    """1 / link rate: seconds on the air of one bit; 0 for a link of rate 0, whose cap is 0"""
    unit: Doubles
    """A flow's rate at an access point's level 1: its link rate (``time``) or 1 (``packets``)"""
    access_points: int

    def rates(self, capacity: tuple[float, float]) -> Doubles:
        """(flows,) Rates behind a server of these capacities, bit/s."""
        levels = np.array([math.inf, math.inf])
        loads = self._at(levels)
        if (loads.load > np.array(capacity) * SLACK).any():
            loads = self._fill(UP, levels, capacity)
        return loads.rates

    def _fill(self, direction: int, levels: Doubles, capacity: tuple[float, float]) -> _Loads:
        """Find the level that fills a direction at the server; for UP with the level that fills DOWN at each step.

        The load is piecewise linear in the level and does not decrease. Newton's method ends when a step stays on one
        piece; between bounds that each step narrows it always ends.
        """
        levels = levels.copy()
        levels[direction] = math.inf
        loads = self._below(direction, levels, capacity)
        room = capacity[direction]
        if loads.load[direction] <= room * SLACK:
            return loads
        of_direction = self.direction == direction
        low, high = room / int(of_direction.sum()), float(self.cap[of_direction].max())
        levels[direction] = low
        for step in range(MOST_STEPS):
            loads = self._below(direction, levels, capacity)
            excess, level = float(loads.load[direction]) - room, float(levels[direction])
            if abs(excess) <= ROUNDING * room:
                break
            low, high = (level, high) if excess < 0 else (low, level)
            slope = self._slope(direction, loads)
            newton = level - excess / slope if slope > 0 else math.nan
            # Every fourth step halves the bounds, for loads of many pieces.
            levels[direction] = newton if low < newton < high and step % 4 < 3 else (low + high) / 2
            if not low < levels[direction] < high:
                break
        return loads

    def _below(self, direction: int, levels: Doubles, capacity: tuple[float, float]) -> _Loads:
        return self._fill(DOWN, levels, capacity) if direction == UP else self._at(levels)

    @staticmethod
    def _slope(direction: int, loads: _Loads) -> float:
        """Derivative of the load of a direction by its level; of UP, with DOWN kept full if its level is finite."""
        slope = loads.slope
        if direction == UP and slope[DOWN, DOWN] > 0:
            return float(slope[UP, UP] - slope[UP, DOWN] * slope[DOWN, UP] / slope[DOWN, DOWN])
        return float(slope[direction, direction])

    def _at(self, levels: Doubles) -> _Loads:
        """The flows at these levels of the server.

        All flows of a full access point start at its level, the lowest that it can have; those whose limits the level
        has reached leave it, which raises it, until none does.
        """
        limit = np.minimum(self.cap, levels[self.direction])
        per_level = self.unit * self.air_per_bit
        is_full = self._sums(limit * self.air_per_bit) > SLACK
        at_level = is_full[self.access_link]
        level = np.zeros(self.access_points)
        while at_level.any():
            free = 1.0 - self._sums(np.where(at_level, 0.0, limit * self.air_per_bit))
            share = self._sums(np.where(at_level, per_level, 0.0))
            np.divide(free, share, out=level, where=is_full & (share > 0))
            stays = at_level & (limit > self.unit * level[self.access_link])
            if (stays == at_level).all():
                break
            at_level = stays
        rates = np.where(at_level, self.unit * level[self.access_link], limit)
        load = np.asarray(np.bincount(self.direction, rates, minlength=2), np.float64)
        is_open = np.isinf(levels).all()
        return _Loads(rates, load, np.zeros((2, 2)) if is_open else self._slopes(limit < self.cap, at_level, per_level))

    def _slopes(self, below_cap: NDArray[np.bool_], at_level: NDArray[np.bool_], per_level: Doubles) -> Doubles:
        at_server = below_cap & ~at_level
        share = self._sums(np.where(at_level, per_level, 0.0))
        slope = np.zeros((2, 2))
        for by in (DOWN, UP):
            rises = at_server & (self.direction == by)
            taken = self._sums(np.where(rises, self.air_per_bit, 0.0))
            falls = np.divide(taken, share, out=np.zeros_like(share), where=share > 0)[self.access_link]
            lost = np.where(at_level, self.unit * falls, 0.0)
            slope[:, by] = -np.bincount(self.direction, lost, minlength=2)
            slope[by, by] += int(rises.sum())
        return slope

    def _sums(self, values: Doubles) -> Doubles:
        """(access points,) Sums over the flows of each."""
        return np.asarray(np.bincount(self.access_link, values, minlength=self.access_points), np.float64)
