"""Virtual time: the ends and costs of visits, and the order of events. The only wrapper of SimPy.

Synchronous rounds are solved as one batch (`solve`); visits that begin one by one are simulated by SimPy (`begin`),
over the same links and with the same arithmetic, equal to the bit. SimPy advances the clock to exactly the computed
times, never to a time recomputed from a delay. Nothing here reads the host's clock.

The order of events at one instant: flows end, visits pass from one part to the next, visits are cut, rates change,
`next` returns due items, flows begin (of each kind the lowest order first). `costmodel.network.transfers` uses the same
order for a batch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappush
from typing import Any

import numpy as np
import simpy
from numpy.typing import ArrayLike, NDArray
from simpy.events import URGENT, Event, EventPriority

from costmodel.arrays import Doubles
from costmodel.fleet.availability import Always, first_available
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.fleet import Fleet
from costmodel.network.bandwidth import DOWN, UP
from costmodel.visits.event_driver import DUE, ORDERS, VisitDriver, shared_links
from costmodel.visits.exchange import ExchangeTimes, exchange_times
from costmodel.visits.leftovers import SERVER, Leftovers, Solution
from costmodel.visits.live_visit import LiveVisit
from costmodel.visits.timeline import Timeline, solve, solve_beside
from costmodel.visits.work import Work, Works

LEFTOVERS = "leftovers"
"""Name of the leftovers in `Clock.state`, with the station behind it unless that is 0."""


@dataclass(frozen=True)
class VisitEnded:
    """A visit that has ended, has lost its client, or was cut."""

    order: int
    """The ``order`` of `Clock.begin`"""
    conditions: Conditions
    timeline: Timeline
    """The timeline of this one visit"""


class Clock:
    """The virtual time of one run, from 0, and the state of its clients' connections and batteries.

    Events are scheduled with `at` and `begin` and returned by `next` in order of time, which advances with them.
    """

    is_measured = False
    """Whether times are known only when visits have ended: those of real devices"""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._environment = _Environment(initial_time=0.0)
        self._due: deque[Event] = deque()
        self._message_links = shared_links(self._environment, fleet.links, fleet.behaviour.varies)
        self._live_visits: dict[int, LiveVisit] = {}
        self._last = {direction: np.full(len(fleet), -math.inf) for direction in (DOWN, UP)}
        self._threshold = np.full((len(fleet), 2), math.inf) if fleet.loses_segments else None
        self._spent = np.zeros(len(fleet))
        self.leftovers: dict[int, Leftovers] = {}
        """Station -> late visits that go on there"""

    @property
    def now(self) -> float:
        """Absolute virtual seconds."""
        return float(self._environment.now)

    @property
    def events(self) -> int:
        """SimPy events so far."""
        return self._environment.steps

    # --- the state of clients ----------------------------------------------------------------------------------

    def conditions(
        self,
        clients: Sequence[int] | NDArray[np.intp],
        round: int,
        visit: int | None = None,
        *,
        order: int = 0,
    ) -> Conditions:
        """The conditions of these clients' visits in ``round``, or of the one visit of the number ``visit``.

        ``order``: of visits that follow others of the clients in the round, how many.
        """
        chosen = np.asarray(clients, np.intp)
        return self.fleet.conditions(
            chosen,
            round,
            visit,
            order=order,
            last_down=self._last[DOWN][chosen],
            last_up=self._last[UP][chosen],
            threshold=None if self._threshold is None else self._threshold[chosen],
            charge=self.fleet.battery_joules - self._spent[chosen],
        )

    @property
    def is_there(self) -> Callable[[int], bool] | None:
        """A test whether a client is available now; None where all clients always are."""
        availability = self.fleet.behaviour.availability
        return None if isinstance(availability, Always) else lambda client: availability.interval(client, self.now)[0]

    def first_available(self, clients: Sequence[int], since: float = -math.inf) -> float:
        """The time at which the first of these clients is available, now or ``since`` at the earliest; inf: never."""
        is_there, time = self.is_there, max(self.now, since)
        if is_there is None or (time == self.now and any(map(is_there, clients))):
            return time if clients else math.inf
        return first_available(self.fleet.behaviour.availability, clients, time)

    def has_power(self, client: int) -> bool:
        """Whether a client's battery is not empty."""
        return bool(self._spent[client] < self.fleet.battery_joules)

    def passed(self, conditions: Conditions, timeline: Timeline, waiting: Doubles | float = 0.0) -> None:
        """Update connections and batteries after these visits, which spent ``waiting`` joules more."""
        clients = conditions.clients
        lost = np.isfinite(timeline.lost)
        # A client without an upload is connected, but its own window has not grown.
        sent_up = np.where(timeline.bytes_up > 0, timeline.up_end, math.inf)
        for direction, end in ((DOWN, timeline.down_end), (UP, sent_up)):
            used = np.where(np.isfinite(end), end, self._last[direction][clients])
            # A client that was lost has to connect again.
            self._last[direction][clients] = np.where(lost, -math.inf, used)
        if self._threshold is not None:
            self._threshold[clients] = np.stack((timeline.threshold_down, timeline.threshold_up), axis=1)
        self._spent[clients] += timeline.joules_spent + waiting
        if math.isfinite(self.fleet.battery_joules):
            # An empty battery stays empty, though rounding or an unpaid message may leave a rest.
            flat = clients[timeline.lost < self.fleet.behaviour.losses(conditions, timeline.start)]
            self._spent[flat] = np.maximum(self._spent[flat], self.fleet.battery_joules)

    def state(self) -> dict[str, Doubles]:
        """The state that later visits depend on, by name: (clients, ..) each, and leftovers if there are any."""
        state: dict[str, Doubles] = {
            "last_down": self._last[DOWN],
            "last_up": self._last[UP],
            "spent_joules": self._spent,
        }
        state |= {} if self._threshold is None else {"threshold": self._threshold}
        named = {LEFTOVERS if station == SERVER else f"{LEFTOVERS} {station}": station for station in self.leftovers}
        return state | {name: self.leftovers[station].packed() for name, station in named.items()}

    def restore(self, now: float, state: Mapping[str, Doubles]) -> None:
        """Set the state of `state`, at time ``now``."""
        self.advance(now)
        self._last[DOWN][:], self._last[UP][:] = state["last_down"], state["last_up"]
        self._spent[:] = state["spent_joules"]
        if self._threshold is not None:
            self._threshold[:] = state["threshold"]
        self.leftovers = {}
        packed = {name: rows for name, rows in state.items() if name.startswith(LEFTOVERS)}
        if packed:
            none = self.solve_beside(None, [], [], self.conditions([], 0), now).state
            assert none is not None
            for name, rows in packed.items():
                station = int(name.removeprefix(LEFTOVERS) or SERVER)
                self.leftovers[station] = Leftovers.unpacked(rows, none)

    # --- visits in a batch ----------------------------------------------------------------------------------------

    def solve(
        self, starts: ArrayLike, works: Sequence[Work] | Works, conditions: Conditions, until: float = math.inf
    ) -> Timeline:
        """The timeline of visits that contend with each other alone; the clock stays as it is.

        ``starts``: (visits,) in absolute seconds; ``conditions``: of the same visits in the same order.
        """
        works = works if isinstance(works, Works) else Works.of(works)
        return solve(starts, works, conditions, self.fleet.links, self.fleet.behaviour, until)

    def solve_if_faster(
        self, part: str, factor: float, starts: ArrayLike, works: Sequence[Work], conditions: Conditions
    ) -> Timeline:
        """`solve`, if one ``part`` of the fleet were so many times as fast: ``own`` links, ``access`` links (of
        gateways or to aggregators), the ``server`` link, ``compute``, round ``trips``, or the ``device`` of the server
        that works in an exchange."""
        links, rows = self.fleet.links, conditions
        if part == "own":
            rows = replace(rows, down=rows.down * factor, up=rows.up * factor)
        elif part == "compute":
            rows = replace(rows, slowdown=rows.slowdown / factor)
        elif part == "trips":
            rows = replace(rows, rtt=rows.rtt / factor)
        elif part == "device":
            works = [work.if_served(factor) for work in works]
        elif part == "server":
            links = replace(links, down=links.down * factor, up=links.up * factor)
        else:
            down, up = (tuple(rate * factor for rate in rates) for rates in (links.site_down, links.site_up))
            links = replace(links, site_down=down, site_up=up)
        return solve(starts, Works.of(works), rows, links, self.fleet.behaviour)

    # --- late visits that go on -----------------------------------------------------------------------------------

    def solve_beside(
        self,
        leftovers: Leftovers | None,
        starts: ArrayLike,
        works: Sequence[Work],
        conditions: Conditions,
        until: float = math.inf,
        goes_on: bool = False,
    ) -> Solution:
        """`solve`, while ``leftovers`` go on beside these visits. ``goes_on``: visits that are cut may go on, too."""
        fleet = self.fleet
        more = fleet.links, fleet.behaviour, until, goes_on
        return solve_beside(leftovers, starts, Works.of(works), conditions, *more)

    def leave(self, solution: Solution, messages_alone: bool, station: int = SERVER) -> None:
        """Let the visits of a solution at a station that have not ended go on, or ``messages_alone``.

        Of those that went on beside its batch, connections and batteries are updated here, of the others by `passed`.
        """
        state, timeline, rests = solution.state, solution.timeline, solution.leftovers
        if state is None:  # solved event by event, alone and to the end
            assert rests is None, "leftovers where messages share air"
            assert np.isfinite(timeline.end).all(), timeline.end
            self.leftovers.pop(station, None)
            return
        ends = timeline.end
        if rests is not None:
            before = state.only(np.arange(len(timeline), len(state)))
            self.passed(before.conditions, replace(before.charged, lost=rests.lost, joules_spent=rests.joules_spent))
            ends = np.concatenate((ends, rests.end))
        left = state.only(~np.isfinite(ends))
        left = left.messages_alone() if messages_alone else left
        self.leftovers.pop(station, None)
        if len(left):
            self.leftovers[station] = left.only(np.argsort(left.conditions.clients))
            self.leftovers = dict(sorted(self.leftovers.items()))

    # --- visits one by one ----------------------------------------------------------------------------------------

    def begin(
        self, work: Work, conditions: Conditions, order: int, beside: Sequence[tuple[Work, Conditions]] = ()
    ) -> None:
        """Begin a visit now; `next` returns it as `VisitEnded` when it has ended or has lost its client.

        ``order`` (>= 0) is its number among the visits under way; ``beside``: those that begin at once, too.
        """
        assert order not in self._live_visits, order
        exchange = self._exchange(work, conditions, beside)
        visit = LiveVisit(work, conditions, self.fleet.links, self.fleet.behaviour, self.now, exchange)
        self._live_visits[order] = visit
        queue, on_end = self._environment, self._due.append
        VisitDriver(order, visit, queue, self._live_visits, self._message_links, on_end).start()

    def _exchange(
        self, work: Work, conditions: Conditions, beside: Sequence[tuple[Work, Conditions]]
    ) -> ExchangeTimes | None:
        """The times of what a visit that begins now exchanges, beside all visits that are under way, or others like
        these after them."""
        if work.exchange is None:
            return None
        live = ((visit.work, visit.conditions) for visit in self._live_visits.values())
        others = [each for each in (*live, *beside) if each[0].exchange is not None]
        works = Works.of([work, *(of_other for of_other, _ in others)])
        everyone = conditions.followed_by(*(of_other for _, of_other in others))
        seconds = everyone.compute_seconds(works.flops, works.steps, works.codec_seconds)
        times = exchange_times(works, everyone, self.fleet.links, seconds, leave=False)
        return None if times is None else times[:1]

    def cut(self, order: int) -> VisitEnded:
        """Cut a visit under way now; returns its costs so far. `next` will not return it."""
        visit = self._live_visits.pop(order)
        served = self._message_links[visit.direction].leave(order)  # first: it may restart the message
        visit.message.broken_off(self.now, served)
        return VisitEnded(order, visit.conditions, visit.timeline(self.now))

    # --- events ----------------------------------------------------------------------------------------

    def at(self, time: float, order: int, item: Any) -> None:
        """Schedule ``item`` at ``time``, absolute; of several at the same time the lowest ``order`` comes first."""
        assert self.now <= time < math.inf, (self.now, time)
        assert order >= 0, order
        self._environment.at(time, DUE, order, self._due.append, item)

    def next(self, until: float = math.inf) -> Any:
        """Advance to the earliest item and return it; None, at a time of at most ``until``, if there is none by then.

        LookupError if nothing is scheduled.
        """
        while not self._due:
            if until < self._environment.peek() < math.inf:
                return None
            try:
                self._environment.step()
            except simpy.core.EmptySchedule:
                raise LookupError("no event is scheduled") from None
        item = self._due.popleft().value
        if isinstance(item, VisitDriver):
            del self._live_visits[item.order]
            item = VisitEnded(item.order, item.visit.conditions, item.visit.timeline())
        return item

    def advance(self, time: float) -> None:
        """Advance to ``time``, absolute, which must not pass an item; an item at ``time`` itself stays scheduled."""
        assert self.now <= time < math.inf, (self.now, time)
        self._environment.run(until=self._environment.at(time, URGENT, 0, None))
        assert not self._due, f"{self._due[0].value!r} was due before {time}"


class _Environment(simpy.Environment):
    """SimPy with absolute times: its `schedule` adds a delay to now, and now + (t - now) may differ from t by a bit."""

    steps = 0

    def at(self, time: float, kind: int, order: int, call: Callable[[Event], None] | None, value: Any = None) -> Event:
        """An event that happens at ``time``; of several at one time the lowest kind first, then the lowest order."""
        event = Event(self)
        event._ok, event._value = True, value
        if call is not None:
            event.callbacks.append(call)
        heappush(self._queue, (time, EventPriority(kind * ORDERS + order), next(self._eid), event))
        return event

    def step(self) -> None:
        self.steps += 1
        super().step()
