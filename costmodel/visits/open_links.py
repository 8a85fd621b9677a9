"""One direction of links that are never full: a message is sent as a whole when it begins, with one event for its end.

In place of `costmodel.visits.event_driver.SharedLinks`, with the same results to the bit: a flow that nothing holds
back ends at ``start + bits / cap``, part by part. A message that is cut is sent again, up to the cut.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from costmodel.network.fair_link import Served
from costmodel.visits.event_driver import PASSES, EventQueue, VisitDriver


class OpenLinks:
    """Links without limit, for clients whose own rates never change."""

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
        if time <= visit.cut:
            self._queue.at(time, PASSES, driver.order, partial(self._arrive, driver))

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

    def _arrive(self, driver: VisitDriver, event: Any) -> None:
        # A visit that was cut has left, and its order may be another's by now.
        if self._begun.get(driver.order, (0.0, None))[1] is driver:
            del self._begun[driver.order]
            driver.pass_on(event)
