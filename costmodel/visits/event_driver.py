"""Visits under way one by one, and the links that they share: what happens at each time in, what is next out.

The driver of `costmodel.visits.live_visit` and `costmodel.network.fair_link`; `costmodel.clock` brings the agenda that
keeps the order. Nothing here knows of SimPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from costmodel.network.fair_link import FairLink, Served
from costmodel.visits.live_visit import LiveVisit
from costmodel.visits.timeline import Links

FLOW_ENDS, PASSES, BREAKS, CHANGES, DUE, FLOW_BEGINS, SETTLES = range(2, 9)
"""What happens at one instant, in this order; SimPy's own URGENT and NORMAL come before."""


class EventQueue(Protocol):
    """What is to happen, in order of time."""

    @property
    def now(self) -> Any:
        """Absolute virtual seconds."""

    def at(self, time: float, kind: int, order: int, call: Callable[[Any], None], value: Any = None) -> Any:
        """Call back at ``time`` with an event that holds ``value``; at one time the lowest kind, then order, first."""


class VisitDriver:
    """One visit under way: events in, the flight's next part out.

    ``flights`` are those under way by order, of which this is one: a visit that is not there any more was cut, and
    what still happens to it is passed over. ``lanes`` are the shared links by direction.
    """

    def __init__(
        self,
        order: int,
        flight: LiveVisit,
        agenda: EventQueue,
        flights: Mapping[int, LiveVisit],
        lanes: Mapping[int, SharedLinks],
        over: Callable[[Any], None],
    ) -> None:
        self.order, self.flight = order, flight
        self._agenda, self._flights, self._lanes, self._over = agenda, flights, lanes, over

    def start(self) -> None:
        """Its first part begins."""
        self._go_on(self.flight.begin())

    def _go_on(self, planned: tuple[float, float]) -> None:
        """A part is to flow or to end at ``planned[0]``, unless it is broken off at ``planned[1]``."""
        flight, agenda, order = self.flight, self._agenda, self.order
        time, cut = planned
        if flight.is_over:
            agenda.at(time, DUE, order, self._end, self)
            return
        if cut < math.inf:
            part = flight.part
            agenda.at(cut, BREAKS, order, lambda _: self._break(part))
        if time > cut:
            return
        if flight.flows:
            agenda.at(time, FLOW_BEGINS, order, self._join)
        else:
            agenda.at(time, PASSES, order, self._pass)

    def _is_under_way(self) -> bool:
        return self._flights.get(self.order) is self.flight and not self.flight.is_over

    def _end(self, event: Any) -> None:
        # A visit may be cut at the very instant at which it ends.
        if self._flights.get(self.order) is self.flight:
            self._over(event)

    @property
    def _lane(self) -> SharedLinks:
        return self._lanes[self.flight.direction]

    def _join(self, _: Any) -> None:
        if self._is_under_way():
            self._lane.add(self)

    def part_sent(self, served: Served) -> None:
        """A part of the message has been sent: the next follows, or, half a round trip later, all has arrived."""
        time, is_arrival = self.flight.part_sent(served)
        if time <= self.flight.cut:
            kind, then = (PASSES, self._pass) if is_arrival else (FLOW_BEGINS, self._join)
            self._agenda.at(time, kind, self.order, then)

    def _pass(self, _: Any) -> None:
        if self._is_under_way():
            self._go_on(self.flight.go_on(self._agenda.now))

    def _break(self, part: int) -> None:
        if not self._is_under_way() or self.flight.part != part:
            return
        served = self._lane.leave(self.order)
        if served is not None:
            self.flight.message.broken_off(served)
        self._go_on((self.flight.broken(self._agenda.now), math.inf))


class SharedLinks:
    """One direction of the shared links, event by event."""

    def __init__(self, agenda: EventQueue, links: Links, direction: int) -> None:
        self._agenda = agenda
        self._link = FairLink(links.capacity(direction), links.access_capacity(direction))
        self._settling = False
        self._wake_at = math.inf
        self._plays: dict[int, VisitDriver] = {}

    def add(self, play: VisitDriver) -> None:
        """A part of a message begins."""
        now, flight = self._agenda.now, play.flight
        cap, until = flight.rate(now)
        if flight.message.is_fresh:
            self._follow(until, play, flight.part)
        self._plays[play.order] = play
        self._link.join(now, play.order, flight.message.next_part(now, cap), cap, flight.access_link)
        self._settle()

    def leave(self, order: int) -> Served | None:
        """A flow is broken off; None if there is none at this moment."""
        if self._plays.pop(order, None) is None:
            return None
        served = self._link.remove(self._agenda.now, order)
        self._settle()
        return served

    def _follow(self, until: float, play: VisitDriver, part: int) -> None:
        """Take note when the rate of the client's own link changes."""
        if until < math.inf:
            self._agenda.at(until, CHANGES, play.order, lambda _: self._change(play, part))

    def _change(self, play: VisitDriver, part: int) -> None:
        if play.flight.part == part:
            now = self._agenda.now
            cap, until = play.flight.rate(now)
            self._follow(until, play, part)
            # A visit that was cut may have left its order to another.
            if self._plays.get(play.order) is play:
                self._link.change(now, play.order, cap)
                self._settle()

    def _settle(self) -> None:
        """Once all that happens at this instant has happened, see to it that the next flow's end is not missed."""
        if not self._settling:
            self._settling = True
            self._agenda.at(self._agenda.now, SETTLES, 0, self._wake_next)

    def _wake_next(self, _: Any) -> None:
        self._settling = False
        end = self._link.next_finish()
        if end < math.inf and end != self._wake_at:
            self._wake_at = end
            self._agenda.at(end, FLOW_ENDS, 0, self._wake)

    def _wake(self, _: Any) -> None:
        now = self._agenda.now
        if self._link.next_finish() > now:  # something has come in between; the link must not be touched
            return
        self._wake_at = math.inf
        for order, served in self._link.finished(now):
            self._plays.pop(order).part_sent(served)
        self._settle()
