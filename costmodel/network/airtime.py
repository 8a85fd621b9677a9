"""Shared air among fluid flows: stations of one access point share its time, in both directions, event by event.

The operations of `AirLink`, their order and their totals are those of `costmodel.network.fair_link.FairLink`. Nothing
here draws a random number or knows the size of a message. Rates are constant from one instant with an operation to the
next. A flow that is never slowed ends at ``start + bits / cap``, to the bit, whatever the other flows.

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
from costmodel.network.fair_link import Served
from costmodel.network.flow_table import FlowTable
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
    is_in_air: NDArray[np.bool_]
    """(flows,) Whether its access point's air sets the rate"""
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
        return self.loads(capacity).rates

    def loads(self, capacity: tuple[float, float]) -> _Loads:
        """The flows behind a server of these capacities."""
        levels = np.array([math.inf, math.inf])
        loads = self._at(levels)
        if (loads.load > np.array(capacity) * SLACK).any():
            loads = self._fill(UP, levels, capacity)
        return loads

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
            slope = float(loads.slope[direction, direction])
            if direction == UP and loads.slope[DOWN, DOWN] > 0:  # DOWN is kept full if its level is finite
                slope = float(slope - loads.slope[UP, DOWN] * loads.slope[DOWN, UP] / loads.slope[DOWN, DOWN])
            newton = level - excess / slope if slope > 0 else math.nan
            # Every fourth step halves the bounds, for loads of many pieces.
            levels[direction] = newton if low < newton < high and step % 4 < 3 else (low + high) / 2
            if not low < levels[direction] < high:
                break
        return loads

    def _below(self, direction: int, levels: Doubles, capacity: tuple[float, float]) -> _Loads:
        return self._fill(DOWN, levels, capacity) if direction == UP else self._at(levels)

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
        slope = np.zeros((2, 2)) if is_open else self._slopes(limit < self.cap, at_level, per_level)
        return _Loads(rates, at_level, load, slope)

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


class AirLink(FlowTable):
    """Access points of one air each, behind a server of ``capacity`` bit/s (down, up); ``fair``: one of `FAIR`.

    An instant costs O(flows) in numpy, times the few steps to the levels.
    """

    # Of the table of flows, one column each; times in absolute seconds, rates in bit/s. By ``since`` a flow had sent
    # ``sent`` bits.
    # ``lost``: seconds of contention; ``is_in_air``: whether its access point's air set its rate, and not the server.
    _ROWS = (
        *("access_link", "direction", "bits", "cap", "link_rate", "rate", "sent", "since", "end", "lost", "paused"),
        *("is_in_air", "air_seconds", "server_seconds"),
    )

    def __init__(self, capacity: tuple[float, float], access_points: int, fair: str = "time") -> None:
        assert min(capacity) > 0, capacity
        assert access_points > 0, access_points
        assert fair in FAIR, fair
        super().__init__()
        self._capacity, self._access_points, self._fair = capacity, access_points, fair

    def join(
        self, now: float, flow: int, bits: float, cap: float, access_link: int, direction: int, link_rate: float
    ) -> None:
        """Let ``flow`` start to send ``bits`` > 0 with a cap of at most its ``link_rate``, bit/s; a cap of 0 pauses it.

        ``direction``: DOWN or UP of `costmodel.network.bandwidth`.
        """
        column = {"access_link": access_link, "direction": direction, "bits": bits, "cap": cap, "link_rate": link_rate}
        self._add(now, flow, {**column, "since": now, "end": math.inf})

    def change(self, now: float, flow: int, cap: float, link_rate: float) -> None:
        """Change the cap and the link rate of ``flow`` from now on, bit/s; a cap of 0 pauses it."""
        place = self._places[flow]
        if (self._row("cap")[place], self._row("link_rate")[place]) == (cap, link_rate):
            return
        self._move_on(now)
        self._send_until(now, np.array([place]))
        self._row("cap")[place], self._row("link_rate")[place] = cap, link_rate
        self._is_planned = False

    def rates(self) -> dict[int, float]:
        """The present rate of each flow by its number, bit/s."""
        self._plan()
        return dict(zip(self._numbers, self._row("rate").tolist(), strict=True))

    def _pass(self, seconds: float) -> None:
        """Flows are updated only when their rates change."""

    def _have_ended(self) -> NDArray[np.bool_]:
        return np.asarray(self._row("end") <= self._now)

    def _plan(self) -> None:
        """Find the rates and ends of the present flows. At an unchanged rate the end stays as it is."""
        if self._is_planned:
            return
        link_rate = self._row("link_rate")
        demand = AirDemand(
            self._row("access_link").astype(np.intp),
            self._row("direction").astype(np.intp),
            self._row("cap"),
            np.divide(1.0, link_rate, out=np.zeros_like(link_rate), where=link_rate > 0),
            link_rate if self._fair == "time" else np.ones_like(link_rate),
            self._access_points,
        )
        loads = demand.loads(self._capacity)
        which = np.flatnonzero(loads.rates != self._row("rate"))
        self._send_until(self._now, which)
        rate = self._row("rate")[which] = loads.rates[which]
        self._row("is_in_air")[which] = loads.is_in_air[which]
        left = self._row("bits")[which] - self._row("sent")[which]
        ends = np.divide(left, rate, out=np.full_like(left, math.inf), where=rate > 0)
        self._row("end")[which] = self._now + ends
        self._next = float(self._row("end").min(initial=math.inf))
        self._is_planned = True

    def _send_until(self, now: float, which: NDArray[np.intp]) -> None:
        """Send at the present rates and caps until ``now``."""
        rate, cap, seconds = (self._row(name)[which] for name in ("rate", "cap", "since"))
        seconds = now - seconds
        # Neither a difference of two times, so that it is 0.0 at the cap, nor 0 bit/s times infinite seconds.
        share = np.divide(rate, cap, out=np.ones_like(rate), where=cap > 0)
        held = np.where(share < 1.0, seconds, 0.0)
        self._row("lost")[which] += held * (1.0 - share)
        is_in_air = self._row("is_in_air")[which] > 0
        self._row("air_seconds")[which] += np.where(is_in_air, held, 0.0)
        self._row("server_seconds")[which] += np.where(is_in_air, 0.0, held)
        self._row("paused")[which] += np.where(cap > 0, 0.0, seconds)
        sent = self._row("sent")[which] + rate * np.where(rate > 0, seconds, 0.0)
        self._row("sent")[which] = np.minimum(sent, self._row("bits")[which])
        self._row("since")[which] = now

    def _remove(self, now: float, flow: int, is_whole: bool) -> Served:
        self._send_until(now, np.array([self._places[flow]]))
        one = self._drop(flow)
        totals = (one[name] for name in ("lost", "paused", "air_seconds", "server_seconds"))
        return Served(now, one["bits" if is_whole else "sent"], *totals)
