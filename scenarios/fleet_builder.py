"""Builds the `costmodel.fleet.fleet.Fleet` of a scenario from its section and the files that it names.

Files are searched under their names, then below the data roots (``data.root``, ``$FEDBR_DATA``, the user cache).
ScenarioError names the key of an unusable value.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.fleet import memory, traces
from costmodel.fleet.availability import Always, Availability, Diurnal, RecordedIntervals, Renewal
from costmodel.fleet.devices import Device, Network, devices, own_devices, own_networks
from costmodel.fleet.dynamics import ClientDynamics
from costmodel.fleet.fleet import ClientVariation, Fleet, RoundVariation
from costmodel.network.bandwidth import Constant, OrnsteinUhlenbeck, Samples, Variation, sigma_of_cv
from costmodel.network.links import Links
from costmodel.network.outages import WithOutages
from costmodel.network.tcp import Transport
from costmodel.units import DAY_SECONDS, HOUR_SECONDS
from edge.data.locate import is_file, search_paths
from edge.protocol.config import ModelProfile
from edge.protocol.rng import keyed_generator
from scenarios.cache import cache_folder
from scenarios.config import schema
from scenarios.errors import ScenarioError

T = TypeVar("T")
LEAST_SECONDS, FACTORS = 1e-3, 1e6
"""Limits of recorded series: the least distance of two samples, and the largest factor and inverse factor."""
CALIBRATED = "devices"
"""Folder of the user cache for the profiles of ``fedbr doctor --calibrate``."""


def fleet(scenario: schema.Scenario, families: tuple[str, ...]) -> Fleet:
    """The clients' devices and links, drawn with the scenario's seed.

    ``families``: the model's name, then its family; a device's throughput is that of the first name that it has.
    """
    section, streams = scenario.fleet, _streams(scenario.seed)
    user_devices, user_networks = own_rows(scenario)
    trace = _of_links(section, _read(scenario, "fleet.trace", section.trace, traces.read))
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
            own_devices=user_devices,
            own_networks=user_networks,
        )
    except ValueError as error:
        raise ScenarioError(f"fleet: {error}") from None
    _check_drawn("fleet" if section.trace is None else "fleet.trace", drawn)
    availability, variation = _availability(scenario, streams), _variation(scenario, drawn.bandwidth_cv, streams)
    if section.bandwidth.outages:
        per_hour, seconds = (drawn.network_figure(name) for name in ("outages_per_hour", "outage_seconds"))
        variation = WithOutages(variation, per_hour, seconds, streams)
    return replace(drawn, behaviour=ClientDynamics(availability, section.availability.on_loss, variation))


def _links(section: schema.FleetSection) -> Links:
    return Links(
        section.server.down,
        section.server.up,
        (section.gateways.down,) * section.gateways.count,
        (section.gateways.up,) * section.gateways.count,
        aggregate_bytes_per_second=section.server.aggregate / 8,
        transport=Transport(section.transport.security, section.transport.slow_start, section.transport.congestion),
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


def own_rows(scenario: schema.Scenario) -> tuple[dict[str, Device], dict[str, Network]]:
    """The user's devices and networks: those of files that the scenario names, and calibrated devices."""
    section = scenario.fleet
    user_devices = _read(scenario, "fleet.device_file", section.device_file, own_devices) or {}
    user_networks = _read(scenario, "fleet.network_file", section.network_file, own_networks) or {}
    for name in dict.fromkeys(section.devices):  # a million names can stand for few devices
        if name in devices() or name in user_devices:
            continue
        path = calibrated(name)
        if path is None:
            break  # an unknown device: the check of names stops here, too
        user_devices |= _read(scenario, "fleet.devices", str(path), own_devices) or {}
    return user_devices, user_networks


def calibrated(name: str) -> Path | None:
    """The file of a calibrated device of this name (``fedbr doctor --calibrate``), if there is one."""
    path = cache_folder() / CALIBRATED / f"{name}.toml"
    return path if "/" not in name and is_file(path) else None


def named_files(scenario: schema.Scenario) -> dict[str, Path]:
    """Key -> file, for all files that the fleet reads."""
    section = scenario.fleet
    keys = {
        "fleet.trace": section.trace,
        "fleet.device_file": section.device_file,
        "fleet.network_file": section.network_file,
        "fleet.bandwidth.file": section.bandwidth.file,
        "fleet.availability.file": section.availability.file,
    }
    return {key: find(scenario, key, name) for key, name in keys.items() if name is not None}


def find(scenario: schema.Scenario, key: str, name: str) -> Path:
    """The path of a file that the scenario names; ScenarioError naming the key if there is none."""
    try:
        as_named = Path(name).expanduser()
    except RuntimeError as error:
        raise ScenarioError(f"{key} = {name!r}: {error}") from None
    if is_file(as_named):
        return as_named
    below = dict.fromkeys(place.folder / name for place in search_paths(scenario.data.root, cache_folder()))
    for path in below:
        if is_file(path):
            return path
    raise ScenarioError(f"{key} = {name!r}: no such file; searched {', '.join(map(str, {as_named: '', **below}))}")


def _read(scenario: schema.Scenario, key: str, name: str | None, read: Callable[[Path], T]) -> T | None:
    if name is None:
        return None
    path = find(scenario, key, name)
    try:
        return read(path)
    except ValueError as error:
        raise ScenarioError(f"{key}: {error}") from None


def _of_links(section: schema.FleetSection, trace: Any) -> Any:
    """``trace``; ScenarioError for a file that belongs to another key, or has no such case."""
    if isinstance(trace, traces.WindowTrace | traces.Series):
        key = "availability.file" if isinstance(trace, traces.WindowTrace) else "bandwidth.file"
        raise ScenarioError(
            f"fleet.trace = {section.trace!r}: has no columns of devices or links; it belongs to fleet.{key}"
        )
    if isinstance(trace, traces.Cases) and section.trace_case not in trace.cases:
        cases = ", ".join(map(str, trace.cases))
        raise ScenarioError(f"fleet.trace_case = {section.trace_case}: {section.trace} has the cases {cases}")
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


def _availability(scenario: schema.Scenario, streams: Any) -> Availability:
    section = scenario.fleet.availability
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
    trace = _read(scenario, "fleet.availability.file", _needed("fleet.availability", section.file), traces.read)
    if not isinstance(trace, traces.WindowTrace):
        raise ScenarioError(f"fleet.availability.file = {section.file!r}: has no windows of availability")
    rows, start = len(trace.devices), section.start_hour * HOUR_SECONDS
    # Repeated windows are shifted to the time of day at which the run starts; others that end before it are dropped.
    shift = DAY_SECONDS - start if section.repeat else -start
    windows = [
        [(max(begin + shift, 0.0), end + shift) for begin, end in row if end + shift > 0] for row in trace.windows
    ]
    places = streams("availability of a trace", 0, 0).permutation(rows)
    return RecordedIntervals(
        windows,
        trace.period if section.repeat else None,
        row_of=places[np.arange(scenario.data.clients) % rows],
    )


def _variation(scenario: schema.Scenario, cv: NDArray[np.float64] | None, streams: Any) -> Variation:
    section = scenario.fleet.bandwidth
    if section.kind == "constant":
        return Constant()
    if section.kind == "ou":
        sigma = np.vectorize(sigma_of_cv)(np.float64(section.cv) if cv is None else cv)
        return OrnsteinUhlenbeck(sigma, section.tau, section.step, streams)
    series = _read(scenario, "fleet.bandwidth.file", _needed("fleet.bandwidth", section.file), traces.read)
    if not isinstance(series, traces.Series):
        raise ScenarioError(f"fleet.bandwidth.file = {section.file!r}: has no columns seconds and factor")
    for client, seconds, factor in zip(series.client, series.seconds, series.factor, strict=True):
        if (np.diff(seconds) < LEAST_SECONDS).any() or factor.max() > FACTORS or factor.min() < 1 / FACTORS:
            raise ScenarioError(
                f"fleet.bandwidth.file = {section.file!r}: client {client}: seconds must be {LEAST_SECONDS:g} or more "
                f"apart, and factors within {1 / FACTORS:g} and {FACTORS:g}"
            )
    return Samples(series.seconds, series.factor, streams)


def _needed(table: str, file: str | None) -> str:
    if file is None:
        raise ScenarioError(f'{table}.kind = "trace" needs {table}.file')
    return file


@functools.cache
def _streams(seed: int) -> Callable[[str, int, int], np.random.Generator]:
    return lambda purpose, index, client: keyed_generator(seed, purpose, index, client)


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
