"""Shared air among fluid flows, event by event: stations of one access point share its time, in both directions.

The operations, their order and their totals are those of `costmodel.network.fair_link.FairLink`;
`costmodel.network.air_shares` defines the rates. Nothing here draws a random number or knows the size of a message.

Rates are constant from one instant with an operation to the next. A flow that is never slowed ends at ``start + bits /
cap``, to the bit, whatever the other flows.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Doubles
from costmodel.network.air_shares import FAIR, AirDemand
from costmodel.network.fair_link import Served


class AirLink:
    """Access points of one air each, behind a server of ``capacity`` bit/s (down, up); ``fair``: one of `FAIR`.

    Operations come in order of time, and none after `next_finish` until `finished` has removed that flow. The number of
    a flow may be used again when the flow has left. An instant costs O(flows) in numpy, times the few steps to the
    levels.
    """

    def __init__(self, capacity: tuple[float, float], access_points: int, fair: str = "time") -> None:
        assert min(capacity) > 0, capacity
        assert access_points > 0, access_points
        assert fair in FAIR, fair
        self._capacity, self._access_points, self._fair = capacity, access_points, fair
        self._flows = _AirFlows()
        self._now = -math.inf
        self._next = math.inf
        self._planned = True

    def join(
        self, now: float, flow: int, bits: float, cap: float, access_link: int, direction: int, link_rate: float
    ) -> None:
        """Let ``flow`` start to send ``bits`` > 0 with a cap of at most its ``link_rate``, bit/s; a cap of 0 pauses it.

        ``direction``: DOWN or UP of `costmodel.network.bandwidth`.
        """
        assert 0 < bits < math.inf, bits
        self._move_on(now)
        self._flows.add(flow, bits, access_link, direction, now)
        self._flows.limit(flow, cap, link_rate)
        self._planned = False

    def change(self, now: float, flow: int, cap: float, link_rate: float) -> None:
        """Change the cap and the link rate of ``flow`` from now on, bit/s; a cap of 0 pauses it."""
        if self._flows.limits(flow) == (cap, link_rate):
            return
        self._move_on(now)
        self._flows.send_until(now, self._flows.place(flow))
        self._flows.limit(flow, cap, link_rate)
        self._planned = False

    def remove(self, now: float, flow: int) -> Served:
        """Remove ``flow`` before its end."""
        self._move_on(now)
        self._planned = False
        return self._flows.remove(flow, now)

    def next_finish(self) -> float:
        """The absolute seconds at which the next flow ends if nothing changes before; inf if none does."""
        self._plan()
        return self._next

    def finished(self, now: float) -> list[tuple[int, Served]]:
        """Remove all flows that have ended by ``now``, in ascending order of their numbers."""
        if now < self.next_finish():
            return []
        self._move_on(now)
        self._planned = False
        return [(flow, self._flows.remove(flow, now, is_whole=True)) for flow in self._flows.ended(now)]

    def rates(self) -> dict[int, float]:
        """The present rate of each flow by its number, bit/s."""
        self._plan()
        return self._flows.rates()

    def _move_on(self, now: float) -> None:
        if now != self._now:
            self._plan()
            assert self._now < now <= self._next, (self._now, now, self._next)
            self._now = now

    def _plan(self) -> None:
        """Find the rates and ends of the present flows."""
        if not self._planned:
            rates = self._flows.demand(self._access_points, self._fair).rates(self._capacity)
            self._next = self._flows.go_on_at(rates, self._now)
            self._planned = True


class _AirFlows:
    """The flows on the air, one column each; times in absolute seconds, rates in bit/s.

    Rows: those of `_ROWS`. ``since`` is the time by which ``sent`` bits had been sent.
    """

    _ROWS = ("access_link", "direction", "bits", "cap", "link_rate", "rate", "sent", "since", "end", "held", "paused")

    def __init__(self) -> None:
        self._table = np.zeros((len(self._ROWS), 64))
        self._numbers: list[int] = []
        self._places: dict[int, int] = {}

    def _row(self, name: str) -> Doubles:
        row: Doubles = self._table[self._ROWS.index(name), : len(self._numbers)]
        return row

    def place(self, flow: int) -> NDArray[np.intp]:
        """The column of a flow, as an array of one."""
        return np.array([self._places[flow]])

    def add(self, flow: int, bits: float, access_link: int, direction: int, now: float) -> None:
        """Add a flow that is paused until `limit`."""
        assert flow not in self._places, flow
        place = self._places[flow] = len(self._numbers)
        if place == self._table.shape[1]:
            self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
        self._numbers.append(flow)
        self._table[:, place] = (access_link, direction, bits, 0.0, 0.0, 0.0, 0.0, now, math.inf, 0.0, 0.0)

    def limits(self, flow: int) -> tuple[float, float]:
        """(cap, link rate) of a flow."""
        place = self._places[flow]
        return float(self._row("cap")[place]), float(self._row("link_rate")[place])

    def limit(self, flow: int, cap: float, link_rate: float) -> None:
        """Set the cap and the link rate of a flow."""
        place = self._places[flow]
        self._row("cap")[place], self._row("link_rate")[place] = cap, link_rate

    def remove(self, flow: int, now: float, *, is_whole: bool = False) -> Served:
        """Remove a flow at ``now``; ``is_whole``: its last bit has been sent, though rounding may leave a rest."""
        self.send_until(now, self.place(flow))
        place, last = self._places.pop(flow), len(self._numbers) - 1
        sent, bits, held, paused = (float(self._row(name)[place]) for name in ("sent", "bits", "held", "paused"))
        if place != last:
            self._table[:, place] = self._table[:, last]
            self._numbers[place] = self._numbers[last]
            self._places[self._numbers[place]] = place
        self._numbers.pop()
        return Served(now, bits if is_whole else sent, held, paused)

    def ended(self, now: float) -> list[int]:
        """The numbers of the flows that have ended by ``now``, ascending."""
        return sorted(self._numbers[place] for place in np.flatnonzero(self._row("end") <= now).tolist())

    def rates(self) -> dict[int, float]:
        """The rate of each flow by its number."""
        return dict(zip(self._numbers, self._row("rate").tolist(), strict=True))

    def demand(self, access_points: int, fair: str) -> AirDemand:
        """The flows as they compete for the air."""
        link_rate = self._row("link_rate")
        return AirDemand(
            self._row("access_link").astype(np.intp),
            self._row("direction").astype(np.intp),
            self._row("cap"),
            np.divide(1.0, link_rate, out=np.zeros_like(link_rate), where=link_rate > 0),
            link_rate if fair == "time" else np.ones_like(link_rate),
            access_points,
        )

    def send_until(self, now: float, which: NDArray[np.intp]) -> None:
        """Send at the present rates and caps until ``now``."""
        rate, cap, seconds = (self._row(name)[which] for name in ("rate", "cap", "since"))
        seconds = now - seconds
        # Neither a difference of two times, so that it is 0.0 at the cap, nor 0 bit/s times infinite seconds.
        share = np.divide(rate, cap, out=np.ones_like(rate), where=cap > 0)
        self._row("held")[which] += np.where(share < 1.0, seconds, 0.0) * (1.0 - share)
        self._row("paused")[which] += np.where(cap > 0, 0.0, seconds)
        sent = self._row("sent")[which] + rate * np.where(rate > 0, seconds, 0.0)
        self._row("sent")[which] = np.minimum(sent, self._row("bits")[which])
        self._row("since")[which] = now

    def go_on_at(self, rates: Doubles, now: float) -> float:
        """Send at these rates from ``now`` on; returns the first end. At an unchanged rate the end stays as it is."""
        which = np.flatnonzero(rates != self._row("rate"))
        self.send_until(now, which)
        rate = self._row("rate")[which] = rates[which]
        left = self._row("bits")[which] - self._row("sent")[which]
        self._row("end")[which] = now + np.divide(left, rate, out=np.full_like(left, math.inf), where=rate > 0)
        return float(self._row("end").min(initial=math.inf))
