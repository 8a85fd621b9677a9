"""The stations at which visits end: the server, or the aggregators between it and the clients.

A round is one group of visits (`coordinator.rounds.group`) at each station that takes part in it. Here the server is
the only one; `coordinator.rounds.tiers` has the aggregators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.aggregation.server import ServerStrategy
from coordinator.aggregation.tiers import TieredServer
from coordinator.records.round_record import RoundRecord
from coordinator.rounds.budget import CLIENTS, SECONDS
from costmodel.visits.leftovers import SERVER

if TYPE_CHECKING:  # the clock brings SimPy, which this package runs but never loads
    from costmodel.clock import Clock


class RoundEnd(NamedTuple):
    """The events after the steps that stations make in a round."""

    time: float
    """When the round is over, absolute seconds"""
    meetings: Sequence[Callable[[TieredServer], None]] = ()
    """Calls of the server side then, in this order"""
    is_new: bool | None = None
    """Whether the server has a new model; None: if an update counts"""


class Stations:
    """The server as the only station. Base of aggregators.

    Subclasses can customise by overriding all that is here.
    """

    is_asynchronous = False
    """Whether stations meet the server one by one"""
    together = True
    """Whether all stations have the server's model, or wait for it"""
    evaluates_between = False
    """Whether there is something to evaluate while stations have models of their own"""
    steps_in_part = True
    """Whether the updates that are there when the run's virtual seconds end may make the server's step"""

    def __init__(self, clock: Clock, ends_at: float = math.inf) -> None:
        """``ends_at``: absolute seconds at which the run ends."""
        self.visits_clock, self._ends_at = clock, ends_at
        self._waits_until = -math.inf

    # --- who begins ---------------------------------------------------------------------------------------------------

    def open(self, record: RoundRecord, now: float) -> str | None:
        """Begin a round; returns the rule that refuses this, or None."""
        return None

    def locate(self, server: ServerStrategy) -> None:
        """Find who begins a round, and tell the server side where clients are."""

    def of(self, client: int) -> int:
        """The station of a client in this round."""
        return SERVER

    def by_station(self, clients: Sequence[int]) -> Mapping[int, Sequence[int]]:
        """Station -> those of the clients that belong to it, by ascending numbers of stations."""
        return {SERVER: clients}

    def taking_part(self, clients: list[int]) -> list[int]:
        """Those of the clients whose stations begin a round."""
        return clients if self._waits_until < self._ends_at else []

    def start(self, station: int) -> float:
        """Absolute seconds at which visits to a station begin."""
        return self.visits_clock.now

    @property
    def is_there(self) -> Callable[[int], bool] | None:
        """A test whether a client is there when its visit would begin; None where all always are."""
        return self.visits_clock.is_there

    def is_there_at(self, client: int, time: float) -> bool:
        """Whether a client is there at ``time``, at which visits to its station begin."""
        is_there = self.visits_clock.is_there
        return is_there is None or is_there(client)

    def first_there(self, clients: Sequence[int], time: float) -> float:
        """When the first of these clients is there, ``time`` at the earliest; inf: never."""
        return self.visits_clock.first_available(clients, time)

    def wait(self, station: int, until: float) -> None:
        """Let a station wait until one of its clients is there; inf: none will be."""
        self._waits_until = until
        if until < self._ends_at:
            self.visits_clock.advance(until)

    @property
    def is_awaited(self) -> bool:
        """Whether there is something to send or to receive, though nobody begins a round."""
        return False

    def give_up(self) -> bool:
        """Those that were to begin have no clients for it; returns whether `locate` says something else now."""
        return False

    def ended_by(self) -> str:
        """The rule that ends the run when nobody begins a round, and nothing is awaited."""
        return SECONDS if self._ends_at <= self._waits_until < math.inf else CLIENTS

    # --- after the steps ----------------------------------------------------------------------------------------------

    def note_updates(self, stations: Iterable[int]) -> None:
        """These stations get updates in this round."""

    def make_steps(self, record: RoundRecord, ends: Mapping[int, float]) -> RoundEnd:
        """Stations make their steps; what follows. ``ends``: station -> absolute seconds of its step."""
        return RoundEnd(max(ends.values(), default=self.visits_clock.now))  # a drawn cohort may be empty

    def last(self, record: RoundRecord, ends: Mapping[int, float]) -> int | None:
        """The station that a round waited for last, of those with visits, which made their steps at ``ends``."""
        return max(ends, key=lambda station: ends[station], default=None)

    def saved_above(self, record: RoundRecord, station: int) -> dict[str, float]:
        """Bottleneck -> seconds that the messages above a station would save if it were twice as fast."""
        return {}

    # --- evaluations on clients ---------------------------------------------------------------------------------------

    def begin_evaluation(self, record: RoundRecord, now: float) -> Mapping[int, float]:
        """Station -> absolute seconds from which its clients can be sent the models that are evaluated now."""
        return {SERVER: now}

    def end_evaluation(self, station: int, end: float) -> None:
        """The evaluation on a station's clients ends."""

    # --- what a checkpoint has ----------------------------------------------------------------------------------------

    def state(self) -> dict[str, NDArray[np.generic]]:
        """What later rounds depend on, by name."""
        return {}
