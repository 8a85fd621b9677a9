"""Client dynamics: clients leave and return, crash, run out of power, and their links vary.

None of it depends on other clients, so the loss of a visit is known from its start, phase by phase.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from costmodel.arrays import Doubles, Streams
from costmodel.config import FleetConfig
from costmodel.fleet.availability import Always, Availability, Diurnal, Renewal, available_seconds_end
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.devices import networks
from costmodel.fleet.recorded_clients import RecordedClients
from costmodel.fleet.speed import PURPOSE as FOREGROUND_LOAD
from costmodel.fleet.speed import ComputeSpeed, ForegroundLoad, Presence, SpeedFactor
from costmodel.network.bandwidth import Constant, OrnsteinUhlenbeck, Variation, WithOutages, sigma_of_cv

ABORT, PAUSE = "abort", "pause"


@dataclass(frozen=True)
class ClientDynamics:
    """When clients are available, and how their links and speeds vary."""

    availability: Availability = field(default_factory=Always)
    on_loss: str = ABORT
    """Effect of a client's leaving on its visit: ``abort`` ends it, ``pause`` continues it when the client returns.

    While a client is away, transfers and computing stop; the round trips of a handshake or of slow start continue, and
    a message continues over its connection. The next message starts slowly again, and the next download connects.
    """
    variation: Variation = field(default_factory=Constant)
    speed: ComputeSpeed = field(default_factory=ComputeSpeed)
    """The speed of computing over time"""

    @property
    def pauses(self) -> bool:
        """Whether visits can pause."""
        return self.on_loss == PAUSE and not isinstance(self.availability, Always)

    @property
    def varies(self) -> bool:
        """Whether the rate of a client's link may change during a transfer."""
        return self.pauses or not isinstance(self.variation, Constant)

    def rate(self, client: int, direction: int, nominal: float, t: float) -> tuple[float, float]:
        """(bit/s from ``t`` on, absolute time of the next change); 0 while a paused client is away."""
        factor, until = self.variation.factor(client, direction, t)
        if self.pauses:
            available, change = self.availability.interval(client, t)
            return (nominal * factor if available else 0.0), min(until, change)
        return nominal * factor, until

    def varying(self, conditions: Conditions, direction: int) -> Callable[[int, float], tuple[float, float]] | None:
        """(visit, t) -> `rate`, for `costmodel.network.transfers.transfer_batch`; None where nothing varies."""
        if not self.varies:
            return None
        clients, nominal = conditions.clients.tolist(), conditions.rate(direction).tolist()
        return lambda visit, t: self.rate(clients[visit], direction, nominal[visit], t)

    def has_outage(self, client: int, direction: int, t: float) -> bool:
        """Whether a rate of 0 at ``t`` is an outage of the client's link, and not a pause of the client."""
        if not self.variation.has_outages or (self.pauses and not self.availability.interval(client, t)[0]):
            return False
        return self.variation.is_outage(client, direction, t)

    def outages(self, conditions: Conditions, direction: int) -> Callable[[int, float], bool] | None:
        """(visit, t) -> `has_outage`; None where there are none."""
        if not self.variation.has_outages:
            return None
        clients = conditions.clients.tolist()
        return lambda visit, t: self.has_outage(clients[visit], direction, t)

    def since(self, conditions: Conditions, starts: Doubles) -> Doubles:
        """Absolute seconds since which each client has been available without a break; -inf: always."""
        if isinstance(self.availability, Always):
            return np.full(len(conditions), -math.inf)
        visits = zip(conditions.clients.tolist(), starts.tolist(), strict=True)
        return np.array([self.since_of(client, t) for client, t in visits], np.float64)

    def since_of(self, client: int, t: float) -> float:
        """`since` for one client."""
        is_always = t == math.inf or isinstance(self.availability, Always)
        return -math.inf if is_always else self.availability.at(client, t).begin

    def losses(self, conditions: Conditions, starts: Doubles) -> Doubles:
        """Absolute seconds at which each visit loses its client; inf: never.

        A client is lost when it leaves (permanently, if visits pause) or crashes.
        """
        crash = self.after(conditions, starts, conditions.crash_after)
        if isinstance(self.availability, Always):
            return crash
        visits = zip(conditions.clients.tolist(), starts.tolist(), strict=True)
        if self.pauses:
            leaves = [max(t, self.availability.permanently_gone_at(client)) for client, t in visits]
        else:  # at once, if it is not available
            intervals = ((t, *self.availability.interval(client, t)) for client, t in visits)
            leaves = [change if available else t for t, available, change in intervals]
        return np.minimum(crash, np.array(leaves, np.float64))

    def after(self, conditions: Conditions, starts: Doubles, seconds: Doubles) -> Doubles:
        """When each client has worked for ``seconds`` since its start, absolute seconds; (visits,) each."""
        if not self.pauses:
            return starts + seconds
        visits = zip(conditions.clients.tolist(), starts.tolist(), seconds.tolist(), strict=True)
        return np.array([self.end(client, t, needed) for client, t, needed in visits], np.float64)

    def end(self, client: int, t: float, seconds: float) -> float:
        """`after` for one client."""
        if not self.pauses:
            return t + seconds
        if t == math.inf or seconds == math.inf:
            return math.inf
        return available_seconds_end(self.availability, client, t, seconds)

    def computing(self, conditions: Conditions, starts: Doubles, seconds: Doubles) -> tuple[Doubles, Doubles]:
        """(end, seconds of computing) of work of ``seconds`` at nominal speed from each start on; (visits,) each."""
        if self.speed.is_constant:
            return self.after(conditions, starts, seconds), seconds
        visits = zip(conditions.clients.tolist(), starts.tolist(), seconds.tolist(), strict=True)
        ends, computed = np.array([self.computing_of(*visit) for visit in visits], np.float64).reshape(-1, 2).T
        return ends, computed

    def computing_of(self, client: int, t: float, seconds: float) -> tuple[float, float]:
        """`computing` for one client."""
        if self.speed.is_constant:
            return self.end(client, t, seconds), seconds
        if t == math.inf:
            return math.inf, 0.0
        return self.speed.end(client, t, seconds, self._presence)

    def computed(self, client: int, begin: float, cut: float) -> float:
        """Seconds at nominal speed of the work between two times; 0 if ``cut`` is not after ``begin``."""
        return self.speed.done(client, begin, cut, self._presence)

    @property
    def _presence(self) -> Presence | None:
        return self.availability.interval if self.pauses else None

    def present_seconds(self, client: int, begin: float, end: float) -> float:
        """Seconds between two times in which a client was available; 0 if ``end`` is not after ``begin``."""
        seconds, t = 0.0, begin
        while t < end:
            available, change = self.availability.interval(client, t)
            seconds += min(change, end) - t if available else 0.0
            t = change
        return seconds


def client_dynamics(
    config: FleetConfig,
    recorded: RecordedClients,
    outages_per_hour: Doubles,
    outage_seconds: Doubles,
    streams: Streams,
) -> ClientDynamics:
    """The dynamics of a fleet's clients: as their recordings say, or as the tables do.

    ``outages_per_hour``, ``outage_seconds``: (clients,) of each client's network.
    """
    bandwidth, availability, speed = config.bandwidth, config.availability, config.speed
    variation: Variation = Constant()
    if recorded.link is not None:
        variation = recorded.link.variation
    elif bandwidth.form == "ou":
        recorded_cv = recorded.figures.bandwidth_cv
        sigma = np.vectorize(sigma_of_cv)(np.float64(bandwidth.cv) if recorded_cv is None else recorded_cv)
        variation = OrnsteinUhlenbeck(sigma, bandwidth.tau, bandwidth.step, streams)
    if bandwidth.outages:
        if not (outages_per_hour * outage_seconds).any():
            rows = ", ".join(sorted(row.name for row in networks().values() if row.outages_per_hour))
            raise ValueError(
                "fleet.bandwidth.outages = true: no network of the fleet has outages_per_hour and outage_seconds; of "
                f"those that ship, {rows} has"
            )
        variation = WithOutages(variation, outages_per_hour, outage_seconds, streams)
    presence: Availability = recorded.presence or Always()
    if availability.form == "renewal":
        presence = Renewal(availability.on, availability.off, availability.sigma, streams)
    elif availability.form == "diurnal":
        presence = Diurnal(
            availability.hour,
            availability.hours,
            streams,
            spread_hours=availability.spread_hours,
            jitter_hours=availability.jitter_hours,
            length_sigma=availability.sigma,
            start_hour=availability.start_hour,
        )
    factors: list[SpeedFactor] = [] if recorded.speed is None else [recorded.speed]
    if speed.kind == "load":
        use = Renewal(speed.on, speed.off, speed.sigma, streams, FOREGROUND_LOAD)
        factors.append(ForegroundLoad(use, speed.load_factor))
    after = math.inf if speed.throttle_after is None else speed.throttle_after
    return ClientDynamics(
        presence, availability.on_loss, variation, ComputeSpeed(tuple(factors), after, speed.throttle_to)
    )
