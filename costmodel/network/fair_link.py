"""Exact max-min fair sharing of links among fluid flows, each behind a cap of its own, event by event.

At any moment a flow runs at min(its cap, w), where the water level w is the one number that fills the link (infinite
while the sum of all caps is within the capacity). With access links there are two levels: the flows of an access link
run at the lower of its level and the server's. Behind a server's link that is never full, access links have nothing in
common, and each is solved by itself: events of one leave the others as they are, to the bit.
`costmodel.network.transfers` solves a whole batch. Nothing here draws a random number or knows the size of a message.

An event costs O(log n) for n flows, O(log n) more for each flow that the level passes, and O(access links), little of
it where each is by itself: bits sent at the level are counted by a virtual time V with dV = w dt, in which the end of a
flow that is throttled to the level is fixed; the end of a flow that runs at its cap is fixed in seconds. So a flow is
updated only when it changes side.

Times are absolute float64. A flow that is never throttled ends at ``start + bits / cap``, to the bit, whatever the
other flows. At one instant `costmodel.network.transfers` first removes finished flows, then lets flows leave, then
changes caps, then lets flows join, each in ascending order of flow number. A caller that drives a `FairLink` in this
order agrees with it to the bit, whatever the number of calls of `FairLink.next_finish` and of changes to the same cap.

Sharing by progressive filling: D. Bertsekas, R. Gallager, Data Networks, 2nd ed., 1992, section 6.5.2. Virtual time:
A. Parekh, R. Gallager, A generalized processor sharing approach to flow control in integrated services networks: the
single-node case, IEEE/ACM Trans. Networking 1(3), 1993.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from costmodel.network.water_filling import SLACK, AccessLink, Flow, WaterLevel


class Served(NamedTuple):
    """The totals of a flow that has left the link."""

    finish: float
    """Absolute seconds at which the last bit was sent, or at which the flow was removed."""
    sent: float
    """Bits."""
    contention_seconds: float
    """Seconds with a cap above 0, less the seconds of its bits at that cap; 0.0 if it was never throttled."""
    paused: float
    """Seconds with a cap of 0."""
    access_seconds: float = 0.0
    """Seconds for which the access link, and not its own cap, set its rate."""
    server_seconds: float = 0.0
    """Seconds for which the server's link set it."""
    window_seconds: float = 0.0
    """Seconds for which the window of its sender set it, where the link knows windows."""
    threshold: float = math.inf
    """Then that of `costmodel.network.senders.Path` for the connection's next message."""


class FairLink:
    """A link of ``capacity`` bit/s, and behind it access links of ``access_capacity[g]`` bit/s each, if any.

    Operations come in order of time, and none after `next_finish` until `finished` has removed that flow. The number of
    a flow may be used again when the flow has left the link.
    """

    def __init__(self, capacity: float, access_capacity: Sequence[float] = ()) -> None:
        assert capacity > 0, capacity
        assert all(rate > 0 for rate in access_capacity), access_capacity
        serials = count(1)
        self._capacity = capacity
        # Without access links the server's link is solved like one of them.
        rates = access_capacity or (capacity,)
        self._access_links = [AccessLink(float(rate), serials, number) for number, rate in enumerate(rates)]
        self._ends = [math.inf] * len(self._access_links)
        self._has_one = not access_capacity
        self._flows: dict[int, Flow] = {}
        self._now = -math.inf
        self._next = math.inf

    def join(self, now: float, flow: int, bits: float, cap: float, access_link: int = 0) -> None:
        """Let ``flow`` start to send ``bits`` > 0 with a cap of ``cap`` bit/s; a cap of 0 pauses it."""
        assert flow not in self._flows, flow
        assert 0 < bits < math.inf, bits
        through = self._access_links[access_link]
        self._move_on(now, [through])
        self._flows[flow] = joined = Flow(flow, bits, through, now)
        through.place(joined, cap)
        self._settle([through])

    def change(self, now: float, flow: int, cap: float) -> None:
        """Change the cap of ``flow`` to ``cap`` bit/s from now on; a cap of 0 pauses it."""
        changed = self._flows[flow]
        if cap == changed.cap:
            return
        through = changed.access_link
        self._move_on(now, [through])
        through.take(changed)
        through.place(changed, cap)
        self._settle([through])

    def resize(self, now: float, capacity: float, access_capacity: Sequence[float] = ()) -> None:
        """Change the capacities from now on, to as many as there were."""
        rates = list(access_capacity) or [capacity]
        resized = [link for link, rate in zip(self._access_links, rates, strict=True) if link.capacity != rate]
        if self._capacity != capacity:
            resized = self._access_links
        if not resized:
            return
        self._move_on(now, resized)
        self._capacity = capacity
        for access_link in resized:
            access_link.capacity = rate = rates[access_link.number]
            access_link.bound = access_link.bound and rate < math.inf
        self._settle(resized)

    def demands(self) -> list[float]:
        """The caps of the flows of each access link together, or of all if there is none; bit/s."""
        return [link.at_cap.caps + link.throttled.caps for link in self._access_links]

    def rates(self) -> list[float]:
        """The present rates of the flows of each access link together, or of all if there is none; bit/s."""
        return [link.demand(link.level) for link in self._access_links]

    def remove(self, now: float, flow: int) -> Served:
        """Remove ``flow`` before its end."""
        removed = self._flows.pop(flow)
        through = removed.access_link
        self._move_on(now, [through])
        through.take(removed)
        self._settle([through])
        return self._served(now, removed, removed.sent)

    def next_finish(self) -> float:
        """The absolute seconds at which the next flow ends if nothing changes before; inf if none does."""
        return self._next

    def finished(self, now: float) -> list[tuple[int, Served]]:
        """Remove all flows that have ended by ``now``, in ascending order of their numbers."""
        if now < self._next:
            return []
        # By the predicted ends: advanced to now, virtual time may be short of them by rounding.
        due = [link for link, end in zip(self._access_links, self._ends, strict=True) if end <= now]
        ended = sorted(flow.number for access_link in due for flow in access_link.ended(now))
        self._move_on(now, due)
        served = []
        for number in ended:
            flow = self._flows.pop(number)
            flow.access_link.take(flow)
            served.append((number, self._served(now, flow, flow.bits)))
        self._settle(due)
        return served

    def _served(self, now: float, flow: Flow, sent: float) -> Served:
        held, by_server = flow.held_seconds, flow.server_seconds
        if self._is_apart:
            by_server = held if self._has_one else 0.0
        return Served(now, sent, flow.contention_seconds, flow.paused, held - by_server, by_server)

    @property
    def _is_apart(self) -> bool:
        """Whether the level of an access link depends on its own flows alone."""
        return self._has_one or self._capacity == math.inf

    def _move_on(self, now: float, touched: Sequence[AccessLink]) -> None:
        """Advance to ``now``; an access link that is by itself only if it is among those ``touched``, whose flows or
        rates will change: twice a part of the time would round another way."""
        assert self._now <= now <= self._next, (self._now, now, self._next)
        self._now = now
        for access_link in touched if self._is_apart else self._access_links:
            access_link.move_on(now)

    def _settle(self, touched: Sequence[AccessLink]) -> None:
        """Find the levels that fill the links, for the present flows; of those that are by themselves, only of these.

        The rate sent at a server's level w is a sum of min(cap, w) for each flow, and at most the capacity for each
        access link: concave. Every term is a minimum, so as long as some terms are taken on the wrong branch, the sum
        is too large and the level that fills the link too low; correcting a term raises the level. So first the flows
        and access links above the level are throttled, then those that it has reached are released. A rising level
        never undoes the first step, and each term changes branch at most once, so this ends, with rounding too.
        """
        if self._is_apart:
            for access_link in touched:
                access_link.fill()
                self._ends[access_link.number] = access_link.next_finish()
            self._next = min(self._ends)
            return
        water = WaterLevel(self._capacity)
        for access_link in self._access_links:
            if access_link.bound:
                access_link.fill()
                water.raise_level(-access_link.capacity, 0)
            else:
                water.raise_level(-access_link.at_cap.caps, access_link.throttled.count)
        self._lower(water)
        self._raise(water)
        for access_link in self._access_links:
            if not access_link.bound:
                access_link.level = water.level
        self._ends = [access_link.next_finish() for access_link in self._access_links]
        self._next = min(self._ends)

    def _lower(self, water: WaterLevel) -> None:
        """Throttle the flows whose caps are above the level, also those of access links that are not full any more."""
        for access_link in self._access_links:
            if access_link.bound and access_link.level > water.level * SLACK:
                access_link.bound = False
                water.raise_level(access_link.capacity - access_link.at_cap.caps, access_link.throttled.count)
            if not access_link.bound:
                access_link.throttle(water)

    def _raise(self, water: WaterLevel) -> None:
        """Release the flows whose caps the level has reached, and bind the access links that become full."""
        level = math.nan
        while level != water.level:
            level = water.level
            for access_link in self._access_links:
                if not access_link.bound:
                    access_link.release(water)
                    if access_link.demand(water.level) > access_link.capacity * SLACK:
                        access_link.bound = True
                        water.raise_level(access_link.at_cap.caps - access_link.capacity, -access_link.throttled.count)
                        access_link.fill()
