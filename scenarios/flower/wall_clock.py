"""The clock of a run on real devices: its times are measured, and begin at 0 with the first round.

Only rounds take time, as on a virtual clock: not the server's evaluations, nor the wait for devices before a round.
Energy is not measured, and 0; nor is what a modelled server would take to sum updates. The way to a device and the way
back cannot be told apart, since no clock is common to both sides: both stand before the computing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.arrays import Doubles
from costmodel.clock import Clock
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.fleet import Fleet
from costmodel.network.links import Links
from costmodel.visits.accounting import Timeline
from costmodel.visits.leftovers import Leftovers, Solution
from costmodel.visits.work import Work


@dataclass(frozen=True)
class MeasuredTimes:
    """A visit of a real device; seconds from the beginning of its round."""

    seconds: float = 0.0
    """Until the server had its update, or gave it up; inf: neither, when the round was over"""
    compute_seconds: float = 0.0
    """Of training and codecs, by the device's own clock; all else counts as communication"""
    bytes_down: int = 0
    bytes_up: int = 0
    is_lost: bool = False


class WallClock(Clock):
    """Gives batches of visits the times that were measured; before that, none. ``fleet``: the scenario's, for names."""

    is_measured = True

    def __init__(
        self, fleet: Fleet, is_there: Callable[[int], bool], all_there: Callable[[], bool], wait: Callable[[], None]
    ) -> None:
        """``is_there``: client -> whether its node is connected; ``wait``: until one more is, or Stopped."""
        super().__init__(replace(fleet, links=Links()))
        self._is_there, self._all_there, self._wait = is_there, all_there, wait
        self.measured: dict[int, MeasuredTimes] = {}
        """client -> its visit in the round under way"""

    @property
    def is_there(self) -> Callable[[int], bool] | None:
        """None if all are, so that cohorts are drawn as in a run whose clients always are."""
        return None if self._all_there() else self._is_there

    def first_available(self, clients: Sequence[int], since: float = -math.inf) -> float:
        """Now, after a wait for one of these clients that the clock does not count; inf without clients."""
        while clients and not any(map(self._is_there, clients)):
            self._wait()
        return self.now if clients else math.inf

    def has_power(self, client: int) -> bool:
        """A device that is there has."""
        return True

    def advance(self, time: float) -> None:
        """To the end of a round, from which on its measurements are used no more."""
        super().advance(time)
        self.measured = {}

    def conditions(
        self,
        clients: Sequence[int] | NDArray[np.intp],
        round: int,
        visit: int | None = None,
        *,
        order: int = 0,
    ) -> Conditions:
        """The modelled ones, but that nothing is drawn while a device waits."""
        drawn = super().conditions(clients, round, visit, order=order)
        return replace(drawn, idle_watts=np.zeros(len(drawn)))

    def passed(self, conditions: Conditions, timeline: Timeline, waiting: Doubles | float = 0.0) -> None:
        """Connections and batteries are not modelled."""

    def solve_beside(
        self,
        leftovers: Leftovers | None,
        starts: ArrayLike,
        works: Sequence[Work],
        conditions: Conditions,
        until: float = math.inf,
        goes_on: bool = False,
    ) -> Solution:
        """The measured times."""
        visits = [self.measured.get(client, MeasuredTimes()) for client in conditions.clients.tolist()]
        start, lost = np.asarray(starts, np.float64), np.array([visit.is_lost for visit in visits], bool)
        end = start + np.array([visit.seconds for visit in visits], np.float64)
        computed = np.array([visit.compute_seconds for visit in visits], np.float64)
        ends = ~lost & (end <= until)
        up_end, none = np.where(ends, end, math.inf), np.zeros(len(visits))
        return Solution(
            Timeline(
                start=start,
                down_end=np.where(ends, np.maximum(end - computed, start), math.inf),
                compute_end=up_end,
                up_end=up_end,
                lost=np.where(lost, end, math.inf),
                bytes_down=np.array([visit.bytes_down for visit in visits], np.int64),
                bytes_up=np.array([visit.bytes_up for visit in visits], np.int64),
                flops=np.where(ends, np.array([work.flops for work in works], np.float64), 0.0),
                joules_spent=none,
                idle_joules=none,
                compute_joules=none,
                receive_joules=none,
                send_joules=none,
                contention_seconds=none,
                paused_seconds=none,
                computed=np.where(ends, computed, 0.0),
                progress=np.where(ends, 1.0, 0.0),
                threshold_down=none,
                threshold_up=none,
                connect_down=none,
                own_down=np.where(ends, np.maximum(end - computed - start, 0.0), 0.0),
                access_down=none,
                server_down=none,
                connect_up=none,
                own_up=none,
                access_up=none,
                server_up=none,
            )
        )
