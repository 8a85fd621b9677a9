"""Visits under way one by one, and the links that they share, driven by events of an `EventQueue`.

The driver of `costmodel.visits.live_visit` and `costmodel.network.fair_link`. `costmodel.clock` has a queue in SimPy;
the queue of `solve_by_events` is a heap: it solves batches whose downloads and uploads compete, those of access points
that share air, so that they agree with visits one by one to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol

from costmodel.arrays import Doubles
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.dynamics import ClientDynamics
from costmodel.network.airtime import AirLink
from costmodel.network.bandwidth import DOWN, UP
from costmodel.network.duplex import Duplex, WideFlow
from costmodel.network.fair_link import FairLink, Served
from costmodel.network.links import Links
from costmodel.network.senders import WholeSender
from costmodel.network.window_sharing import WindowLink
from costmodel.visits.accounting import Timeline
from costmodel.visits.exchange import exchange_times
from costmodel.visits.live_visit import LiveVisit
from costmodel.visits.work import StepExchange, Work, Works

FLOW_ENDS, PASSES, BREAKS, CHANGES, DUE, FLOW_BEGINS, SETTLES = range(2, 9)
"""Kinds of event in their order at one instant; SimPy's own URGENT and NORMAL come before."""

ORDERS = 1 << 40
"""More than the order of any visit"""


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

    def start(self, _: Any = None) -> None:
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
            queue.at(time, FLOW_BEGINS, order, self.join)
        else:
            queue.at(time, PASSES, order, self.pass_on)

    def _is_under_way(self) -> bool:
        return self._live_visits.get(self.order) is self.visit and not self.visit.is_over

    def _end(self, event: Any) -> None:
        # A visit may be cut at the very instant at which it ends.
        if self._live_visits.get(self.order) is self.visit:
            self._on_end(event)

    def join(self, _: Any) -> None:
        """Begin a part of the message."""
        if self._is_under_way():
            self._shared_links[self.visit.direction].add(self)

    def part_sent(self, served: Served) -> None:
        """A part of the message has been sent: the next follows, or, half a round trip later, all has arrived."""
        time, is_arrival = self.visit.part_sent(served)
        if time <= self.visit.cut:
            kind, callback = (PASSES, self.pass_on) if is_arrival else (FLOW_BEGINS, self.join)
            self._queue.at(time, kind, self.order, callback)

    def pass_on(self, _: Any) -> None:
        """End this part, and begin the next."""
        if self._is_under_way():
            self._schedule(self.visit.go_on(self._queue.now))

    def _break(self, part: int) -> None:
        if not self._is_under_way() or self.visit.part != part:
            return
        served = self._shared_links[self.visit.direction].leave(self.order)  # first: it may restart the message
        self.visit.message.broken_off(self._queue.now, served)
        self._schedule((self.visit.broken(self._queue.now), math.inf))


class SharedLinks:
    """One direction of the shared links, event by event; or both, where access points share air."""

    def __init__(
        self,
        queue: EventQueue,
        link: FairLink | AirLink | WindowLink,
        direction: int = DOWN,
        links: Links | None = None,
    ) -> None:
        """``links``: of which ``link`` is this direction, where their rates change."""
        self._queue, self._link, self._direction = queue, link, direction
        # Both directions, where one holds up the other: a flow that begins or ends changes all ends.
        self._duplex: Duplex | None = None
        self._together = [self]
        self._links, self._capacities_until = links, -math.inf
        self._settling = False
        self._wake_at = math.inf
        self._drivers: dict[int, VisitDriver] = {}

    def hold_up(self, other: SharedLinks, duplex: Duplex) -> None:
        """Let ``duplex`` set the capacities of this direction and of the other."""
        for links in (self, other):
            links._duplex, links._together = duplex, [self, other]

    def add(self, driver: VisitDriver) -> None:
        """Begin a part of a message."""
        now, visit = self._queue.now, driver.visit
        cap, until = visit.rate(now)
        if visit.message.is_fresh:
            self._follow(until, driver, visit.part)
        if cap == 0 and visit.has_outage(now):
            visit.message.stalls(now)
        elif visit.message.may_begin(now):
            self._follow_capacities(now)
            self._drivers[driver.order] = driver
            link, (bits, limit) = self._link, visit.message.next_part(now, cap)
            if isinstance(link, AirLink):  # a slow link of a client takes more of the air
                link.join(now, driver.order, bits, limit, visit.access_link, visit.direction, cap)
            elif isinstance(link, WindowLink):
                assert isinstance(visit.message, WholeSender), visit.message
                link.join(now, driver.order, bits, limit, visit.access_link, visit.message.path)
            else:
                link.join(now, driver.order, bits, limit, visit.access_link)
            if self._duplex is not None:
                self._duplex.joined(self._direction, visit.access_link, driver.order, _wide_flow(visit, limit, cap))
            self._settle()

    def leave(self, order: int) -> Served | None:
        """Cut a flow; None if the visit has none at this moment."""
        driver = self._drivers.pop(order, None)
        if driver is None:
            return None
        served = self._link.remove(self._queue.now, order)
        self._uncount(driver)
        self._settle()
        return served

    def _follow_capacities(self, now: float) -> None:
        """Give the links their present rates, until the next change."""
        if self._links is None or now < self._capacities_until:
            return
        assert not isinstance(self._link, AirLink)
        capacities, self._capacities_until = self._links.capacities_at(self._direction, now)
        if self._duplex is None:
            self._link.resize(now, capacities[0], capacities[1:])
        else:
            self._duplex.resized(self._direction, capacities)
        self._settle()
        if self._capacities_until < math.inf:
            self._queue.at(self._capacities_until, CHANGES, ORDERS - 1, self._change_capacities)

    def _change_capacities(self, _: Any) -> None:
        if self._drivers and self._queue.now >= self._capacities_until:
            self._follow_capacities(self._queue.now)

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
                time = message.try_at(now)
                if time is not None:
                    self._queue.at(time, FLOW_BEGINS, driver.order, driver.join)
            elif is_sending:
                link, limit = self._link, message.cap(cap)
                if isinstance(link, AirLink):
                    link.change(now, driver.order, limit, cap)
                else:
                    link.change(now, driver.order, limit)
                    if self._duplex is not None:
                        flow = _wide_flow(driver.visit, limit, cap)
                        self._duplex.joined(self._direction, driver.visit.access_link, driver.order, flow)
                self._settle()

    def _settle(self) -> None:
        """Schedule the end of the next flow, after all other events of this instant."""
        if not self._settling:
            self._settling = True
            self._queue.at(self._queue.now, SETTLES, self._direction, self._wake_next)

    def _wake_next(self, _: Any) -> None:
        self._settling = False
        if self._duplex is not None and (until := self._duplex.settle(self._queue.now)) < math.inf:
            self._queue.at(until, CHANGES, ORDERS - 1, self._fill)
        for links in self._together:
            links._plan()

    def _fill(self, _: Any) -> None:
        """A queue may be full now."""
        assert self._duplex is not None
        self._duplex.filled()
        self._settle()

    def _plan(self) -> None:
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
            driver = self._drivers.pop(order)
            self._uncount(driver)
            driver.part_sent(served)
        self._settle()

    def _uncount(self, driver: VisitDriver) -> None:
        if self._duplex is not None:
            self._duplex.left(self._direction, driver.visit.access_link, driver.order)


def _wide_flow(visit: LiveVisit, limit: float, cap: float) -> WideFlow:
    """A flow whose window lets ``limit`` bit/s through, or whose own link ``cap``."""
    return WideFlow(visit.rtt, limit, limit < cap)


class OpenLinks:
    """One direction of links that are never full, for clients whose own rates never change.

    A message is sent as a whole when it begins, with one event for its end; the results are those of `SharedLinks` to
    the bit: a flow that nothing holds back ends at ``start + bits / cap``, part by part. A message that is cut is sent
    again, up to the cut.
    """

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue
        self._begun: dict[int, tuple[float, VisitDriver]] = {}

    def add(self, driver: VisitDriver) -> None:
        """Begin a message."""
        begin, visit = self._queue.now, driver.visit
        rate, _ = visit.rate(begin)
        self._begun[driver.order] = begin, driver
        time, has_arrived = begin, False
        while not has_arrived:
            bits, cap = visit.message.next_part(time, rate)
            time, has_arrived = visit.part_sent(Served(time + bits / cap, bits, 0.0, 0.0))

        def arrive(event: Any) -> None:
            # A visit that was cut has left, and its order may be another's by now.
            if self._begun.get(driver.order, (0.0, None))[1] is driver:
                del self._begun[driver.order]
                driver.pass_on(event)

        if time <= visit.cut:
            self._queue.at(time, PASSES, driver.order, arrive)

    def leave(self, order: int) -> Served | None:
        """Cut a message; None if no part of it is being sent at this moment."""
        time, driver = self._begun.pop(order, (0.0, None))
        if driver is None:
            return None
        now, visit = self._queue.now, driver.visit
        visit.restart_message()
        rate, _ = visit.rate(time)
        has_arrived = False
        while time <= now and not has_arrived:
            bits, cap = visit.message.next_part(time, rate)
            end = time + bits / cap
            if end > now:
                return Served(now, min(cap * (now - time), bits), 0.0, 0.0)
            time, has_arrived = visit.part_sent(Served(end, bits, 0.0, 0.0))
        return None


def shared_links(queue: EventQueue, links: Links, varies: bool) -> dict[int, MessageLinks]:
    """The shared links by direction; access points that share air are one for both.

    ``varies``: whether the rates of clients' own links may change; otherwise links that are never full need no sharing.
    """
    if links.airtime is not None:
        air = AirLink((links.down, links.up), len(links.site_down), links.airtime)
        return dict.fromkeys((DOWN, UP), SharedLinks(queue, air))
    by_direction: dict[int, MessageLinks] = {}
    shared = {way: _shared_link(links, way) for way in (DOWN, UP)}
    for direction, link in shared.items():
        is_open = links.is_open(direction) and not varies and links.held_up is None and not links.transport.by_windows
        varying = None if links.site_variation is None else links
        by_direction[direction] = OpenLinks(queue) if is_open else SharedLinks(queue, link, direction, varying)
    down, up = by_direction[DOWN], by_direction[UP]
    if links.held_up is not None:
        assert isinstance(down, SharedLinks) and isinstance(up, SharedLinks), links
        down.hold_up(up, Duplex(links, shared))
    return by_direction


def _shared_link(links: Links, direction: int) -> FairLink | WindowLink:
    capacities = links.capacity(direction), links.access_capacity(direction)
    if links.transport.by_windows:
        return WindowLink(*capacities, links.transport.queue_bits, links.congestion)
    return FairLink(*capacities)


# --- a batch, event by event ------------------------------------------------------------------------------------------


class EventHeap:
    """The `EventQueue` of one batch: of several events at one time the lowest kind, then order, then the first."""

    def __init__(self) -> None:
        self.now = -math.inf
        self._events: list[tuple[float, int, int, int, Callable[[Any], None], Any]] = []
        self._serials = count()

    def at(self, time: float, kind: int, order: int, call: Callable[[Any], None], value: Any = None) -> None:
        """Call back with ``value`` at ``time``."""
        assert time >= self.now, (time, self.now)
        heappush(self._events, (time, kind, order, next(self._serials), call, value))

    def run(self, until: float) -> None:
        """Run all events before ``until``, and at ``until`` those of flows and parts that end."""
        while self._events and self._events[0][:2] < (until, BREAKS):
            self.now, _, _, _, call, value = heappop(self._events)
            call(value)
        self.now = until


def solve_by_events(
    starts: Doubles, works: Works, conditions: Conditions, links: Links, behaviour: ClientDynamics, until: float
) -> Timeline:
    """What `costmodel.visits.timeline.solve` returns."""
    queue, live_visits = EventHeap(), dict[int, LiveVisit]()
    shared = shared_links(queue, links, behaviour.varies)

    def end(driver: VisitDriver) -> None:
        del live_visits[driver.order]

    visits, exchanges = [], works.exchanges
    own = conditions.compute_seconds(works.flops, works.steps, works.codec_seconds)
    exchanged = exchange_times(works, conditions, links, own)
    for order, start in enumerate(starts.tolist()):
        work = Work(
            int(works.bytes_down[order]),
            int(works.bytes_up[order]),
            float(works.flops[order]),
            int(works.steps[order]),
            float(works.codec_seconds[order]),
            None if exchanges is None else StepExchange(*(column[order].item() for column in vars(exchanges).values())),
        )
        row = slice(order, order + 1)
        times = None if exchanged is None else exchanged[row]
        visits.append(LiveVisit(work, conditions.only(row), links, behaviour, start, times))
    for order, visit in enumerate(visits):
        live_visits[order] = visit
        driver = VisitDriver(order, visit, queue, live_visits, shared, end)
        queue.at(visit.start, DUE, order, driver.start)
    queue.run(until)
    for order, visit in live_visits.items():
        visit.message.broken_off(until, shared[visit.direction].leave(order))
    timelines = [visit.timeline(until) for visit in visits]
    return Timeline.joined(timelines)
