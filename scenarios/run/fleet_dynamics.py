"""The client dynamics of a scenario: who is available, and how links and speeds vary over time.

From the section ``fleet`` and the recordings that it names. `scenarios.run.fleet_builder` draws the clients' own
figures. ScenarioError names the key of an unusable value.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Streams
from costmodel.fleet import traces
from costmodel.fleet.availability import Always, Availability, Diurnal, Renewal
from costmodel.fleet.devices import networks
from costmodel.fleet.dynamics import ClientDynamics
from costmodel.fleet.fleet import Fleet
from costmodel.fleet.recordings import RateSeries, RecordedDays
from costmodel.fleet.speed import PURPOSE as FOREGROUND_LOAD
from costmodel.fleet.speed import ComputeSpeed, ForegroundLoad, SpeedFactor
from costmodel.network.bandwidth import Constant, OrnsteinUhlenbeck, Variation, sigma_of_cv
from costmodel.network.outages import WithOutages
from scenarios.config import schema
from scenarios.config.errors import ScenarioError
from scenarios.config.fleet_files import needed, read, valid
from scenarios.run.recorded_clients import (
    LinkRecording,
    TraceAssignment,
    bandwidth_link,
    check_series,
    days_presence,
    days_speed,
    presence,
    trace_link,
)


def client_dynamics(
    scenario: schema.Scenario, trace: Any, assignment: TraceAssignment, drawn: Fleet, link: LinkRecording | None
) -> ClientDynamics:
    """The dynamics of the clients that were drawn.

    ``trace``: the content of ``fleet.trace``; ``link``: of `recorded_link`, which has been applied to ``drawn``.
    """
    section, streams = scenario.fleet, assignment.streams
    variation = link.variation if link is not None else _variation(section.bandwidth, drawn.bandwidth_cv, streams)
    if section.bandwidth.outages:
        variation = _with_outages(variation, drawn, streams)
    return ClientDynamics(
        _presence(scenario, trace, assignment),
        section.availability.on_loss,
        variation,
        _speed(section.speed, trace, assignment),
    )


def _presence(scenario: schema.Scenario, trace: Any, assignment: TraceAssignment) -> Availability:
    """When clients are available: as their recorded days say, or as the section does."""
    recorded = days_presence(trace, assignment) if isinstance(trace, RecordedDays) else None
    if recorded is None:
        return _availability(scenario, assignment)
    if (kind := scenario.fleet.availability.kind) != "always":
        raise ScenarioError(f'fleet.availability.kind = {kind}: fleet.trace says who is available; choose "always"')
    return recorded


def _availability(scenario: schema.Scenario, assignment: TraceAssignment) -> Availability:
    section, streams = scenario.fleet.availability, assignment.streams
    if section.kind == "renewal":
        return Renewal(section.on, section.off, section.sigma, streams)
    if section.kind == "diurnal":
        return Diurnal(
            section.hour,
            section.hours,
            streams,
            spread_hours=section.spread_hours,
            jitter_hours=section.jitter_hours,
            length_sigma=section.sigma,
            start_hour=section.start_hour,
        )
    if section.kind == "always":
        return Always()
    trace = read(scenario, "fleet.availability.file", needed("fleet.availability", section.file), traces.read)
    if not isinstance(trace, traces.WindowTrace):
        raise ScenarioError(f"fleet.availability.file = {section.file!r}: has no windows of availability")
    return presence(trace, assignment)


def recorded_link(scenario: schema.Scenario, trace: Any, assignment: TraceAssignment) -> LinkRecording | None:
    """Recorded links: of ``fleet.trace`` or of ``fleet.bandwidth``; None if there are none."""
    section = scenario.fleet
    link, key = trace_link(trace, assignment), "fleet.trace"
    if link is not None and section.bandwidth.kind != "constant":
        raise ScenarioError(
            f'fleet.bandwidth.kind = {section.bandwidth.kind}: fleet.trace has rates over time; choose "constant"'
        )
    if section.bandwidth.kind == "trace":
        link, key = _bandwidth_link(scenario, assignment), "fleet.bandwidth.file"
    has_rates = link is not None and (key == "fleet.trace" or any(rates is not None for rates in link.rates))
    if has_rates and section.rates is not None:
        raise ScenarioError(f"fleet.rates = {list(section.rates)}: {key} has rates; leave one of them out")
    return link


def _bandwidth_link(scenario: schema.Scenario, assignment: TraceAssignment) -> LinkRecording:
    section = scenario.fleet.bandwidth
    down = link_series(scenario, "file", needed("fleet.bandwidth", section.file))
    up = None if section.up_file is None else link_series(scenario, "up_file", section.up_file)
    return valid(f"fleet.bandwidth.up_file = {section.up_file!r}", lambda: bandwidth_link(down, up, assignment))


def link_series(scenario: schema.Scenario, name: str, file: str) -> traces.Series | RateSeries:
    """The series of ``fleet.bandwidth.<name>``; ScenarioError for a file without any."""
    key = f"fleet.bandwidth.{name}"
    series = read(scenario, key, file, traces.read)
    if not isinstance(series, traces.Series | RateSeries):
        raise ScenarioError(f"{key} = {file!r}: has no columns seconds and factor or bits_per_second")
    valid(f"{key} = {file!r}", lambda: check_series(series))
    return series


def _variation(section: schema.BandwidthSection, cv: NDArray[np.float64] | None, streams: Any) -> Variation:
    if section.kind == "constant":
        return Constant()
    sigma = np.vectorize(sigma_of_cv)(np.float64(section.cv) if cv is None else cv)
    return OrnsteinUhlenbeck(sigma, section.tau, section.step, streams)


def _speed(section: schema.SpeedSection, trace: Any, assignment: TraceAssignment) -> ComputeSpeed:
    recorded = days_speed(trace, assignment) if isinstance(trace, RecordedDays) else None
    factors: list[SpeedFactor] = [] if recorded is None else [recorded]
    if section.kind == "load":
        use = Renewal(section.on, section.off, section.sigma, assignment.streams, FOREGROUND_LOAD)
        factors.append(ForegroundLoad(use, section.load_factor))
    after = math.inf if section.throttle_after is None else section.throttle_after
    return ComputeSpeed(tuple(factors), after, section.throttle_to)


def _with_outages(variation: Variation, drawn: Fleet, streams: Streams) -> Variation:
    per_hour, seconds = (drawn.network_figure(name) for name in ("outages_per_hour", "outage_seconds"))
    if not (per_hour * seconds).any():
        rows = ", ".join(sorted(row.name for row in networks().values() if row.outages_per_hour))
        raise ScenarioError(
            "fleet.bandwidth.outages = true: no network of the fleet has outages_per_hour and outage_seconds; of those "
            f"that ship, {rows} has"
        )
    return WithOutages(variation, per_hour, seconds, streams)
