"""Client dynamics: clients leave and return, crash, run out of power, and their links vary.

None of it depends on other clients, so the loss of a visit is known from its start, phase by phase.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from costmodel.arrays import Doubles
from costmodel.config import FleetConfig
from costmodel.fleet.availability import Always, Availability, Diurnal, Renewal, available_seconds_end
from costmodel.fleet.conditions import Conditions
from costmodel.fleet.devices import networks
from costmodel.fleet.inputs import FleetInputs
from costmodel.fleet.recorded_clients import (
    LinkRecording,
    TraceAssignment,
    bandwidth_link,
    days_presence,
    days_speed,
    presence,
    trace_link,
)
from costmodel.fleet.recordings import RecordedDays
from costmodel.fleet.speed import PURPOSE as FOREGROUND_LOAD
from costmodel.fleet.speed import ComputeSpeed, ForegroundLoad, Presence, SpeedFactor
from costmodel.network.bandwidth import Constant, OrnsteinUhlenbeck, Variation, sigma_of_cv
from costmodel.network.outages import WithOutages

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

    @property
    def has_outages(self) -> bool:
        """Whether links may be down for a time."""
        return self.variation.has_outages

    def has_outage(self, client: int, direction: int, t: float) -> bool:
        """Whether a rate of 0 at ``t`` is an outage of the client's link, and not a pause of the client."""
        if not self.has_outages or (self.pauses and not self.availability.interval(client, t)[0]):
            return False
        return self.variation.factor(client, direction, t)[0] == 0.0

    def outages(self, conditions: Conditions, direction: int) -> Callable[[int, float], bool] | None:
        """(visit, t) -> `has_outage`; None where there are none."""
        if not self.has_outages:
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
        return -math.inf if isinstance(self.availability, Always) else self.availability.interval_start(client, t)

    def losses(self, conditions: Conditions, starts: Doubles) -> Doubles:
        """Absolute seconds at which each visit loses its client; inf: never.

        A client is lost when it leaves (permanently, if visits pause) or crashes.
        """
        crash = self.after(conditions, starts, conditions.crash_after)
        if isinstance(self.availability, Always):
            return crash
        visits = zip(conditions.clients.tolist(), starts.tolist(), strict=True)
        return np.minimum(crash, np.array([self._leaves(client, t) for client, t in visits], np.float64))

    def _leaves(self, client: int, t: float) -> float:
        """When a client leaves a visit that starts at ``t``; ``t`` itself if it is not available then."""
        if self.pauses:
            return max(t, self.availability.permanently_gone_at(client))
        available, change = self.availability.interval(client, t)
        return change if available else t

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


# --- the dynamics of a fleet ------------------------------------------------------------------------------------------


def recorded_link(config: FleetConfig, inputs: FleetInputs, assignment: TraceAssignment) -> LinkRecording | None:
    """Recorded links: of ``fleet.trace`` or of ``fleet.bandwidth``; None if there are none."""
    link, key, kind = trace_link(inputs.trace, assignment), "fleet.trace", config.bandwidth.kind
    if link is not None and kind != "constant":
        raise ValueError(f'fleet.bandwidth.kind = {kind}: fleet.trace has rates over time; choose "constant"')
    if inputs.link is not None:
        try:
            link, key = bandwidth_link(*inputs.link, assignment), "fleet.bandwidth.file"
        except ValueError as error:
            raise ValueError(f"fleet.bandwidth.up_file = {config.bandwidth.up_file!r}: {error}") from None
    has_rates = link is not None and (key == "fleet.trace" or any(rates is not None for rates in link.rates))
    if has_rates and config.rates is not None:
        raise ValueError(f"fleet.rates = {list(config.rates)}: {key} has rates; leave one of them out")
    return link


def client_dynamics(
    config: FleetConfig,
    inputs: FleetInputs,
    assignment: TraceAssignment,
    link: LinkRecording | None,
    bandwidth_cv: Doubles | None,
    outages: tuple[Doubles, Doubles],
) -> ClientDynamics:
    """The dynamics of a fleet's clients.

    ``link``: of `recorded_link`; ``bandwidth_cv``: of `Fleet`; ``outages``: (per hour, median seconds) of each client's
    network.
    """
    variation: Variation = Constant()
    if link is not None:
        variation = link.variation
    elif config.bandwidth.kind == "ou":
        cv = np.float64(config.bandwidth.cv) if bandwidth_cv is None else bandwidth_cv
        sigma = np.vectorize(sigma_of_cv)(cv)
        variation = OrnsteinUhlenbeck(sigma, config.bandwidth.tau, config.bandwidth.step, assignment.streams)
    if config.bandwidth.outages:
        per_hour, seconds = outages
        if not (per_hour * seconds).any():
            rows = ", ".join(sorted(row.name for row in networks().values() if row.outages_per_hour))
            raise ValueError(
                "fleet.bandwidth.outages = true: no network of the fleet has outages_per_hour and outage_seconds; of "
                f"those that ship, {rows} has"
            )
        variation = WithOutages(variation, per_hour, seconds, assignment.streams)
    availability = _availability(config, inputs, assignment)
    return ClientDynamics(availability, config.availability.on_loss, variation, _speed(config, inputs, assignment))


def _availability(config: FleetConfig, inputs: FleetInputs, assignment: TraceAssignment) -> Availability:
    """When clients are available: as their recorded days say, or as ``fleet.availability`` does."""
    table, streams = config.availability, assignment.streams
    recorded = days_presence(inputs.trace, assignment) if isinstance(inputs.trace, RecordedDays) else None
    if recorded is not None:
        if table.kind != "always":
            raise ValueError(
                f'fleet.availability.kind = {table.kind}: fleet.trace says who is available; choose "always"'
            )
        return recorded
    if table.kind == "renewal":
        return Renewal(table.on, table.off, table.sigma, streams)
    if table.kind == "diurnal":
        return Diurnal(
            table.hour,
            table.hours,
            streams,
            spread_hours=table.spread_hours,
            jitter_hours=table.jitter_hours,
            length_sigma=table.sigma,
            start_hour=table.start_hour,
        )
    return Always() if inputs.windows is None else presence(inputs.windows, assignment)


def _speed(config: FleetConfig, inputs: FleetInputs, assignment: TraceAssignment) -> ComputeSpeed:
    table = config.speed
    recorded = days_speed(inputs.trace, assignment) if isinstance(inputs.trace, RecordedDays) else None
    factors: list[SpeedFactor] = [] if recorded is None else [recorded]
    if table.kind == "load":
        use = Renewal(table.on, table.off, table.sigma, assignment.streams, FOREGROUND_LOAD)
        factors.append(ForegroundLoad(use, table.load_factor))
    after = math.inf if table.throttle_after is None else table.throttle_after
    return ComputeSpeed(tuple(factors), after, table.throttle_to)
