"""The fleet of a scenario: its section turned into `costmodel.fleet.fleet.Fleet`, with the files that it names.

Files are looked for as they are named, then below the data roots (``data.root``, ``$FEDBR_DATA``, the user cache).
ScenarioError names the key for whatever cannot be used.
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
from costmodel.network.tcp import Transport
from edge.data.locate import is_file, search_paths
from edge.protocol.config import ModelProfile
from edge.protocol.rng import keyed_generator
from scenarios.cache import cache_folder
from scenarios.config import schema
from scenarios.errors import ScenarioError

T = TypeVar("T")
HOUR_SECONDS, DAY_SECONDS = 3600.0, 86400.0
LEAST_SECONDS, FACTORS = 1e-3, 1e6
"""Of recorded series: between two samples, and the largest factor as well as one over the least."""
CALIBRATED = "devices"
"""Folder of the user cache in which ``fedbr doctor --calibrate`` leaves profiles."""


def fleet(scenario: schema.Scenario, families: tuple[str, ...]) -> Fleet:
    """The clients' devices and links, drawn by the scenario's seed, for a model of these names, best first."""
    chosen = scenario.fleet
    streams = _streams(scenario.seed)
    own = own_rows(scenario)
    trace = _of_links(chosen, _read(scenario, "fleet.trace", chosen.trace, traces.read))
    links = Links(
        chosen.server.down,
        chosen.server.up,
        (chosen.gateways.down,) * chosen.gateways.count,
        (chosen.gateways.up,) * chosen.gateways.count,
        aggregate_bytes_per_second=chosen.server.aggregate / 8,
        transport=Transport(chosen.transport.security, chosen.transport.slow_start),
    )
    try:
        drawn = Fleet.build(
            scenario.data.clients,
            chosen.devices,
            chosen.networks,
            streams=streams,
            families=families,
            links=links,
            spread=ClientVariation(
                chosen.compute_spread,
                chosen.bandwidth_spread,
                chosen.compute_sigma,
                None if chosen.down_sigma == "network" else chosen.down_sigma,
                None if chosen.up_sigma == "network" else chosen.up_sigma,
                chosen.rates,
            ),
            change=RoundVariation(
                chosen.jitter,
                chosen.redraw,
                chosen.transport.noise,
                chosen.mode_rounds,
                chosen.crashes_per_hour / HOUR_SECONDS,
            ),
            battery_joules=math.inf if chosen.battery is None else chosen.battery,
            compute_energy=chosen.compute_energy,
            radio_energy=chosen.radio_energy,
            trace=trace,
            case=chosen.trace_case,
            own_devices=own[0],
            own_networks=own[1],
        )
    except ValueError as error:
        raise ScenarioError(f"fleet: {error}") from None
    _check_drawn("fleet" if chosen.trace is None else "fleet.trace", drawn)
    behaviour = ClientDynamics(
        _availability(scenario, streams), chosen.availability.on_loss, _variation(scenario, drawn.bandwidth_cv, streams)
    )
    return replace(drawn, behaviour=behaviour)


def own_rows(scenario: schema.Scenario) -> tuple[dict[str, Device], dict[str, Network]]:
    """Devices and networks that do not ship: of the files that the scenario names, and calibrated ones."""
    chosen = scenario.fleet
    own = _read(scenario, "fleet.device_file", chosen.device_file, own_devices) or {}
    links = _read(scenario, "fleet.network_file", chosen.network_file, own_networks) or {}
    for name in dict.fromkeys(chosen.devices):  # there may be a million names of few devices
        if name in devices() or name in own:
            continue
        path = calibrated(name)
        if path is None:
            break  # nobody knows this device: whoever checks the names stops there too
        own |= _read(scenario, "fleet.devices", str(path), own_devices) or {}
    return own, links


def calibrated(name: str) -> Path | None:
    """The file that ``fedbr doctor --calibrate`` left of a device of this name, if there is one."""
    path = cache_folder() / CALIBRATED / f"{name}.toml"
    return path if "/" not in name and is_file(path) else None


def named_files(scenario: schema.Scenario) -> dict[str, Path]:
    """Key -> file, of all that the fleet reads."""
    chosen = scenario.fleet
    keys = {
        "fleet.trace": chosen.trace,
        "fleet.device_file": chosen.device_file,
        "fleet.network_file": chosen.network_file,
        "fleet.bandwidth.file": chosen.bandwidth.file,
        "fleet.availability.file": chosen.availability.file,
    }
    return {key: find(scenario, key, name) for key, name in keys.items() if name is not None}


def find(scenario: schema.Scenario, key: str, name: str) -> Path:
    """Where a file lies that the scenario names."""
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
    raise ScenarioError(f"{key} = {name!r}: no such file; looked for {', '.join(map(str, {as_named: '', **below}))}")


def _read(scenario: schema.Scenario, key: str, name: str | None, read: Callable[[Path], T]) -> T | None:
    if name is None:
        return None
    path = find(scenario, key, name)
    try:
        return read(path)
    except ValueError as error:
        raise ScenarioError(f"{key}: {error}") from None


def _of_links(chosen: schema.FleetSection, trace: Any) -> Any:
    if isinstance(trace, traces.WindowTrace | traces.Series):
        key = "availability.file" if isinstance(trace, traces.WindowTrace) else "bandwidth.file"
        raise ScenarioError(
            f"fleet.trace = {chosen.trace!r}: says nothing of devices or links; it belongs to fleet.{key}"
        )
    if isinstance(trace, traces.Cases) and chosen.trace_case not in trace.cases:
        cases = ", ".join(map(str, trace.cases))
        raise ScenarioError(f"fleet.trace_case = {chosen.trace_case}: {chosen.trace} has the cases {cases}")
    return trace


def _check_drawn(key: str, drawn: Fleet) -> None:
    """Refuse what no device or link is like: a clock that counts in aeons has no room left for seconds."""
    for what, values, wrong in (
        ("computes at {:g} FLOP/s; the least is 1", drawn.flops_per_second, drawn.flops_per_second < 1),
        ("downloads at {:g} bit/s; the least is 1", drawn.down, drawn.down < 1),
        ("uploads at {:g} bit/s; the least is 1", drawn.up, drawn.up < 1),
        ("has round trips of {:g} s; the most is 3600", drawn.rtt, drawn.rtt > HOUR_SECONDS),
    ):
        for client in np.flatnonzero(wrong)[:1].tolist():
            raise ScenarioError(f"{key}: client {client} {what.format(values[client])}")


def _availability(scenario: schema.Scenario, streams: Any) -> Availability:
    chosen = scenario.fleet.availability
    if chosen.kind == "renewal":
        return Renewal(chosen.on, chosen.off, chosen.sigma, streams)
    if chosen.kind == "diurnal":
        return Diurnal(
            chosen.hour,
            chosen.hours,
            streams,
            spread_hours=chosen.spread_hours,
            jitter_hours=chosen.jitter_hours,
            length_sigma=chosen.sigma,
            start_hour=chosen.start_hour,
        )
    if chosen.kind == "always":
        return Always()
    trace = _read(scenario, "fleet.availability.file", _needed("fleet.availability", chosen.file), traces.read)
    if not isinstance(trace, traces.WindowTrace):
        raise ScenarioError(f"fleet.availability.file = {chosen.file!r}: has no windows of availability")
    rows, start = len(trace.devices), chosen.start_hour * HOUR_SECONDS
    # What repeats is moved on to the time of day of the beginning; else what was before it is over.
    by = DAY_SECONDS - start if chosen.repeat else -start
    windows = [[(max(begin + by, 0.0), end + by) for begin, end in each if end + by > 0] for each in trace.windows]
    places = streams("availability of a trace", 0, 0).permutation(rows)
    return RecordedIntervals(
        windows,
        trace.period if chosen.repeat else None,
        row_of=places[np.arange(scenario.data.clients) % rows],
    )


def _variation(scenario: schema.Scenario, cv: NDArray[np.float64] | None, streams: Any) -> Variation:
    chosen = scenario.fleet.bandwidth
    if chosen.kind == "constant":
        return Constant()
    if chosen.kind == "ou":
        sigma = np.vectorize(sigma_of_cv)(np.float64(chosen.cv) if cv is None else cv)
        return OrnsteinUhlenbeck(sigma, chosen.tau, chosen.step, streams)
    series = _read(scenario, "fleet.bandwidth.file", _needed("fleet.bandwidth", chosen.file), traces.read)
    if not isinstance(series, traces.Series):
        raise ScenarioError(f"fleet.bandwidth.file = {chosen.file!r}: has no columns seconds and factor")
    for client, seconds, factor in zip(series.client, series.seconds, series.factor, strict=True):
        if (np.diff(seconds) < LEAST_SECONDS).any() or factor.max() > FACTORS or factor.min() < 1 / FACTORS:
            raise ScenarioError(
                f"fleet.bandwidth.file = {chosen.file!r}: client {client}: seconds must be {LEAST_SECONDS:g} or more "
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
    scenario: schema.Scenario, drawn: Fleet, description: ModelProfile, kept: NDArray[np.float64]
) -> dict[int, str]:
    """client -> why its device's memory cannot hold the training; ScenarioError if that leaves nobody.

    ``kept`` (blocks,): how often an example passes forward through each block, at most, and leaves there what its way
    back needs; a teacher's pass has no way back.
    """
    parameters = sum(block.params for block in description.layout.blocks)
    activations, batch = float((description.activations * kept).sum()), scenario.train.batch
    needed = memory.training_nbytes(parameters, activations, batch)
    reasons = {
        kind: f"{device.name}: {memory.sum_text(parameters, activations, batch, device.memory_bytes)}"
        for kind, device in enumerate(drawn.devices)
        if not memory.fits(needed, device.memory_bytes)
    }
    if len(reasons) == len(drawn.devices):
        raise ScenarioError(f"fleet.devices: the model fits none of them; {'; '.join(reasons.values())}")
    return {k: reasons[kind] for k, kind in enumerate(drawn.device_of.tolist()) if kind in reasons}
