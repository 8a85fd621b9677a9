"""Virtual time: when visits end and what they spend, and the order in which things happen. The only wrapper of SimPy.

Synchronous rounds are solved as one batch (`solve`); visits that begin one by one are played by SimPy (`begin`), over
the same links and with the same arithmetic, equal to the bit. SimPy moves the clock to exactly the times that were
reckoned, never to a time recomputed from a delay. Nothing here reads the host's clock.

At one instant, things happen in this order: flows end, visits pass from one part to the next, visits are broken off,
rates change, `next` gives what is due, flows begin (of each kind the lowest order first). `costmodel.network.transfers`
does the same for a batch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from costmodel.visits.event_driver import DUE, SharedLinks, VisitDriver
from costmodel.visits.live_visit import LiveVisit
from costmodel.visits.timeline import Timeline, solve
from costmodel.visits.work import Work, Works

ORDERS = 1 << 40


@dataclass(frozen=True)
class VisitEnded:
    """A visit that has ended, was lost, or was cut."""

    order: int
    """What `Clock.begin` was given"""
    conditions: Conditions
    timeline: Timeline
    """Of this one visit"""


class Clock:
    """The virtual time of one run, from 0, and what its clients' connections and batteries have been through.

    Things that will happen are put in with `at` and `begin` and come out of `next` in order of time, which moves on
    with them.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._environment = _Environment(initial_time=0.0)
        self._due: deque[Event] = deque()
        self._lanes = {direction: SharedLinks(self._environment, fleet.links, direction) for direction in (DOWN, UP)}
        self._flights: dict[int, LiveVisit] = {}
        self._last = {direction: np.full(len(fleet), -math.inf) for direction in (DOWN, UP)}
        self._spent = np.zeros(len(fleet))

    @property
    def now(self) -> float:
        """Absolute virtual seconds."""
        return float(self._environment.now)

    @property
    def events(self) -> int:
        """SimPy events so far."""
        return self._environment.steps

    # --- what clients can do now ----------------------------------------------------------------------------------

    def conditions(self, clients: Sequence[int] | NDArray[np.intp], round: int, visit: int | None = None) -> Conditions:
        """What these clients can do in visits of ``round``, or in the one visit of that number."""
        chosen = np.asarray(clients, np.intp)
        return self.fleet.conditions(
            chosen,
            round,
            visit,
            last_down=self._last[DOWN][chosen],
            last_up=self._last[UP][chosen],
            charge=self.fleet.battery_joules - self._spent[chosen],
        )

    @property
    def is_there(self) -> Callable[[int], bool] | None:
        """Tells of a client whether it is there now; None where all always are."""
        availability = self.fleet.behaviour.availability
        return None if isinstance(availability, Always) else lambda client: availability.interval(client, self.now)[0]

    def first_available(self, clients: Sequence[int]) -> float:
        """When the first of these clients is there, now at the earliest; inf: never."""
        is_there = self.is_there
        if is_there is None or any(map(is_there, clients)):
            return self.now if clients else math.inf
        return first_available(self.fleet.behaviour.availability, clients, self.now)

    def has_power(self, client: int) -> bool:
        """Whether a client's battery is not empty."""
        return bool(self._spent[client] < self.fleet.battery_joules)

    def passed(self, conditions: Conditions, timeline: Timeline, waiting: Doubles | float = 0.0) -> None:
        """These visits have taken place: connections were used, batteries drained, by ``waiting`` joules more."""
        clients = conditions.clients
        lost = np.isfinite(timeline.lost)
        # Who only listens is connected, but has sent nothing that would have opened its window.
        sent_up = np.where(timeline.bytes_up > 0, timeline.up_end, math.inf)
        for direction, end in ((DOWN, timeline.down_end), (UP, sent_up)):
            used = np.where(np.isfinite(end), end, self._last[direction][clients])
            # A client that was lost has to connect again.
            self._last[direction][clients] = np.where(lost, -math.inf, used)
        self._spent[clients] += timeline.joules_spent + waiting
        if math.isfinite(self.fleet.battery_joules):
            # Who went flat stays so, though rounding or a message that it could not pay for may leave it something.
            flat = clients[timeline.lost < self.fleet.behaviour.losses(conditions, timeline.start)]
            self._spent[flat] = np.maximum(self._spent[flat], self.fleet.battery_joules)

    def state(self) -> dict[str, Doubles]:
        """What later visits depend on, (clients,) each, by name."""
        return {"last_down": self._last[DOWN], "last_up": self._last[UP], "spent_joules": self._spent}

    def restore(self, now: float, state: Mapping[str, Doubles]) -> None:
        """Inverse of `state`, at that time."""
        self.advance(now)
        self._last[DOWN][:], self._last[UP][:] = state["last_down"], state["last_up"]
        self._spent[:] = state["spent_joules"]

    # --- visits in a batch ----------------------------------------------------------------------------------------

    def solve(
        self, starts: ArrayLike, works: Sequence[Work] | Works, conditions: Conditions, until: float = math.inf
    ) -> Timeline:
        """The timeline of visits that share the links among themselves; it changes nothing.

        ``starts`` (visits,) in absolute seconds; ``conditions`` of the same clients in the same order.
        """
        works = works if isinstance(works, Works) else Works.of(works)
        return solve(starts, works, conditions, self.fleet.links, self.fleet.behaviour, until)

    # --- visits one by one ----------------------------------------------------------------------------------------

    def begin(self, work: Work, conditions: Conditions, order: int) -> None:
        """A visit begins now; `next` gives it as `VisitEnded` when it has ended or lost its client.

        ``order`` (>= 0) tells it from the others under way.
        """
        assert order not in self._flights, order
        flight = LiveVisit(work, conditions, self.fleet.links, self.fleet.behaviour, self.now)
        self._flights[order] = flight
        VisitDriver(order, flight, self._environment, self._flights, self._lanes, self._due.append).start()

    def cut(self, order: int) -> VisitEnded:
        """Break off a visit under way now; what it spent so far. It will not come out of `next`."""
        flight = self._flights.pop(order)
        served = self._lanes[flight.direction].leave(order)
        if served is not None:
            flight.message.broken_off(served)
        return VisitEnded(order, flight.conditions, flight.timeline(self.now))

    # --- what happens next ----------------------------------------------------------------------------------------

    def at(self, time: float, order: int, item: Any) -> None:
        """Let ``item`` happen at ``time``, absolute; of several at the same time the lowest ``order`` comes first."""
        assert self.now <= time < math.inf, (self.now, time)
        assert order >= 0, order
        self._environment.at(time, DUE, order, self._due.append, item)

    def next(self, until: float = math.inf) -> Any:
        """Move on to the earliest item and take it; None if there is none by ``until``, which then may still be ahead.

        LookupError if nothing is left to happen.
        """
        while not self._due:
            if until < self._environment.peek() < math.inf:
                return None
            try:
                self._environment.step()
            except simpy.core.EmptySchedule:
                raise LookupError("nothing is left to happen") from None
        item = self._due.popleft().value
        if isinstance(item, VisitDriver):
            del self._flights[item.order]
            item = VisitEnded(item.order, item.flight.conditions, item.flight.timeline())
        return item

    def advance(self, time: float) -> None:
        """Move on to ``time``, absolute, which must not pass an item; one due at ``time`` itself is still to come."""
        assert self.now <= time < math.inf, (self.now, time)
        self._environment.run(until=self._environment.at(time, URGENT, 0, None))
        assert not self._due, f"{self._due[0].value!r} was due before {time}"


class _Environment(simpy.Environment):
    """SimPy with absolute times: its own `schedule` adds a delay to now, and now + (t - now) may miss t by a bit."""

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
