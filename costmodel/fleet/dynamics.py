"""What happens to visits from outside: clients leave, crash, run out of power, and their links vary.

None of it depends on what others do, so a visit's losses are known from its start, phase by phase.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from costmodel.fleet.availability import Always, Availability, available_seconds_end
from costmodel.fleet.conditions import Conditions
from costmodel.network.bandwidth import Constant, Variation

Doubles = NDArray[np.float64]
ABORT, PAUSE = "abort", "pause"


@dataclass(frozen=True)
class ClientDynamics:
    """When clients are there, and how well they are connected."""

    availability: Availability = field(default_factory=Always)
    on_loss: str = ABORT
    """What becomes of a visit whose client goes away: ``abort`` ends it, ``pause`` lets it go on later.

    While a client is away neither bits nor computing move; the round trips of a handshake or of a slow start run on,
    and a message goes on over the connection it has. The next message starts slowly again, the next download connects.
    """
    variation: Variation = field(default_factory=Constant)

    @property
    def pauses(self) -> bool:
        """Whether visits may have to wait for their clients."""
        return self.on_loss == PAUSE and not isinstance(self.availability, Always)

    @property
    def varies(self) -> bool:
        """Whether the rate of a client's link may change during a transfer."""
        return self.pauses or not isinstance(self.variation, Constant)

    def rate(self, client: int, direction: int, nominal: float, t: float) -> tuple[float, float]:
        """(bit/s from ``t`` on, absolute time of the next change); 0 while a paused client is away."""
        factor, until = self.variation.factor(client, direction, t)
        if self.pauses:
            here, change = self.availability.interval(client, t)
            return (nominal * factor if here else 0.0), min(until, change)
        return nominal * factor, until

    def varying(self, conditions: Conditions, direction: int) -> Callable[[int, float], tuple[float, float]] | None:
        """For `costmodel.network.transfers.transfer_batch`: (index of the visit, t) -> `rate`; None where nothing
        varies."""
        if not self.varies:
            return None
        clients, nominal = conditions.clients.tolist(), conditions.rate(direction).tolist()
        return lambda visit, t: self.rate(clients[visit], direction, nominal[visit], t)

    def since(self, conditions: Conditions, starts: Doubles) -> Doubles:
        """Since when each client has been there without a break."""
        if isinstance(self.availability, Always):
            return np.full(len(conditions), -math.inf)
        return np.array(
            [
                self.availability.interval_start(k, t) if t < math.inf else -math.inf
                for k, t in zip(conditions.clients.tolist(), starts.tolist(), strict=True)
            ],
            np.float64,
        )

    def losses(self, conditions: Conditions, starts: Doubles) -> Doubles:
        """When each visit loses its client, which leaves (where visits pause: for good) or crashes; inf: never."""
        crash = self.after(conditions, starts, conditions.crash_after)
        if isinstance(self.availability, Always):
            return crash
        leaves = [self._leaves(k, t) for k, t in zip(conditions.clients.tolist(), starts.tolist(), strict=True)]
        return np.minimum(crash, np.array(leaves, np.float64))

    def _leaves(self, client: int, t: float) -> float:
        """When a visit that starts at ``t`` has lost its client by its leaving; ``t`` itself if it is not there."""
        if self.pauses:
            return max(t, self.availability.permanently_gone_at(client))
        here, change = self.availability.interval(client, t)
        return change if here else t

    def after(self, conditions: Conditions, starts: Doubles, seconds: Doubles) -> Doubles:
        """When so many seconds of being at work have passed since each start."""
        if not self.pauses:
            return starts + seconds
        each = zip(conditions.clients.tolist(), starts.tolist(), seconds.tolist(), strict=True)
        return np.array([self.end(client, t, need) for client, t, need in each], np.float64)

    def end(self, client: int, t: float, seconds: float) -> float:
        """`after` for one client."""
        if not self.pauses:
            return t + seconds
        if t == math.inf or seconds == math.inf:
            return math.inf
        return available_seconds_end(self.availability, client, t, seconds)

    def present_seconds(self, client: int, begin: float, end: float) -> float:
        """Seconds between two times in which a client that pauses was there; 0 if it never began."""
        seconds, t = 0.0, begin
        while t < end:
            here, change = self.availability.interval(client, t)
            seconds += min(change, end) - t if here else 0.0
            t = change
        return seconds
