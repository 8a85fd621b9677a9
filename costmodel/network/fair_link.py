"""Exact max-min fair sharing of links among fluid flows, each behind a cap of its own, event by event.

At any moment a flow runs at min(its cap, w), where the water level w is the one number that fills the link (infinite
while all caps together fit in). With sites there are two levels: a flow's own cap, its site's link, the server's link;
the flows of a site see the lower of the site's level and the server's. `costmodel.network.transfers` solves a whole
batch. Nothing here draws a random number or knows what a byte on the wire is.

An event costs O(log n) for n flows, O(log n) more for each flow that the level passes, and O(sites): bits sent at the
level are counted by a virtual time V with dV = w dt, in which the end of a flow that is held at the level is fixed; the
end of a flow that runs at its cap is fixed in seconds. So no flow need be touched while it stays on one side.

Times are absolute float64. A flow that is never held below its cap ends at ``start + bits / cap``, to the bit, whoever
else is on the link. At one instant `costmodel.network.transfers` first takes off what has finished, then lets flows
leave, then changes caps, then lets flows join, each in ascending order of flow number. Who drives a `FairLink` in this
order agrees with it to the bit, however often `FairLink.next_finish` is asked or a cap is "changed" to itself.

Sharing by progressive filling: D. Bertsekas, R. Gallager, Data Networks, 2nd ed., 1992, section 6.5.2. Virtual time:
A. Parekh, R. Gallager, A generalized processor sharing approach to flow control in integrated services networks: the
single-node case, IEEE/ACM Trans. Networking 1(3), 1993.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from costmodel.network.water_filling import SLACK, AccessLink, Flow, WaterLevel


@dataclass(frozen=True, slots=True)
class Served:
    """How one flow fared, when it is off the link."""

    finish: float
    """Absolute seconds at which the last bit was sent, or at which it left."""
    sent: float
    """Bits."""
    held: float
    """Seconds lost to sharing: those with a cap above 0 less those its bits take at that cap; 0.0 if never held."""
    paused: float
    """Seconds with a cap of 0."""


class FairLink:
    """A link of ``capacity`` bit/s in use, and behind it one of ``site_capacity[g]`` bit/s for each site g, if any.

    Operations come in order of time, and none after `next_finish` until `finished` has taken that flow off. A flow's
    number may be used again when the flow is off the link.
    """

    def __init__(self, capacity: float, site_capacity: Sequence[float] = ()) -> None:
        assert capacity > 0, capacity
        assert all(each > 0 for each in site_capacity), site_capacity
        serials = count(1)
        self._capacity = capacity
        self._sites = [AccessLink(float(each), serials) for each in site_capacity or (math.inf,)]
        self._flows: dict[int, Flow] = {}
        self._now = -math.inf
        self._next = math.inf

    def join(self, now: float, flow: int, bits: float, cap: float, site: int = 0) -> None:
        """Let ``flow`` start to send ``bits`` > 0 behind a cap of ``cap`` bit/s; a cap of 0 pauses it."""
        assert flow not in self._flows, flow
        assert 0 < bits < math.inf, bits
        self._move_on(now)
        self._flows[flow] = joined = Flow(flow, bits, self._sites[site], now)
        joined.site.place(joined, cap)
        self._settle()

    def change(self, now: float, flow: int, cap: float) -> None:
        """Let ``flow`` run behind a cap of ``cap`` bit/s from now on; a cap of 0 pauses it."""
        changed = self._flows[flow]
        if cap == changed.cap:
            return
        self._move_on(now)
        changed.site.take(changed)
        changed.site.place(changed, cap)
        self._settle()

    def remove(self, now: float, flow: int) -> Served:
        """Take ``flow`` off before its end; what it left unsent is lost."""
        self._move_on(now)
        left = self._flows.pop(flow)
        left.site.take(left)
        self._settle()
        return Served(now, left.sent, left.held, left.paused)

    def next_finish(self) -> float:
        """The absolute seconds at which the next flow ends if nothing happens before; inf if none will."""
        return self._next

    def finished(self, now: float) -> list[tuple[int, Served]]:
        """Take off all flows that have ended by ``now``, in ascending order of their numbers."""
        if now < self._next:
            return []
        # By the ends as foretold: moved on to now, virtual time may be short of them by rounding.
        ended = sorted(flow.number for site in self._sites for flow in site.ended(now))
        self._move_on(now)
        served = []
        for number in ended:
            flow = self._flows.pop(number)
            flow.site.take(flow)
            served.append((number, Served(now, flow.bits, flow.held, flow.paused)))
        self._settle()
        return served

    def _move_on(self, now: float) -> None:
        assert self._now <= now <= self._next, (self._now, now, self._next)
        self._now = now
        for site in self._sites:
            site.move_on(now)

    def _settle(self) -> None:
        """Find the levels that fill the links, for the flows that are there now.

        What is sent at a server's level w is a sum of parts, min(cap, w) for each flow and at most its capacity for
        each site: concave. Every part is a minimum, so whichever branch each is taken to be on, the sum comes out
        too large and the level that fills the link too low, until all are on the right one; and whenever one is put
        right the level rises. So first flows and sites above the level are put under it, then those that it has
        reached run at their caps again; a rising level never undoes the first, and each goes one way only, so this
        ends, rounding or not.
        """
        water = WaterLevel(self._capacity)
        for site in self._sites:
            if site.bound:
                site.fill()
                water.raise_level(-site.capacity, 0)
            else:
                water.raise_level(-site.own.caps, site.held.count)
        self._lower(water)
        self._raise(water)
        for site in self._sites:
            if not site.bound:
                site.level = water.level
        self._next = min([site.next_finish() for site in self._sites])

    def _lower(self, water: WaterLevel) -> None:
        """Hold the flows whose caps are above the water, and the sites whose own links would let them be."""
        for site in self._sites:
            if site.bound and site.level > water.level * SLACK:
                site.bound = False
                water.raise_level(site.capacity - site.own.caps, site.held.count)
            if not site.bound:
                site.throttle(water)

    def _raise(self, water: WaterLevel) -> None:
        """Let go the flows whose caps the water has reached, and leave the sites that fill their own links to them."""
        level = math.nan
        while level != water.level:
            level = water.level
            for site in self._sites:
                if not site.bound:
                    site.release(water)
                    if site.demand(water.level) > site.capacity * SLACK:
                        site.bound = True
                        water.raise_level(site.own.caps - site.capacity, -site.held.count)
                        site.fill()
