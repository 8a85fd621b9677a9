"""Builds the `costmodel.fleet.fleet.Fleet` of a scenario from its section and the files that it names.

`scenarios.run.fleet_dynamics` has what varies over time. ScenarioError names the key of an unusable value.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import Streams
from costmodel.fleet import memory, traces
from costmodel.fleet.fleet import ClientVariation, Fleet, RoundVariation
from costmodel.fleet.model_speed import Operations
from costmodel.fleet.recordings import RateSeries, RecordedDays
from costmodel.fleet.variation import counts
from costmodel.network.links import Links
from costmodel.network.tcp import Transport
from costmodel.units import HOUR_SECONDS
from edge.protocol.config import ModelProfile
from edge.protocol.operations import KINDS
from edge.protocol.payload import step_flops
from edge.protocol.rng import keyed_generator
from scenarios.config import schema
from scenarios.config.errors import ScenarioError
from scenarios.config.fleet_files import find, needed, own_rows, read, valid
from scenarios.run.fleet_dynamics import client_dynamics, link_series, recorded_link
from scenarios.run.recorded_clients import TraceAssignment, check_days, check_links, note


def fleet(scenario: schema.Scenario, families: tuple[str, ...]) -> Fleet:
    """The clients' devices and links, drawn with the fleet's seed.

    ``families``: the model's name, then its family; a device's throughput is that of the first name that it has.
    """
    section, streams = scenario.fleet, _streams(scenario)
    user_devices, user_networks = own_rows(scenario)
    trace = _of_links(section, read(scenario, "fleet.trace", section.trace, traces.read))
    assignment = _assignment(scenario)
    try:
        drawn = Fleet.build(
            scenario.data.clients,
            section.devices,
            section.networks,
            streams=streams,
            families=families,
            links=_links(section),
            spread=_client_variation(section),
            change=_round_variation(section),
            battery_joules=math.inf if section.battery is None else section.battery,
            compute_energy=section.compute_energy,
            radio_energy=section.radio_energy,
            trace=trace,
            case=section.trace_case,
            shuffle_trace=assignment.is_shuffled,
            own_devices=user_devices,
            own_networks=user_networks,
        )
    except ValueError as error:
        raise ScenarioError(f"fleet: {error}") from None
    _check_drawn("fleet" if section.trace is None else "fleet.trace", drawn)
    link = recorded_link(scenario, trace, assignment)
    if link is not None:
        drawn = link.applied(drawn)
        _check_drawn("fleet.bandwidth.file", drawn)
    return replace(drawn, behaviour=client_dynamics(scenario, trace, assignment, drawn, link))


def _assignment(scenario: schema.Scenario) -> TraceAssignment:
    section = scenario.fleet
    return TraceAssignment(
        clients=scenario.data.clients,
        is_shuffled=section.trace_assign == "shuffled",
        start=section.availability.start_hour * HOUR_SECONDS,
        repeats=section.availability.repeat,
        streams=_streams(scenario),
    )


def _links(section: schema.FleetSection) -> Links:
    gateways = section.gateways
    shares_air = gateways.kind == "airtime"
    down, up = (math.inf, math.inf) if shares_air else (gateways.down, gateways.up)
    return Links(
        section.server.down,
        section.server.up,
        (down,) * gateways.count,
        (up,) * gateways.count,
        gateways.fair if shares_air else None,
        aggregate_bytes_per_second=section.server.aggregate / 8,
        transport=_transport(section.transport),
    )


def _transport(section: schema.TransportSection) -> Transport:
    return Transport(
        section.security,
        section.slow_start,
        section.congestion,
        section.reconnect,
        section.promotion,
    )


def _client_variation(section: schema.FleetSection) -> ClientVariation:
    return ClientVariation(
        section.compute_spread,
        section.bandwidth_spread,
        section.compute_sigma,
        None if section.down_sigma == "network" else section.down_sigma,
        None if section.up_sigma == "network" else section.up_sigma,
        section.rates,
    )


def _round_variation(section: schema.FleetSection) -> RoundVariation:
    return RoundVariation(
        section.jitter,
        section.redraw,
        section.transport.noise,
        section.mode_rounds,
        section.crashes_per_hour / HOUR_SECONDS,
    )


def named_files(scenario: schema.Scenario) -> dict[str, Path]:
    """Key -> file, for all files that the fleet reads."""
    section = scenario.fleet
    keys = {
        "fleet.trace": section.trace,
        "fleet.device_file": section.device_file,
        "fleet.network_file": section.network_file,
        "fleet.bandwidth.file": section.bandwidth.file,
        "fleet.bandwidth.up_file": section.bandwidth.up_file,
        "fleet.availability.file": section.availability.file,
    }
    files = {key: find(scenario, key, name) for key, name in keys.items() if name is not None}
    beside = [_files_beside(key, files[key]) for key in ("fleet.trace", "fleet.availability.file") if key in files]
    return {key: path for named in (files, *beside) for key, path in named.items()}


def _files_beside(key: str, file: Path) -> dict[str, Path]:
    return {f"{key}, {path.name}": path for path in valid(key, lambda: traces.files_beside(file))}


def _of_links(section: schema.FleetSection, trace: Any) -> Any:
    """``trace``; ScenarioError for a file that belongs to another key, or has no such case."""
    if isinstance(trace, traces.WindowTrace | traces.Series | RateSeries):
        key = "availability.file" if isinstance(trace, traces.WindowTrace) else "bandwidth.file"
        raise ScenarioError(
            f"fleet.trace = {section.trace!r}: has no columns of devices or links; it belongs to fleet.{key}"
        )
    if isinstance(trace, traces.Cases) and section.trace_case not in trace.cases:
        cases = ", ".join(map(str, trace.cases))
        raise ScenarioError(f"fleet.trace_case = {section.trace_case}: {section.trace} has the cases {cases}")
    if isinstance(trace, RecordedDays):
        valid("fleet.trace", lambda: check_days(trace))
    if isinstance(trace, traces.Machines):
        valid("fleet.trace", lambda: check_links(trace))
    return trace


def _check_drawn(key: str, drawn: Fleet) -> None:
    """Refuse unrealistic devices and links, with virtual times so large that float64 has no digits for seconds."""
    for text, values, wrong in (
        ("computes at {:g} FLOP/s; the least is 1", drawn.flops_per_second, drawn.flops_per_second < 1),
        ("downloads at {:g} bit/s; the least is 1", drawn.down, drawn.down < 1),
        ("uploads at {:g} bit/s; the least is 1", drawn.up, drawn.up < 1),
        ("has round trips of {:g} s; the most is 3600", drawn.rtt, drawn.rtt > HOUR_SECONDS),
    ):
        for client in np.flatnonzero(wrong)[:1].tolist():
            raise ScenarioError(f"{key}: client {client} {text.format(values[client])}")


def fleet_notes(scenario: schema.Scenario) -> list[str]:
    """How shares that look like counts, and rows of recordings, meet clients, where there are not as many of both."""
    section, clients, notes = scenario.fleet, scenario.data.clients, []
    notes += [_share_note(f"fleet.{name}", getattr(section, name), clients) for name in ("devices", "networks")]
    trace = _of_links(section, read(scenario, "fleet.trace", section.trace, traces.read))
    if trace is not None:
        notes.append(note("fleet.trace", traces.row_count(trace, section.trace_case), clients))
    if section.bandwidth.kind == "trace":
        series = link_series(scenario, "file", needed("fleet.bandwidth", section.bandwidth.file))
        notes.append(_series_note(len(series.client), clients, section.trace_assign))
    if section.availability.kind == "trace" and section.availability.file is not None:
        windows = read(scenario, "fleet.availability.file", section.availability.file, traces.read)
        if isinstance(windows, traces.WindowTrace):
            notes.append(note("fleet.availability.file", len(windows.devices), clients))
    return [text for text in notes if text]


def _share_note(key: str, chosen: Mapping[str, float] | Sequence[str], clients: int) -> str:
    if not isinstance(chosen, Mapping) or max(chosen.values()) <= 1 or sum(chosen.values()) in (clients, 100):
        return ""
    numbers = ", ".join(f"{name} {number}" for name, number in zip(chosen, counts(chosen, clients), strict=True))
    return f"{key}: shares are normalised, and data.clients = {clients}: {numbers}"


def _series_note(series: int, clients: int, assign: str) -> str:
    if assign == "by_client" or series == 1:
        return note("fleet.bandwidth.file", series, clients, ("series", "series"))
    return f"fleet.bandwidth.file: {series} series for {clients} clients: each client draws one of them"


def _streams(scenario: schema.Scenario) -> Streams:
    return _keyed(scenario.seed if scenario.fleet.seed is None else scenario.fleet.seed)


@functools.cache
def _keyed(seed: int) -> Streams:
    return lambda purpose, index, client: keyed_generator(seed, purpose, index, client)


def with_operations(drawn: Fleet, families: tuple[str, ...], description: ModelProfile) -> Fleet:
    """The fleet with its devices' speed for a model by its operations; the same without any.

    A plain step computes no gradient for the examples. ScenarioError for a speed out of range.
    """
    if not len(description.operations):
        return drawn
    flops = step_flops(description.flops)
    per_example, per_step = (dict(zip(KINDS, counts, strict=True)) for counts in description.operations.T.tolist())
    found = drawn.for_model(families, Operations(flops, per_example, per_step))
    _check_drawn("fleet.devices", found)
    return found


def refused(
    scenario: schema.Scenario, drawn: Fleet, description: ModelProfile, forward_passes: NDArray[np.float64]
) -> dict[int, str]:
    """client -> why its device has too little memory for training; ScenarioError if no client is left.

    ``forward_passes`` (blocks,): the largest number of forward passes of an example through each block that store
    activations for a backward pass; a teacher's pass stores none.
    """
    parameters = sum(block.params for block in description.layout.blocks)
    activations, batch = float((description.activations * forward_passes).sum()), scenario.train.batch
    needed = memory.training_nbytes(parameters, activations, batch)
    reasons = {
        index: f"{device.name}: {memory.sum_text(parameters, activations, batch, device.memory_bytes)}"
        for index, device in enumerate(drawn.devices)
        if not memory.fits(needed, device.memory_bytes)
    }
    if len(reasons) == len(drawn.devices):
        raise ScenarioError(f"fleet.devices: the model fits no device; {'; '.join(reasons.values())}")
    return {client: reasons[index] for client, index in enumerate(drawn.device_of.tolist()) if index in reasons}
