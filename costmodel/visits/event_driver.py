"""Visits under way one by one, and the links that they share, driven by events of an `EventQueue`.

The driver of `costmodel.visits.live_visit` and `costmodel.network.fair_link`; `costmodel.clock` has the queue. Nothing
here knows of SimPy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

from costmodel.network.airtime import AirLink
from costmodel.network.bandwidth import DOWN, UP
from costmodel.network.fair_link import FairLink, Served
from costmodel.network.links import Links
from costmodel.visits.live_visit import LiveVisit

Link = TypeVar("Link", bound=FairLink | AirLink)
FLOW_ENDS, PASSES, BREAKS, CHANGES, DUE, FLOW_BEGINS, SETTLES = range(2, 9)
"""Kinds of event in their order at one instant; SimPy's own URGENT and NORMAL come before."""


class EventQueue(Protocol):
    """Future events in order of time."""

    @property
    def now(self) -> Any:
        """Absolute virtual seconds."""

    def at(self, time: float, kind: int, order: int, call: Callable[[Any], None], value: Any = None) -> Any:
        """Call back at ``time`` with an event of value ``value``; at one time the lowest kind, then order, first."""


class MessageLinks(Protocol):
    """One direction of the links over which visits send their messages."""

    def add(self, driver: VisitDriver) -> None:
        """Begin a part of a message."""

    def leave(self, order: int) -> Served | None:
        """Cut a flow; None if the visit has none at this moment."""


class VisitDriver:
    """One visit under way: events in, the next part of the visit out.

    ``live_visits`` are the visits under way by order, this one among them: a visit that is not there any more was cut,
    and its events are ignored. ``shared_links`` are by direction.
    """

    def __init__(
        self,
        order: int,
        visit: LiveVisit,
        queue: EventQueue,
        live_visits: Mapping[int, LiveVisit],
        shared_links: Mapping[int, MessageLinks],
        on_end: Callable[[Any], None],
    ) -> None:
        self.order, self.visit = order, visit
        self._queue, self._live_visits, self._shared_links, self._on_end = queue, live_visits, shared_links, on_end

    def start(self) -> None:
        """Begin the first part."""
        self._schedule(self.visit.begin())

    def _schedule(self, planned: tuple[float, float]) -> None:
        """Schedule the flow or the end of a part at ``planned[0]``, unless it is cut at ``planned[1]``."""
        visit, queue, order = self.visit, self._queue, self.order
        time, cut = planned
        if visit.is_over:
            queue.at(time, DUE, order, self._end, self)
            return
        if cut < math.inf:
            part = visit.part
            queue.at(cut, BREAKS, order, lambda _: self._break(part))
        if time > cut:
            return
        if visit.flows:
            queue.at(time, FLOW_BEGINS, order, self._join)
        else:
            queue.at(time, PASSES, order, self.pass_on)

    def _is_under_way(self) -> bool:
        return self._live_visits.get(self.order) is self.visit and not self.visit.is_over

    def _end(self, event: Any) -> None:
        # A visit may be cut at the very instant at which it ends.
        if self._live_visits.get(self.order) is self.visit:
            self._on_end(event)

    @property
    def _links(self) -> MessageLinks:
        return self._shared_links[self.visit.direction]

    def _join(self, _: Any) -> None:
        if self._is_under_way():
            self._links.add(self)

    def part_sent(self, served: Served) -> None:
        """A part of the message has been sent: the next follows, or, half a round trip later, all has arrived."""
        time, is_arrival = self.visit.part_sent(served)
        if time <= self.visit.cut:
            kind, callback = (PASSES, self.pass_on) if is_arrival else (FLOW_BEGINS, self._join)
            self._queue.at(time, kind, self.order, callback)

    def try_again(self, time: float | None) -> None:
        """Begin the next part of a stalled message at ``time``, if it is not to begin anyway."""
        if time is not None:
            self._queue.at(time, FLOW_BEGINS, self.order, self._join)

    def pass_on(self, _: Any) -> None:
        """End this part, and begin the next."""
        if self._is_under_way():
            self._schedule(self.visit.go_on(self._queue.now))

    def _break(self, part: int) -> None:
        if not self._is_under_way() or self.visit.part != part:
            return
        served = self._links.leave(self.order)  # first: it may restart the message
        self.visit.message.broken_off(self._queue.now, served)
        self._schedule((self.visit.broken(self._queue.now), math.inf))


class SharedLinks(ABC, Generic[Link]):
    """One direction of the shared links, event by event; or both, where access points share air.

    Subclasses say, for their kind of link,

    - `_join`: how a part of a message becomes a flow,
    - `_limit`: how the flow follows the rate of the client's own link.
    """

    def __init__(self, queue: EventQueue, link: Link) -> None:
        self._queue = queue
        self._link = link
        self._settling = False
        self._wake_at = math.inf
        self._drivers: dict[int, VisitDriver] = {}

    def add(self, driver: VisitDriver) -> None:
        """Begin a part of a message."""
        now, visit = self._queue.now, driver.visit
        cap, until = visit.rate(now)
        if visit.message.is_fresh:
            self._follow(until, driver, visit.part)
        if cap == 0 and visit.has_outage(now):
            visit.message.stalls(now)
        elif visit.message.may_begin(now):
            self._drivers[driver.order] = driver
            self._join(now, driver.order, visit, cap)
            self._settle()

    @abstractmethod
    def _join(self, now: float, order: int, visit: LiveVisit, rate: float) -> None:
        """Let the next part of the message join the link; ``rate``: of the client's own link, bit/s."""

    @abstractmethod
    def _limit(self, now: float, order: int, visit: LiveVisit, rate: float) -> None:
        """Limit the part under way to a new ``rate`` of the client's own link, bit/s."""

    def leave(self, order: int) -> Served | None:
        """Cut a flow; None if the visit has none at this moment."""
        if self._drivers.pop(order, None) is None:
            return None
        served = self._link.remove(self._queue.now, order)
        self._settle()
        return served

    def _follow(self, until: float, driver: VisitDriver, part: int) -> None:
        """Schedule the next change of the rate of the client's own link."""
        if until < math.inf:
            self._queue.at(until, CHANGES, driver.order, lambda _: self._change(driver, part))

    def _change(self, driver: VisitDriver, part: int) -> None:
        if driver.visit.part == part:
            now, message = self._queue.now, driver.visit.message
            cap, until = driver.visit.rate(now)
            self._follow(until, driver, part)
            # The order of a visit that was cut may be another's by now.
            is_sending = self._drivers.get(driver.order) is driver
            if cap == 0 and driver.visit.has_outage(now):
                if is_sending:
                    message.stalls(now, self.leave(driver.order))
            elif message.is_stalled:
                driver.try_again(message.try_at(now))
            elif is_sending:
                self._limit(now, driver.order, driver.visit, cap)
                self._settle()

    def _settle(self) -> None:
        """Schedule the end of the next flow, after all other events of this instant."""
        if not self._settling:
            self._settling = True
            self._queue.at(self._queue.now, SETTLES, 0, self._wake_next)

    def _wake_next(self, _: Any) -> None:
        self._settling = False
        end = self._link.next_finish()
        if end < math.inf and end != self._wake_at:
            self._wake_at = end
            self._queue.at(end, FLOW_ENDS, 0, self._wake)

    def _wake(self, _: Any) -> None:
        now = self._queue.now
        if self._link.next_finish() > now:  # flows have joined since; the link must stay as it is
            return
        self._wake_at = math.inf
        for order, served in self._link.finished(now):
            self._drivers.pop(order).part_sent(served)
        self._settle()


class FairLinks(SharedLinks[FairLink]):
    """One direction of links whose flows have max-min fair rates."""

    def _join(self, now: float, order: int, visit: LiveVisit, rate: float) -> None:
        bits, cap = visit.message.next_part(now, rate)
        self._link.join(now, order, bits, cap, visit.access_link)

    def _limit(self, now: float, order: int, visit: LiveVisit, rate: float) -> None:
        self._link.change(now, order, visit.message.cap(rate))


class AirLinks(SharedLinks[AirLink]):
    """Both directions of access points that share air: a slow link of a client takes more of it."""

    def _join(self, now: float, order: int, visit: LiveVisit, rate: float) -> None:
        bits, cap = visit.message.next_part(now, rate)
        self._link.join(now, order, bits, cap, visit.access_link, visit.direction, rate)

    def _limit(self, now: float, order: int, visit: LiveVisit, rate: float) -> None:
        self._link.change(now, order, visit.message.cap(rate), rate)


def shared_links(queue: EventQueue, links: Links) -> dict[int, MessageLinks]:
    """The shared links by direction; access points that share air are one for both."""
    if links.airtime is not None:
        air = AirLink((links.down, links.up), len(links.site_down), links.airtime)
        return dict.fromkeys((DOWN, UP), AirLinks(queue, air))
    return {
        direction: FairLinks(queue, FairLink(links.capacity(direction), links.access_capacity(direction)))
        for direction in (DOWN, UP)
    }
