"""A batch of visits whose downloads and uploads compete, solved event by event: those of access points that share air.

The batch runs on the driver of single visits (`costmodel.visits.event_driver`), over a queue of its own, so that it
agrees with visits of `costmodel.clock` to the bit. `costmodel.visits.timeline` solves all other batches.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

import numpy as np

from costmodel.arrays import Doubles
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.dynamics import ClientDynamics
from costmodel.network.links import Links
from costmodel.visits.accounting import Timeline
from costmodel.visits.event_driver import BREAKS, DUE, MessageLinks, VisitDriver, shared_links
from costmodel.visits.live_visit import LiveVisit
from costmodel.visits.work import Work, Works


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
    shared = shared_links(queue, links)
    visits = [
        LiveVisit(_work(works, order), _visit(conditions, order), links, behaviour, start)
        for order, start in enumerate(starts.tolist())
    ]
    for order, visit in enumerate(visits):
        live_visits[order] = visit
        driver = VisitDriver(order, visit, queue, live_visits, shared, partial(_end, live_visits))
        queue.at(visit.start, DUE, order, partial(_start, driver))
    queue.run(until)
    for order, visit in live_visits.items():
        _cut(order, visit, until, shared)
    return _joined([visit.timeline(until) for visit in visits])


def _start(driver: VisitDriver, _: Any) -> None:
    driver.start()


def _end(live_visits: dict[int, LiveVisit], driver: VisitDriver) -> None:
    del live_visits[driver.order]


def _cut(order: int, visit: LiveVisit, until: float, shared: Mapping[int, MessageLinks]) -> None:
    visit.message.broken_off(until, shared[visit.direction].leave(order))


def _work(works: Works, visit: int) -> Work:
    flops, steps = float(works.flops[visit]), int(works.steps[visit])
    return Work(int(works.bytes_down[visit]), int(works.bytes_up[visit]), flops, steps)


def _visit(conditions: Conditions, visit: int) -> Conditions:
    return Conditions(**{name: column[visit : visit + 1] for name, column in vars(conditions).items()})


def _joined(timelines: list[Timeline]) -> Timeline:
    names = [field.name for field in dataclasses.fields(Timeline)]
    return Timeline(**{name: np.concatenate([getattr(each, name) for each in timelines]) for name in names})
